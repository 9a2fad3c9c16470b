"""How a claim gets the lease of its devices: the agent reads it, asks ledger and kubelet, and sets a condition.

The scheduler waits for that, gives up when it is told to or has waited for long, and may allocate the claim again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drabridge.ledger import events as ev
from drabridge.ledger.entries import ClaimPhase, ClaimRef, Lane
from tests.ledger.search.ledgers import Ledgers
from tests.ledger.search.rules import Outcomes, Rule, Stage, ends, happens, helps, stage, where
from tests.ledger.search.states import DEVICES, NOW, UIDS, Claim, Config, Keeper, L, State, bits, names, with_claim


def uses(mask: int, *, lease: bool = False) -> tuple[ev.DeviceUse, ...]:
    """The devices of a mask, as a claim has them. ``lease``: it needs their lease."""
    return tuple(ev.DeviceUse(DEVICES[device], lease=lease) for device in bits(mask))


def changed(claim: Claim, config: Config) -> Claim:
    """The claim when somebody else changed it: what the agent read of it is old, and it hears of that soon or late."""
    return claim._replace(keeper=Keeper() if config.prompt else claim.keeper._replace(fresh=False))


class LeaseRules:
    """The rules of one claim's lease."""

    def __init__(self, ledgers: Ledgers, index: int) -> None:
        self.ledgers, self.config, self.index = ledgers, ledgers.config, index
        self.uid = UIDS[index]

    def rules(self) -> Iterator[Rule]:
        """All of them."""
        mine, up = f"claim{self.index}", where("up", lambda state: state.up)
        read, allocated = stage(mine, self.read), (self.at(L.READ), stage(f"{mine} ledger", self.allocated))
        waits, tell = self.at(L.WAITS), stage(mine, self.tell_at_once)
        grant, time_out = stage(f"{mine} ledger", self.grant), stage(f"{mine} ledger", self.time_out)
        if self.config.prompt:
            yield helps(up, read, *allocated, tell)
            yield helps(up, waits, grant, tell)
            yield happens(up, waits, time_out, tell)
        else:
            yield helps(up, read)
            yield helps(up, *allocated)
            yield helps(up, waits, grant)
            yield happens(up, waits, time_out)
            yield helps(up, self.at(L.LEASED), stage(mine, self.tell_leased))
            yield helps(up, self.at(L.DENIED), stage(f"{mine} ledger api", self.tell_denied))
        yield helps(where(mine, lambda state: self.of(state).told == 2), stage(mine, self.give_up))
        yield ends(where(mine, lambda state: self.of(state).waits), stage(mine, self.give_up))
        gone = where(mine, lambda state: self.of(state).api != 1)
        yield helps(up, gone, stage(f"{mine} ledger", self.ask))
        yield happens(up, stage(f"{mine} ledger", self.ask))

    def at(self, step: L) -> Stage:
        """Whether the agent is so far with the claim."""
        return where(f"claim{self.index}", lambda state: self.of(state).keeper.step == step)

    def of(self, state: State) -> Claim:
        return state.claims[self.index]

    def having(self, state: State, **fields: Any) -> State:
        return with_claim(state, self.index, self.of(state)._replace(**fields))

    def on(self, state: State, step: L) -> State:
        """The agent goes on with what it read; at the end it forgets that."""
        keeper = self.of(state).keeper._replace(step=step) if step else Keeper()
        return self.having(state, keeper=keeper)

    def uses(self, state: State, mask: int) -> tuple[ev.DeviceUse, ...]:
        """The devices of a mask; those of the DRA lane need no lease."""
        entries = self.ledgers.ledgers[state.ledger].entries
        need = [name in entries and entries[name].lane is not Lane.DRA for name in DEVICES]
        return tuple(use for bit in bits(mask) for use in uses(1 << bit, lease=need[bit]))

    # --- the agent ---

    def read(self, state: State) -> Outcomes:
        claim = self.of(state)
        if claim.waits and claim.keeper.step == L.NONE:
            keeper = Keeper(L.READ, claim.devices, True)
            yield f"the agent reads that {self.uid} has {names(claim.devices)}", self.having(state, keeper=keeper)

    def allocated(self, state: State) -> Outcomes:
        mask = self.of(state).keeper.devices
        number, accepted = self.ledgers.apply(
            state.ledger,
            ("allocated", self.uid, mask),
            lambda: ev.ClaimAllocated(ClaimRef(self.uid), self.uses(state, mask), NOW),
        )
        label = f"{self.uid} asks for {names(mask)}: {'it waits' if accepted else 'refused'}"
        after = self.on(state, L.WAITS)._replace(ledger=number)
        yield label, after if accepted else self.denied(after)

    def waits_for_kubelet(self, state: State) -> bool:
        holds = (entry.claim(self.uid) for entry in self.ledgers.ledgers[state.ledger].entries.values())
        return any(held is not None and held.phase is ClaimPhase.PENDING for held in holds)

    def grant(self, state: State) -> Outcomes:
        if self.waits_for_kubelet(state):
            return
        number, accepted = self.ledgers.apply(
            state.ledger, ("leased", self.uid), lambda: ev.LeaseGranted(ClaimRef(self.uid), NOW)
        )
        after = self.on(state, L.LEASED if accepted else L.NONE)._replace(ledger=number)
        yield f"the lease of {self.uid}: {'yes' if accepted else 'no'}", after

    def time_out(self, state: State) -> Outcomes:
        if self.waits_for_kubelet(state):
            yield f"kubelet takes too long for {self.uid}", self.denied(state)

    def denied(self, state: State) -> State:
        mask = self.of(state).keeper.devices
        number, accepted = self.ledgers.apply(
            state.ledger,
            ("denied", self.uid, mask),
            lambda: ev.LeaseDenied(ClaimRef(self.uid), self.uses(state, mask), NOW, "denied"),
        )
        return self.on(state, L.DENIED if accepted else L.NONE)._replace(ledger=number)

    def tell_leased(self, state: State) -> Outcomes:
        yield from self.tell(state, 1, f"{self.uid} is told that it is leased")

    def tell_denied(self, state: State) -> Outcomes:
        if self.config.told_early or state.api == self.ledgers.offers(state.ledger)[1]:
            yield from self.tell(state, 2, f"{self.uid} is told that it was denied")

    def tell_at_once(self, state: State) -> Outcomes:
        if told := {L.LEASED: 1, L.DENIED: 2}.get(L(self.of(state).keeper.step), 0):
            yield from self.tell(state, told, "")
        else:
            yield "", state

    def tell(self, state: State, told: int, label: str) -> Outcomes:
        """The API server takes the condition if the claim is as it was read; otherwise it is read again."""
        claim, after = self.of(state), self.on(state, L.NONE)
        if claim.keeper.fresh or (self.config.told_blindly and claim.waits):
            yield label, self.having(after, told=told)
        else:
            yield f"{label}, too late", after

    def ask(self, state: State) -> Outcomes:
        """The agent asks about a claim that the ledger knows: what does it still have here?"""
        claim = self.of(state)
        kept = claim.devices if claim.api == 1 else 0
        number, _ = self.ledgers.apply(
            state.ledger,
            ("deallocated", self.uid, kept),
            lambda: ev.ClaimDeallocated(self.uid, NOW, frozenset(DEVICES[device] for device in bits(kept))),
        )
        if number != state.ledger:
            yield f"the agent learns that {self.uid} has {names(kept)}", state._replace(ledger=number)

    # --- the scheduler ---

    def give_up(self, state: State) -> Outcomes:
        back = changed(self.of(state), self.config)._replace(api=0, devices=0, told=0)
        yield f"the scheduler gives {self.uid} up", with_claim(state, self.index, back)
