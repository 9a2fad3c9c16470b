"""Run the ledger of an agent: take events one at a time, and answer when the result is on disk.

Requests that wait at the same time share one fsync (group commit), which runs in a thread so that the loop goes on. A
step is durable if it makes or ends a hold or moves a device. What evidence says about a hold (last seen, absences) goes
to disk with the next durable step: a new agent gathers it again, and a hold whose evidence is lost only lasts longer.
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
from drabridge.ledger.entries import ClaimRef, Ledger
from drabridge.ledger.events import Event, RecordLost
from drabridge.ledger.lock import LedgerLockedError
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.store import LoadResult, Store
from drabridge.system.io_thread import IoThread, Job

_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.001  # how long the loop waits for a write; an fsync takes 0.02 to 0.2 ms on a data-centre SSD
BURST_SECONDS = 0.0003  # requests that come together arrive within this time of each other
RETRY_SECONDS = 0.1  # between two tries to apply what must be applied
HANGS_SECONDS = 3.0  # an overloaded disk answers within this time; kubelet gives up on an Allocate after 5 s
CLOSE_SECONDS = 1.0  # part of the 3 s in which SIGTERM must end the agent

Callback = Callable[[Ledger, tuple[Effect, ...]], None]
"""Called on the loop with the ledger and the effects, after each step that changed something or has effects, and when
the ledger service's ``health`` changes."""


class StoreHealth(Struct, frozen=True):
    """Whether the ledger can be written. While it cannot, nothing is granted, and every request tries again."""

    ok: bool = True
    error: str = ""
    since: float = 0.0
    lost: bool = False  # another agent has the ledger, and what this process knows is out of date


class PendingStep(Struct, frozen=True, eq=False):
    """A step that was taken in memory. ``answer`` is done once the step is on disk, or the disk has failed.

    ``at_once``: the disk is quick and is writing the step now. The caller can use the time until it calls
    :meth:`LedgerService.settle` for something that is harmless if the write fails.
    """

    result: Step
    after: Ledger
    answer: asyncio.Future[Decision]
    at_once: bool = False


class _Batch(Struct, frozen=True):
    """Steps that are answered together."""

    waiting: list[PendingStep]
    after: Ledger
    unwritten: set[str]  # devices whose evidence is left to be written later
    writing: Job[None] | None  # None: none of the steps is durable
    began: float


class LedgerService:
    """Owns the ledger at run time. Use from one loop only; :meth:`close` ends it.

    ``ledger`` is what is on disk (evidence aside); offers are computed from it. ``head`` also has the steps that wait
    for the disk: use it where no holder may be missed. ``loaded`` says what was found at the start. Devices of a
    damaged ledger are already quarantined then, as ``ledger`` shows.
    """

    def __init__(self, store: Store, policy: LedgerPolicy | None = None, now: Callable[[], float] = time) -> None:
        self.policy = policy or LedgerPolicy()
        self.now = now
        self._store = store
        self.loaded: LoadResult = store.load()
        self.ledger = self.loaded.ledger
        self._startup_effects: tuple[Effect, ...] = ()  # told to the first subscriber
        if self.loaded.doubtful:
            result = step(self.ledger, RecordLost(now(), reason=self.loaded.message), self.policy)
            self.ledger = result.applied_to(self.ledger)
            self._startup_effects = tuple(effect for effect in result.effects if isinstance(effect, Notify))
        self.health = StoreHealth()
        try:
            store.rewrite(self.ledger)
        except LedgerLockedError:
            raise
        except HostError as error:  # start nevertheless: an agent that grants nothing can still say why
            self._set_unhealthy(str(error))
        self.head = self.ledger
        self._queue: list[PendingStep] = []
        self._unwritten: set[str] = set()  # devices whose newest evidence is not on disk
        self._begun: _Batch | None = None  # what the disk is writing, while no task waits for it yet
        self._flusher: asyncio.Task[None] | None = None
        self._callbacks: list[Callback] = []
        self._disk_is_quick = True  # whether its last write was quick
        self._written_at = float("-inf")
        self._io = IoThread("ledger")

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` at every change. Return the function that ends the subscription.

        The first subscriber is called at once if the start found something to report.
        """
        self._callbacks.append(callback)
        if self._startup_effects:
            callback(self.ledger, self._startup_effects)
            self._startup_effects = ()
        return lambda: self._callbacks.remove(callback)

    async def apply(self, event: Event) -> Decision:
        """Take one step and return its decision once it is durable; if the write fails, the step is undone and refused.

        The step goes on if the caller is cancelled: what kubelet asked for may be on disk already.
        """
        pending = self.submit(event)
        return self.settle(pending) or await pending.answer

    async def apply_until_accepted(self, event: Event) -> None:
        """Repeat :meth:`apply` until the event is accepted: it has happened, even if the disk fails for a while."""
        while not (await self.apply(event)).accepted:
            await asyncio.sleep(RETRY_SECONDS)

    def submit(self, event: Event) -> PendingStep:
        """Take one step and begin to write it, for a caller that has something else to do meanwhile."""
        return self._take(step(self.head, event, self.policy))

    def settle(self, pending: PendingStep) -> Decision | None:
        """Return the decision if it is there, or if a quick disk gives it within PATIENCE_SECONDS; else None.

        Waiting here is quicker than turns of the loop. A disk that became slow, or hangs, blocks the loop only once.
        """
        if (batch := self._begun) is not None and pending in batch.waiting:
            self._begun = None
            if batch.writing is None or batch.writing.over(PATIENCE_SECONDS):
                self._finish_batch(batch)
            else:
                self._disk_is_quick = False
                self._begin_flush(batch)
        return pending.answer.result() if pending.answer.done() else None

    def report_refusal(self, side: Side, decision: Decision, claim: ClaimRef | None = None) -> None:
        """Tell subscribers of a refusal, for a caller that tried several times.

        A ledger that cannot be written is not reported here; :attr:`health` tells that.
        """
        if refused := [one for one in decision.refusals if one.code is not RefusalCode.NOT_DURABLE]:
            self._notify(refusal_effects(side, refused, claim))

    def retry_write(self) -> None:
        """Try again to write a ledger that could not be written, although there is no request.

        This does not wait for the disk; subscribers are told when the write succeeds.
        """
        if not self.health.ok and self._flusher is None and self._begun is None:
            self._take(Step(ACCEPTED, durable=True))

    def _take(self, result: Step) -> PendingStep:
        loop = asyncio.get_running_loop()
        self.head = result.applied_to(self.head)
        is_idle = self._flusher is None and self._begun is None and not self._queue
        if is_idle and not result.durable:
            self.ledger = self.head
            self._unwritten.update(entry.name for entry in result.changes)
            pending = PendingStep(result, self.head, loop.create_future())
            pending.answer.set_result(result.decision)
            self._publish(result)
            return pending
        at_once = is_idle and self._is_lone_request()
        pending = PendingStep(result, self.head, loop.create_future(), at_once)
        self._queue.append(pending)
        if at_once:
            self._begun = self._start_batch()
        loop.call_soon(self._go_on)
        return pending

    def _go_on(self) -> None:
        """Finish in the background the write that no caller has settled."""
        begun, self._begun = self._begun, None
        if self._flusher is None and (begun or self._queue):
            self._begin_flush(begun)

    def _begin_flush(self, batch: _Batch | None) -> None:
        self._flusher = asyncio.create_task(self._flush(batch), name="ledger-flush")

    async def close(self, last: Callable[[], None] = lambda: None) -> None:
        """Finish the waiting steps, write the remaining evidence, run ``last`` under the lock, and close the store.

        If the disk still hangs after CLOSE_SECONDS, this gives up: steps that were not answered were not granted. Then
        ``last`` does not run, and the store stays open until the process ends.
        """
        deadline = monotonic() + CLOSE_SECONDS
        self._go_on()
        while self._flusher is not None:
            finished, _ = await asyncio.wait([self._flusher], timeout=max(0.0, deadline - monotonic()))
            if not finished:
                _log.error("ledger not fully written", extra={"reason": "the disk does not answer"})
                self._io.stop()
                return
        write: Job[None] | None = None
        if self._unwritten and self.health.ok:
            write = self._io.submit(lambda: self._store.append(self.ledger, self._unwritten))
            while not write.over() and monotonic() < deadline:
                await asyncio.sleep(PATIENCE_SECONDS)
            if not write.over():
                _log.error("last evidence not written to the ledger", extra={"reason": "the disk does not answer"})
                self._io.stop()
                return
        try:
            if write is not None:
                write.result()
        finally:
            self._io.stop()
            try:
                last()
            finally:
                self._store.close()

    def _start_batch(self) -> _Batch:
        """Hand everything that waits to the thread."""
        began = monotonic()
        waiting, self._queue = self._queue, []
        after = waiting[-1].after
        names = self._unwritten.union(entry.name for one in waiting for entry in one.result.changes)
        removed = {name for one in waiting for name in one.result.removed if name not in after.entries}
        if not any(one.result.durable for one in waiting):
            return _Batch(waiting, after, names, None, began)
        try:
            writing = self._io.submit(lambda: self._store.append(after, names, removed))
        except RuntimeError as error:  # closed already: a task that goes on after the agent's end is refused
            writing = Job.failed(HostError(f"the ledger is closed: {error}"))
        return _Batch(waiting, after, set(), writing, began)

    def _is_lone_request(self) -> bool:
        """Whether to write at once: the disk is quick, and this is not one of several requests of a burst.

        The first request of a burst is written at once, too; the others go to the disk together.
        """
        return self._disk_is_quick and monotonic() - self._written_at >= BURST_SECONDS

    async def _flush(self, batch: _Batch | None) -> None:
        """Write batch after batch until no step waits."""
        try:
            while batch or self._queue:
                batch = batch or self._start_batch()
                if batch.writing is not None:
                    if not batch.writing.over():
                        await self._wait_for_disk()
                    self._disk_is_quick = monotonic() - batch.began < PATIENCE_SECONDS
                self._finish_batch(batch)
                batch = None
        finally:
            self._flusher = None

    async def _wait_for_disk(self) -> None:
        """Wait until the thread is done; after HANGS_SECONDS report once that the disk does not answer."""
        done = asyncio.create_task(self._io.wait_all())
        await asyncio.wait([done], timeout=HANGS_SECONDS)
        if not done.done():
            self._set_unhealthy(
                f"the ledger's disk is silent for {HANGS_SECONDS:g} s; nothing is granted until it answers"
            )
            self._notify(())
        await done

    def _set_unhealthy(self, reason: str, cause: BaseException | None = None) -> None:
        if self.health.ok:
            self.health = StoreHealth(False, reason, self.now())
            _log.error("ledger not writable", extra={"reason": reason}, exc_info=cause)

    def _finish_batch(self, batch: _Batch) -> None:
        """Answer everybody in the batch, as the disk says."""
        self._written_at = monotonic()
        error = batch.writing.error if batch.writing is not None else None
        if error is not None:
            self._refuse(batch.waiting, error)
            return
        self.ledger, self._unwritten = batch.after, batch.unwritten
        for waiting in batch.waiting:
            if not waiting.answer.done():
                waiting.answer.set_result(waiting.result.decision)
        if batch.writing is not None and not self.health.ok:
            self.health = StoreHealth()
            _log.info("ledger writable again")
            self._notify(())
        for waiting in batch.waiting:
            self._publish(waiting.result)

    def _refuse(self, batch: list[PendingStep], error: BaseException) -> None:
        """Refuse everybody who waits, and put the ledger back to what it was."""
        known, is_news = isinstance(error, HostError), self.health.ok
        self._set_unhealthy(str(error) if known else f"the ledger cannot be written: {error}", None if known else error)
        if isinstance(error, LedgerLockedError) and not self.health.lost:
            self.health, is_news = replace(self.health, lost=True), True
        batch, self._queue = batch + self._queue, []
        self.head = self.ledger
        hint = error.hint if isinstance(error, HostError) else "the agent's log has the details"
        message = error.message if isinstance(error, HostError) else f"the ledger cannot be written: {error}"
        refused = Decision(False, (Refusal("", RefusalCode.NOT_DURABLE, message, hint),))
        for waiting in batch:
            if not waiting.answer.done():
                waiting.answer.set_result(refused)
        if is_news:
            self._notify(())

    def _publish(self, result: Step) -> None:
        if result or result.effects:
            self._notify(result.effects)

    def _notify(self, effects: tuple[Effect, ...]) -> None:
        for callback in tuple(self._callbacks):
            try:
                callback(self.ledger, effects)
            except Exception:
                _log.exception("subscriber of the ledger failed")
