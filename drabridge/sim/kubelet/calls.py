"""A log of every RPC the simulated kubelet sends or receives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from google.protobuf.message import Message


@dataclass(slots=True)
class Call:
    """One RPC.

    ``direction``: ``in`` or ``out``; ``peer``: resource, driver or socket; ``at``: ``time.monotonic()``.
    ``seconds`` is None while it runs; ``error`` holds the text that the kubelet's code would see.
    """

    direction: str
    method: str
    peer: str
    request: Message
    at: float = field(default_factory=time.monotonic)
    response: Message | None = None
    error: str = ""
    seconds: float | None = None


Observer = Callable[[str, Call], None]
"""Called with ``begin`` or ``end`` and the call; must not block."""


class CallLog:
    """All calls since the node exists, across restarts of the kubelet.

    An observer sees each begin and end.
    """

    def __init__(self, observer: Observer | None = None) -> None:
        self._calls: list[Call] = []
        self._observer = observer

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def of(self, method: str, peer: str | None = None) -> list[Call]:
        """Return the calls of one method, oldest first; of one peer if given."""
        return [c for c in self._calls if c.method == method and (peer is None or c.peer == peer)]

    def note(self, call: Call) -> Call:
        """Add one message of a stream. A message has no end of its own."""
        self._calls.append(call)
        self._tell("end", call)
        return call

    @contextmanager
    def record(self, direction: str, method: str, peer: str, request: Message) -> Iterator[Call]:
        """Time a call and keep the text of what it raised."""
        call = Call(direction, method, peer, request)
        self._calls.append(call)
        self._tell("begin", call)
        try:
            yield call
        except BaseException as error:
            call.error = call.error or str(error) or type(error).__name__
            raise
        finally:
            call.seconds = time.monotonic() - call.at
            self._tell("end", call)

    def _tell(self, moment: str, call: Call) -> None:
        if self._observer is not None:
            self._observer(moment, call)
