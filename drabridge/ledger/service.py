"""The ledger of a running agent: events in, one at a time; answers out, once they are on disk.

Several requests that wait at once share one fsync (group commit), which runs in a thread so that the loop goes on.
What makes or ends a hold or moves a device is durable; what evidence says about a hold (last seen, absences) goes to
disk with the next commit: a new agent gathers it anew, and a hold whose evidence is lost only lasts longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, time

from msgspec import Struct
from msgspec.structs import replace

from drabridge.errors import HostError
from drabridge.ledger.apply_event import refusal_effects, step
from drabridge.ledger.effects import ACCEPTED, Decision, Effect, Notify, Refusal, RefusalCode, Side, Step
from drabridge.ledger.events import Event, RecordLost
from drabridge.ledger.lock import LedgerLockedError
from drabridge.ledger.model import ClaimRef, Ledger, LedgerPolicy
from drabridge.ledger.store import LoadResult, Store
from drabridge.system.io_thread import IoThread, Job

_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.001  # an fsync of a data-centre SSD takes 0.02 to 0.2 ms, of others 1 to 10; noticed by nobody
BURST_SECONDS = 0.0003  # requests that come together are taken one after the other within this time
INSIST_SECONDS = 0.1  # what need not be on disk is taken as soon as no write is under way
HANGS_SECONDS = 3.0  # an overloaded disk answers within it; an Allocate is given up after 5 s
CLOSE_SECONDS = 1.0  # of the 3 s in which SIGTERM is promised to end the agent

Callback = Callable[[Ledger, tuple[Effect, ...]], None]
"""Called on the loop with the ledger and the effects, after each step that changed something or has effects, and when
the ledger service's ``health`` changes."""


class StoreHealth(Struct, frozen=True):
    """Whether the ledger can be written. While it cannot, nothing is granted; every request tries again.

    ``lost``: another agent has it, and what is known here is of before.
    """

    ok: bool = True
    error: str = ""
    since: float = 0.0
    lost: bool = False


class _Waiting(Struct, frozen=True):
    """A step that was taken in memory and waits for the disk."""

    done: Step
    after: Ledger
    answer: asyncio.Future[Decision]


class _Batch(Struct, frozen=True):
    """Steps that go to the disk together, or need not (``writing`` is None); ``names`` stay to be written later."""

    waiting: list[_Waiting]
    after: Ledger
    names: set[str]
    writing: Job[None] | None
    began: float


class LedgerService:
    """Owns the ledger at run time. Use from one loop only; :meth:`close` ends it.

    ``ledger`` is what is on disk (evidence aside); offers are computed from it. ``head`` has the steps that wait for
    the disk as well: who must not miss a holder looks there. ``loaded`` says what the start found: a ledger that was
    damaged has been quarantined by then, visibly.
    """

    def __init__(self, store: Store, policy: LedgerPolicy | None = None, now: Callable[[], float] = time) -> None:
        self.policy = policy or LedgerPolicy()
        self.now = now
        self._store = store
        self.loaded: LoadResult = store.load()
        self.ledger = self.loaded.ledger
        self._untold: tuple[Effect, ...] = ()  # what the start has to say, before anybody listens
        if self.loaded.doubtful:
            done = step(self.ledger, RecordLost(now(), reason=self.loaded.message), self.policy)
            self.ledger = done.applied_to(self.ledger)
            self._untold = tuple(effect for effect in done.effects if isinstance(effect, Notify))
        self.health = StoreHealth()
        try:
            store.rewrite(self.ledger)
        except LedgerLockedError:
            raise
        except HostError as error:  # an agent that cannot start cannot say why; this one grants nothing and says it
            self.health = StoreHealth(False, str(error), now())
            _log.error("%s", error)
        self.head = self.ledger
        self._queue: list[_Waiting] = []
        self._lazy: set[str] = set()
        self._flusher: asyncio.Task[None] | None = None
        self._callbacks: list[Callback] = []
        self._quick = True  # how the disk was the last time
        self._written_at = float("-inf")
        self._worker = IoThread("ledger")

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Be told of every change, the first one also of what the start found; returns the way to end it."""
        self._callbacks.append(callback)
        if self._untold:
            callback(self.ledger, self._untold)
            self._untold = ()
        return lambda: self._callbacks.remove(callback)

    async def apply(self, event: Event) -> Decision:
        """Take one step; returns when it is durable. A step that cannot be made durable is refused and undone.

        The step goes on if the caller is cancelled: what kubelet asked for may be on disk already.
        """
        return await self.submit(event)

    async def apply_until_accepted(self, event: Event) -> None:
        """As :meth:`apply`, of what has happened, whatever the disk does: again until it is taken."""
        while not (await self.apply(event)).accepted:
            await asyncio.sleep(INSIST_SECONDS)

    def submit(self, event: Event) -> asyncio.Future[Decision]:
        """As :meth:`apply`; with a quick disk the future is done on return."""
        return self._take(step(self.head, event, self.policy))

    def report_refusal(self, side: Side, decision: Decision, claim: ClaimRef | None = None) -> None:
        """Tell subscribers that a caller was refused. For who tries several times before it answers: an attempt that is
        refused inside the call concerns nobody else. A ledger that cannot be written is told by :attr:`health`.
        """
        if refusals := [refused for refused in decision.refusals if refused.code is not RefusalCode.NOT_DURABLE]:
            self._tell(refusal_effects(side, refusals, claim))

    def retry_write(self) -> None:
        """While the ledger cannot be written: try again, though nobody asks for anything. Does not wait for the disk;
        subscribers hear of it when it is well again.
        """
        if not self.health.ok and self._flusher is None:
            self._take(Step(ACCEPTED, durable=True))

    def _take(self, done: Step) -> asyncio.Future[Decision]:
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self.head = done.applied_to(self.head)
        if self._flusher is None and not done.durable:
            self.ledger = self.head
            self._lazy.update(entry.name for entry in done.changes)
            answer.set_result(done.decision)
            self._publish(done)
            return answer
        self._queue.append(_Waiting(done, self.head, answer))
        if self._flusher is None:
            unfinished = self._write_at_once() if self._calm() else None
            # Who was told of this step may have taken another by now, and begun to write it.
            if self._flusher is None and (unfinished or self._queue):
                self._flusher = asyncio.create_task(self._flush(unfinished), name="ledger-flush")
        return answer

    async def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Finish what waits, write the evidence that is not on disk, let the store go. A disk that hangs is left to it:
        what was not answered was not promised. ``last`` runs when nothing is written any more, under the lock.
        """
        deadline = monotonic() + CLOSE_SECONDS
        while self._flusher is not None:
            done, _ = await asyncio.wait([self._flusher], timeout=max(0.0, deadline - monotonic()))
            if not done:
                _log.error("the ledger's last writes are not on the disk, which does not answer")
                self._worker.stop()
                return
        write: Job[None] | None = None
        if self._lazy and self.health.ok:
            write = self._worker.submit(lambda: self._store.append(self.ledger, self._lazy))
            while not write.over() and monotonic() < deadline:
                await asyncio.sleep(PATIENCE_SECONDS)
            if not write.over():
                _log.error("the last evidence is not in the ledger, whose disk does not answer")
                self._worker.stop()
                return
        try:
            if write is not None:
                write.result()
        finally:
            self._worker.stop()
            try:
                last()
            finally:
                self._store.close()

    def _begin(self) -> _Batch:
        """Hand everything that waits to the thread."""
        began = monotonic()
        waiting, self._queue = self._queue, []
        after = waiting[-1].after
        names = self._lazy.union(entry.name for one in waiting for entry in one.done.changes)
        removed = {name for one in waiting for name in one.done.removed if name not in after.entries}
        if not any(one.done.durable for one in waiting):
            return _Batch(waiting, after, names, None, began)
        try:
            writing = self._worker.submit(lambda: self._store.append(after, names, removed))
        except RuntimeError as error:  # closed: a task that outlived the agent's end is refused like everybody else
            writing = Job.failed(HostError(f"the ledger is closed: {error}"))
        return _Batch(waiting, after, set(), writing, began)

    def _calm(self) -> bool:
        """Whether a lone request meets a quick disk: the first of a burst does, the others go to the disk together."""
        return self._quick and monotonic() - self._written_at >= BURST_SECONDS

    def _write_at_once(self) -> _Batch | None:
        """Wait for the disk on the spot: turns of the loop take longer than a quick one does. Returns what is not
        finished: a disk that has become slow, or hangs, holds the loop for PATIENCE_SECONDS, once.
        """
        batch = self._begin()
        if batch.writing is not None and not batch.writing.over(PATIENCE_SECONDS):
            self._quick = False
            return batch
        self._end(batch)
        return None

    async def _flush(self, batch: _Batch | None) -> None:
        """Write batch after batch until nothing waits."""
        try:
            while batch or self._queue:
                batch = batch or self._begin()
                if batch.writing is not None:
                    if not batch.writing.over():
                        await self._wait()
                    self._quick = monotonic() - batch.began < PATIENCE_SECONDS
                self._end(batch)
                batch = None
        finally:
            self._flusher = None

    async def _wait(self) -> None:
        """Until the worker is done. A disk that does not answer is said, once; whoever asks for it meanwhile waits."""
        done = asyncio.create_task(self._worker.wait_all())
        await asyncio.wait([done], timeout=HANGS_SECONDS)
        if not done.done():
            self._unwell(f"the ledger's disk is silent for {HANGS_SECONDS:g} s; nothing is granted until it answers")
            self._tell(())
        await done

    def _unwell(self, error: str, cause: BaseException | None = None) -> None:
        if self.health.ok:
            self.health = StoreHealth(False, error, self.now())
            _log.error("%s", error, exc_info=cause)

    def _end(self, batch: _Batch) -> None:
        """What the disk said: everybody in the batch is answered."""
        self._written_at = monotonic()
        error = batch.writing.error if batch.writing is not None else None
        if error is not None:
            self._undo(batch.waiting, error)
            return
        self.ledger, self._lazy = batch.after, batch.names
        for waiting in batch.waiting:
            if not waiting.answer.done():
                waiting.answer.set_result(waiting.done.decision)
        if batch.writing is not None and not self.health.ok:
            self.health = StoreHealth()
            _log.info("the ledger can be written again")
            self._tell(())
        for waiting in batch.waiting:
            self._publish(waiting.done)

    def _undo(self, batch: list[_Waiting], error: BaseException) -> None:
        """Fail closed: the ledger is what it was, and everybody who waits is refused."""
        known, news = isinstance(error, HostError), self.health.ok
        self._unwell(str(error) if known else f"the ledger cannot be written: {error}", None if known else error)
        if isinstance(error, LedgerLockedError) and not self.health.lost:
            self.health, news = replace(self.health, lost=True), True
        batch, self._queue = batch + self._queue, []
        self.head = self.ledger
        hint = error.hint if isinstance(error, HostError) else "the agent's log has the details"
        message = error.message if isinstance(error, HostError) else f"the ledger cannot be written: {error}"
        refused = Decision(False, (Refusal("", RefusalCode.NOT_DURABLE, "", message, hint),))
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_result(refused)
        if news:
            self._tell(())

    def _publish(self, done: Step) -> None:
        if done or done.effects:
            self._tell(done.effects)

    def _tell(self, effects: tuple[Effect, ...]) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback(self.ledger, effects)
            except Exception:
                _log.exception("a subscriber of the ledger failed")
