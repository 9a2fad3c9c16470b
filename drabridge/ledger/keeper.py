"""The ledger of a running agent: events in, one at a time; answers out, once they are on disk.

Several requests that wait at once share one fsync (group commit), which runs in a thread so that the loop goes on.
What makes or ends a hold or moves a device is durable; what evidence says about a hold (last seen, absences) goes to
disk with the next commit: a new agent gathers it anew, and a hold whose evidence is lost only lasts longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import time

from msgspec import Struct

from drabridge.errors import HostError
from drabridge.ledger.events import Event, Lost
from drabridge.ledger.machine import step
from drabridge.ledger.model import Ledger, Policy
from drabridge.ledger.outcome import Decision, Effect, Refusal, RefusalCode, Step
from drabridge.ledger.store import LoadResult, Store

_log = logging.getLogger(__name__)

Callback = Callable[[Ledger, tuple[Effect, ...]], None]
"""Called on the loop after every step that changed something or has effects: the ledger now, and the effects."""


class StoreHealth(Struct, frozen=True):
    """Whether the ledger can be written. While it cannot, nothing is granted; every request tries again."""

    ok: bool = True
    error: str = ""
    since: float = 0.0


class _Waiting(Struct, frozen=True):
    """A step that was taken in memory and waits for the disk."""

    done: Step
    after: Ledger
    answer: asyncio.Future[Decision]


class Keeper:
    """Owns the ledger at run time. Use from one loop only; :meth:`close` ends it.

    ``ledger`` is what is on disk (evidence aside); offers are computed from it. ``loaded`` says what the start found:
    a ledger that was damaged has been quarantined by then, visibly.
    """

    def __init__(self, store: Store, policy: Policy | None = None, now: Callable[[], float] = time) -> None:
        self.policy = policy or Policy()
        self.now = now
        self._store = store
        self.loaded: LoadResult = store.load()
        self.ledger = self.loaded.ledger
        if self.loaded.doubtful:
            done = step(self.ledger, Lost(now(), reason=self.loaded.message), self.policy)
            self.ledger = done.of(self.ledger)
        self.health = StoreHealth()
        try:
            store.rewrite(self.ledger)
        except HostError as error:  # an agent that cannot start cannot say why; this one grants nothing and says it
            self.health = StoreHealth(False, str(error), now())
        self._head = self.ledger  # with the steps that wait for the disk
        self._queue: list[_Waiting] = []
        self._lazy: set[str] = set()
        self._flusher: asyncio.Task[None] | None = None
        self._callbacks: list[Callback] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Be told of every change; returns the way to end it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    async def apply(self, event: Event) -> Decision:
        """Take one step; returns when it is durable. A step that cannot be made durable is refused and undone.

        The step goes on if the caller is cancelled: what kubelet asked for may be on disk already.
        """
        done = step(self._head, event, self.policy)
        if self._flusher is None and not done.durable:
            self._head = self.ledger = done.of(self._head)
            self._lazy.update(entry.name for entry in done.changes)
            self._publish(done)
            return done.decision
        self._head = done.of(self._head)
        waiting = _Waiting(done, self._head, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush(), name="ledger-flush")
        return await asyncio.shield(waiting.answer)

    async def close(self) -> None:
        """Finish what waits, write the evidence that is not on disk, let the store go."""
        while self._flusher is not None:
            await asyncio.wait([self._flusher])
        try:
            if self._lazy and self.health.ok:
                self._store.append(self.ledger, self._lazy)
        finally:
            self._thread.shutdown()
            self._store.close()

    async def _flush(self) -> None:
        """Write batch after batch until nothing waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._queue:
                batch, self._queue = self._queue, []
                after = batch[-1].after
                names = self._lazy.union(*({entry.name for entry in waiting.done.changes} for waiting in batch))
                removed = {name for waiting in batch for name in waiting.done.removed} - after.entries.keys()
                try:
                    if any(waiting.done.durable for waiting in batch):
                        await loop.run_in_executor(self._thread, self._store.append, after, names, removed)
                        names = set()
                        self.health = StoreHealth()
                except Exception as error:
                    self._undo(batch, error)
                else:
                    self._lazy = names
                    self._done(batch, after)
        finally:
            self._flusher = None

    def _done(self, batch: list[_Waiting], after: Ledger) -> None:
        self.ledger = after
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_result(waiting.done.decision)
        for waiting in batch:
            self._publish(waiting.done)

    def _undo(self, batch: list[_Waiting], error: Exception) -> None:
        """Fail closed: the ledger is what it was, and everybody who waits is refused."""
        if self.health.ok:
            self.health = StoreHealth(False, str(error), self.now())
            _log.error("the ledger cannot be written: %s", error, exc_info=not isinstance(error, HostError))
        batch, self._queue = batch + self._queue, []
        self._head = self.ledger
        hint = error.hint if isinstance(error, HostError) else "the agent's log has the details"
        message = error.message if isinstance(error, HostError) else f"the ledger cannot be written: {error}"
        refused = Decision(False, (Refusal("", RefusalCode.NOT_DURABLE, "", message, hint),))
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_result(refused)

    def _publish(self, done: Step) -> None:
        if done or done.effects:
            for callback in tuple(self._callbacks):
                try:
                    callback(self.ledger, done.effects)
                except Exception:
                    _log.exception("a subscriber of the ledger failed")
