"""Keep the open ListAndWatch streams, and know which of them proves our registration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ListStream:
    """One open ListAndWatch. ``expected``: the first to open after our Register, hence kubelet's."""

    def __init__(self, *, expected: bool, opened_at: float) -> None:
        self.expected = expected
        self.opened_at = opened_at
        self.sent_version = 0
        self.ended = False
        self.poke = asyncio.Event()  # set when there may be news to send, or the stream is to end
        self.task = asyncio.current_task()

    def end(self) -> None:
        self.ended = True
        self.poke.set()


class ListStreams:
    """The open streams.

    A unix socket does not say who asks: the first stream after our Register is kubelet's.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        on_open: Callable[[ListStream], None],
        on_end: Callable[[ListStream], None],
    ) -> None:
        self._clock = clock
        self._on_open = on_open
        self._on_end = on_end
        self._open: list[ListStream] = []
        self._armed = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def arm(self) -> None:
        """Expect kubelet's stream next: Register is sent now."""
        self._armed = True

    @property
    def read_by_kubelet(self) -> bool:
        """Tell whether the stream that answers our last Register is open."""
        return any(stream.expected for stream in self._open)

    @property
    def sent_version(self) -> int:
        """The newest list version that kubelet's live stream took; 0 without one."""
        return max((s.sent_version for s in self._open if s.expected), default=0)

    @contextmanager
    def open(self) -> Iterator[ListStream]:
        """Keep a stream in the list for as long as its handler runs."""
        stream = ListStream(expected=self._armed, opened_at=self._clock())
        self._armed = False
        self._open.append(stream)
        self._on_open(stream)
        try:
            yield stream
        finally:
            self._open.remove(stream)
            self._notify()
            self._on_end(stream)

    def sent(self, stream: ListStream, version: int) -> None:
        """Note that ``stream`` took ``version``."""
        stream.sent_version = version
        self._notify()

    async def wait_sent(self, version: int) -> None:
        """Wait until kubelet's live stream took ``version`` or a newer one."""
        while self.sent_version < version:
            await self._changed.wait()

    async def end_all(self, patience_seconds: float) -> None:
        """End every stream and wait until none is left: first politely, then by cancelling its task.

        A frozen peer blocks the write, so that only cancelling helps.
        """
        self._armed = False
        for cut in (False, True):
            for stream in tuple(self._open):
                stream.end()
                if cut and stream.task is not None:
                    stream.task.cancel()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    while self._open:
                        await self._changed.wait()
            if not self._open:
                return

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
