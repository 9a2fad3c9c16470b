"""What a claim goes through: a scheduler allocates it, the watch shows it, kubelet prepares and unprepares it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from drabridge.ledger import events as ev
from drabridge.ledger.entries import ClaimRef
from tests.ledger.search.leases import LeaseRules, changed, uses
from tests.ledger.search.ledgers import Ledgers
from tests.ledger.search.rules import Outcomes, Rule, ends, happens, helps, stage, where
from tests.ledger.search.states import GRACE, NOW, UIDS, Claim, K, State, names, with_claim


def claim_rules(ledgers: Ledgers) -> Iterator[Rule]:
    """The rules of every claim."""
    for index in range(ledgers.config.claims):
        yield from _Claim(ledgers, index).rules()


class _Claim:
    def __init__(self, ledgers: Ledgers, index: int) -> None:
        self.ledgers, self.config, self.index = ledgers, ledgers.config, index
        self.field, self.uid = f"claim{index}", UIDS[index]

    def rules(self) -> Iterator[Rule]:
        mine = self.field
        everyone = " ".join(f"claim{index}" for index in range(self.config.claims))
        shown = "ledger" if self.config.prompt else "scheduler"
        up = where("up", lambda state: state.up)
        to_prepare = where(mine, self.is_bound)
        to_unprepare = where(mine, lambda state: self.of(state).kubelet == K.STOPPED)
        yield ends(stage(mine, self.stop))
        yield ends(stage(mine, self.deallocate))
        yield helps(to_unprepare, up, stage(f"{mine} ledger", self.unprepare))
        if self.config.leases:
            yield from LeaseRules(self.ledgers, self.index).rules()
        else:
            yield helps(up, where(mine, lambda state: self.of(state).api), stage(f"{mine} ledger", self.watch))
        yield helps(to_prepare, up, stage(f"{mine} ledger", self.prepare))
        yield happens(where(mine, lambda state: not self.of(state).api), stage(f"{everyone} {shown}", self.schedule))
        fault = where("faults", lambda state: state.faults)
        if "crash" in self.config.kinds:
            yield happens(fault, to_prepare, up, stage(f"{mine} ledger faults", self.crash_in_prepare))
            yield happens(fault, to_unprepare, up, stage(f"{mine} ledger faults", self.crash_in_unprepare))
        if "force" in self.config.kinds:
            yield happens(fault, stage(f"{mine} faults", self.force_delete))
        if self.config.grace:
            yield happens(up, where(mine, self.forced), stage(f"{mine} ledger", self.unprepare_early))
            yield helps(where(mine, lambda state: self.of(state).kubelet == K.ZOMBIE), stage(mine, self.die))
            yield helps(up, stage("ledger", self.end_lingering))

    def of(self, state: State) -> Claim:
        return state.claims[self.index]

    def is_bound(self, state: State) -> bool:
        """Whether kubelet has a pod with the claim, and has not prepared it."""
        claim = self.of(state)
        may_be = claim.told == 1 or not self.config.leases or self.config.bound_early
        return claim.kubelet <= K.TRIED and claim.api == 1 and may_be

    def having(self, state: State, claim: Claim) -> State:
        return with_claim(state, self.index, claim)

    # --- the scheduler and the API ---

    def schedule(self, state: State) -> Outcomes:
        allocated = 0
        for claim in state.claims:
            if claim.api == 1:
                allocated |= claim.devices
        offered = self.ledgers.offers(state.ledger)[1] if self.config.prompt else state.scheduler
        for mask in (1, 2, 3) if self.config.whole_claims else (1, 2):
            if mask & offered == mask and not mask & allocated:
                chosen = changed(self.of(state), self.config)._replace(api=1, devices=mask)
                yield f"the scheduler gives {names(mask)} to {self.uid}", self.having(state, chosen)

    def deallocate(self, state: State) -> Outcomes:
        claim = self.of(state)
        if claim.api == 1 and claim.kubelet in (K.NEW, K.STOPPED, K.DONE):
            over = changed(claim, self.config)._replace(api=2, told=0)
            if claim.kubelet != K.STOPPED:  # nobody asks any more which devices it had
                over = over._replace(devices=0)
            yield f"{self.uid} is deallocated", self.having(state, over)

    def force_delete(self, state: State) -> Outcomes:
        claim = self.of(state)
        if claim.api == 1 and claim.kubelet == K.RUNNING:
            gone = self.having(state, changed(claim, self.config)._replace(api=2))._replace(faults=state.faults - 1)
            yield f"FAULT {self.uid}'s pod is force-deleted and {self.uid} deallocated", gone

    def watch(self, state: State) -> Outcomes:
        """The watch is in order, may be late by any time, and may be lost and listed again (it then skips)."""
        claim = self.of(state)
        recorded = self.uid in self.ledgers.ledgers[state.ledger].by_claim
        if claim.seen == 0 or (claim.seen == 1 and claim.api == 1 and not recorded):
            number, accepted = self.ledgers.apply(
                state.ledger,
                ("allocated", self.uid, claim.devices),
                lambda: ev.ClaimAllocated(ClaimRef(self.uid), uses(claim.devices), NOW),
            )
            if claim.seen == 0 or number != state.ledger:
                after = self.having(state, claim._replace(seen=1))._replace(ledger=number)
                yield f"the watch shows {self.uid} allocated: {'granted' if accepted else 'not granted'}", after
        if claim.api == 2 and (claim.seen < 2 or recorded):  # a recorded claim is asked about until it is gone
            number, _ = self.ledgers.apply(
                state.ledger, ("deallocated", self.uid), lambda: ev.ClaimDeallocated(self.uid, NOW)
            )
            if claim.seen < 2 or number != state.ledger:
                after = self.having(state, claim._replace(seen=2))._replace(ledger=number)
                yield f"the watch shows {self.uid} deallocated", after

    # --- kubelet ---

    def stop(self, state: State) -> Outcomes:
        claim = self.of(state)
        if claim.kubelet in (K.TRIED, K.RUNNING):
            yield f"{self.uid}'s pod stops", self.having(state, claim._replace(kubelet=K.STOPPED))

    def prepare_of(self, mask: int) -> Callable[[], ev.Prepare]:
        return lambda: ev.Prepare(ClaimRef(self.uid), uses(mask, lease=self.config.leases), NOW)

    def prepared(self, state: State) -> tuple[int, bool]:
        """What the real step makes of Prepare, and whether it says yes."""
        mask = self.of(state).devices
        return self.ledgers.apply(state.ledger, ("prepare", self.uid, mask), self.prepare_of(mask))

    def prepare(self, state: State) -> Outcomes:
        number, accepted = self.prepared(state)
        tried = self.of(state)._replace(kubelet=K.TRIED)
        done = tried._replace(kubelet=K.RUNNING, cdi=True) if accepted else tried
        yield f"Prepare {self.uid}: {'yes' if accepted else 'no'}", self.having(state, done)._replace(ledger=number)

    def crash_in_prepare(self, state: State) -> Outcomes:
        number, accepted = self.prepared(state)
        if not accepted:
            return
        tried = self.of(state)._replace(kubelet=K.TRIED)
        if self.config.reply_before_durable:
            told = self.having(state, tried._replace(kubelet=K.RUNNING, cdi=True))
            yield f"Prepare {self.uid}: yes, FAULT crash before it is durable", self.ledgers.down(told)
        early = self.having(state, tried)
        yield f"Prepare {self.uid}: FAULT crash before it is durable", self.ledgers.down(early)
        durable = early._replace(ledger=number)
        yield f"Prepare {self.uid}: FAULT crash before the CDI file", self.ledgers.down(durable)
        written = self.having(durable, tried._replace(cdi=True))
        yield f"Prepare {self.uid}: FAULT crash before the reply", self.ledgers.down(written)

    def unprepared(self, state: State) -> int:
        """What the real step makes of Unprepare."""
        return self.ledgers.apply(state.ledger, ("unprepare", self.uid), lambda: ev.Unprepare(self.uid, NOW))[0]

    def unprepare(self, state: State) -> Outcomes:
        claim = self.of(state)
        devices = claim.devices if claim.api == 1 else 0
        done = self.having(state, claim._replace(kubelet=K.DONE, cdi=False, devices=devices))
        yield f"Unprepare {self.uid}", done._replace(ledger=self.unprepared(state))

    def forced(self, state: State) -> bool:
        return self.of(state).api == 2 and self.of(state).kubelet == K.RUNNING

    def unprepare_early(self, state: State) -> Outcomes:
        """Kubelet's reconcileLoop: the pod is gone, its containers are not, and nobody saw it end."""
        done = self.having(state, self.of(state)._replace(kubelet=K.ZOMBIE, cdi=False))
        number, _ = self.ledgers.apply(
            state.ledger, ("lingers", self.uid), lambda: ev.Unprepare(self.uid, NOW, max(GRACE.values()))
        )
        yield f"Unprepare {self.uid} while its container runs", done._replace(ledger=number)

    def die(self, state: State) -> Outcomes:
        yield f"{self.uid}'s processes die", self.having(state, self.of(state)._replace(kubelet=K.DONE))

    def end_lingering(self, state: State) -> Outcomes:
        entries = self.ledgers.ledgers[state.ledger].entries.values()
        if any(
            held.lingers and held.lingers_until <= NOW and held.claim.uid == self.uid
            for e in entries
            for held in e.claims
        ):
            yield f"the time of {self.uid}'s processes is over", state._replace(ledger=self.unprepared(state))

    def crash_in_unprepare(self, state: State) -> Outcomes:
        again = self.having(state, self.of(state)._replace(cdi=False))
        yield f"Unprepare {self.uid}: FAULT crash before it is durable", self.ledgers.down(again)
        durable = again._replace(ledger=self.unprepared(state))
        yield f"Unprepare {self.uid}: FAULT crash before the reply", self.ledgers.down(durable)
