"""What the agent does, seen from the ledger: it tells others what it offers, weighs evidence, moves lanes, starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product

from drabridge.ledger import events as ev
from drabridge.ledger.model import ClaimRef, Lane, PodRef
from tests.ledger.claims import uses
from tests.ledger.ledgers import Ledgers
from tests.ledger.rules import Outcomes, Rule, happens, helps, stage, where
from tests.ledger.states import DEVICES, NOW, POD, UIDS, Gathered, P, State, bits, names

UP = where("up", lambda state: state.up)
DOWN = where("up", lambda state: not state.up)
BLANK = Gathered(0, 0, 0, 0, 0, 0, False, True)


def _shown(mask: int) -> Mapping[str, tuple[PodRef, ...]]:
    return {DEVICES[device]: POD for device in bits(mask)}


class Agent:
    """The rules of an agent around the ledger."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.ledgers, self.config = ledgers, ledgers.config

    def rules(self) -> Iterator[Rule]:
        """All of them."""
        pods = " ".join(f"pod{index}" for index in range(self.config.pods))
        claims = " ".join(f"claim{index}" for index in range(self.config.claims))
        look = stage(f"{pods} known gathered", self.look)
        yield helps(DOWN, look, stage(f"ledger gathered {claims}", self.start))
        yield helps(UP, where("noticed", lambda state: not state.noticed), stage("ledger", self.subscribe))
        yield helps(UP, where("noticed", lambda state: state.noticed), stage("healthy ledger", self.list_to_kubelet))
        yield helps(UP, stage("api ledger scheduler", self.publish))
        gather = (UP, where("gathered", lambda state: state.gathered is None), look)
        answered = stage(f"gathered {claims}", self.look_at_claims), stage("gathered healthy api", self.look_at_offers)
        partitioned = (stage("gathered healthy", self.look_at_kubelet),)
        judge = (
            where("gathered", lambda state: state.gathered is not None),
            stage("gathered ledger", self.judge),
            stage("gathered ledger", self.acknowledge),
        )
        if self.config.late_evidence:
            yield helps(*gather, *answered)
            yield helps(UP, *judge)
        else:
            yield helps(*gather, *answered, *judge)
            yield happens(*gather, *partitioned, *judge)
        if self.config.moves:
            yield happens(UP, where("moves", lambda state: state.moves), stage("moves ledger", self.move))
        if "unplug" in self.config.kinds:
            yield helps(UP, stage("ledger", self.forget))

    # --- what others are told ---

    def subscribe(self, state: State) -> Outcomes:
        number, _ = self.ledgers.apply(state.ledger, ("subscribed",), lambda: ev.Subscribed(NOW))
        yield "kubelet subscribes", state._replace(ledger=number, noticed=True)

    def list_to_kubelet(self, state: State) -> Outcomes:
        legacy, _ = self.ledgers.offers(state.ledger)
        if state.healthy != legacy:
            yield f"kubelet gets the list: {names(legacy)}", state._replace(healthy=legacy)

    def publish(self, state: State) -> Outcomes:
        _, dra = self.ledgers.offers(state.ledger)
        if state.api != dra:
            after = state._replace(api=dra, scheduler=state.scheduler | dra)
            yield f"the slices are published: {names(dra)}", after

    # --- evidence ---

    def look(self, state: State) -> Outcomes:
        """What kubelet, the disk and the processes would show now."""
        listed = checkpoint = opened = 0
        unaccounted = False
        for phase, device in state.pods:
            if phase == P.RUN and state.known:
                listed |= 1 << device
            if phase in (P.INIT, P.RUN):
                checkpoint |= 1 << device
            if phase in (P.INIT, P.RUN, P.ZOMBIE):
                opened |= 1 << device
            if phase in (P.CHOSEN, P.REPLIED):
                unaccounted = True
            elif phase == P.INIT or (phase == P.RUN and not state.known):
                unaccounted |= not self.config.checkpoint
        seen = BLANK._replace(
            listed=listed,
            checkpoint=checkpoint if self.config.checkpoint else 0,
            opened=opened if self.config.probe else 0,
            unaccounted=unaccounted,
        )
        yield "", state._replace(gathered=seen)

    def look_at_claims(self, state: State) -> Outcomes:
        """What the API server shows of claims."""
        assert state.gathered is not None
        claimed = 0
        for claim in state.claims:
            if claim.api == 1:
                claimed |= claim.devices
        yield "", state._replace(gathered=state.gathered._replace(claimed=claimed))

    def look_at_offers(self, state: State) -> Outcomes:
        """What kubelet and the API server show of the offers."""
        assert state.gathered is not None
        seen = state.gathered._replace(healthy=state.healthy, api=state.api)
        yield f"the agent gathers evidence ({seen})" if self.config.late_evidence else "", state._replace(gathered=seen)

    def look_at_kubelet(self, state: State) -> Outcomes:
        """The API server does not answer."""
        assert state.gathered is not None
        alone = state.gathered._replace(healthy=state.healthy, unaccounted=False, cluster=False)
        yield (
            "the API server does not answer when the agent gathers evidence and applies it",
            state._replace(gathered=alone),
        )

    def judge(self, state: State) -> Outcomes:
        """Who has let go?"""
        seen = state.gathered
        assert seen is not None
        number, _ = self.ledgers.apply(
            state.ledger,
            ("observed", seen.listed, seen.checkpoint, seen.opened, seen.unaccounted, seen.cluster),
            partial(self._observed, seen),
        )
        rest = BLANK._replace(healthy=seen.healthy, api=seen.api, claimed=seen.claimed, cluster=seen.cluster)
        yield "the agent applies its evidence", state._replace(ledger=number, gathered=rest)

    def _observed(self, seen: Gathered) -> ev.Observed:
        return ev.Observed(
            NOW,
            0,
            _shown(seen.listed),
            ev.Checkpoint(_shown(seen.checkpoint)) if self.config.checkpoint else None,
            ({"r": ("ns/pod",)} if seen.unaccounted else {}) if seen.cluster else None,
            {name: bool(seen.opened >> bit & 1) for bit, name in enumerate(DEVICES)} if self.config.probe else None,
        )

    def acknowledge(self, state: State) -> Outcomes:
        """Which moves may go on?"""
        seen, number, apply = state.gathered, state.ledger, self.ledgers.apply
        assert seen is not None
        for bit, name in enumerate(DEVICES):
            entry = self.ledgers.ledgers[number].entries.get(name)
            if entry is None:
                continue
            if entry.lane is Lane.LEGACY_TO_DRA and not seen.healthy >> bit & 1:
                number, _ = apply(number, ("withdrawn", bit), partial(ev.Withdrawn, name, 0, NOW))
            elif entry.lane is Lane.DRA_TO_LEGACY and seen.cluster and not seen.api >> bit & 1:
                number, _ = apply(number, ("slice", bit), partial(ev.SliceWithdrawn, name, 0, NOW))
                if not seen.claimed >> bit & 1:
                    number, _ = apply(number, ("clear", bit), partial(ev.QuorumClear, name, 0, NOW))
        yield "", state._replace(ledger=number, gathered=None)

    # --- the operator, and devices that are gone ---

    def move(self, state: State) -> Outcomes:
        for bit, name in enumerate(DEVICES):
            for lane in (Lane.LEGACY, Lane.DRA):
                if name in self.ledgers.ledgers[state.ledger].entries:
                    number, _ = self.ledgers.apply(
                        state.ledger, ("lane", bit, lane), partial(ev.SetLane, name, lane, NOW)
                    )
                    if number != state.ledger:
                        moved = state._replace(ledger=number, moves=state.moves - 1)
                        yield f"the operator moves {name} to {lane}", moved

    def forget(self, state: State) -> Outcomes:
        for bit, name in enumerate(DEVICES):
            number, done = self.ledgers.apply(state.ledger, ("forget", bit), partial(ev.Forgotten, (name,), NOW))
            if done and number != state.ledger:
                yield f"the agent drops the id of {name}", state._replace(ledger=number)

    # --- the start ---

    def start(self, state: State) -> Outcomes:
        """The agent starts. Kubelet, its checkpoint and the API server answer now, or not at all."""
        seen = state.gathered
        assert seen is not None
        known = tuple(zip(UIDS, state.claims, strict=False))
        cdi = tuple((uid, claim.devices) for uid, claim in known if claim.cdi)
        api = tuple((uid, claim.devices) for uid, claim in known if claim.api == 1)
        for kubelet, cluster in product((True, False), repeat=2):
            listed = seen.listed if kubelet else None
            shown = api if cluster else None
            key = ("restarted", cdi, listed, seen.checkpoint, shown)
            number, _ = self.ledgers.apply(
                state.ledger, key, partial(self._restarted, cdi, listed, seen.checkpoint, shown)
            )
            claims = tuple(claim._replace(seen=claim.api if cluster else 0) for claim in state.claims)
            asked = " and ".join(name for name, on in (("kubelet", kubelet), ("the API server", cluster)) if on)
            yield (
                f"the agent starts (answered by {asked or 'nobody'})",
                state._replace(ledger=number, up=True, noticed=True, claims=claims, gathered=None),
            )

    def _restarted(
        self,
        cdi: tuple[tuple[str, int], ...],
        listed: int | None,
        checkpoint: int,
        api: tuple[tuple[str, int], ...] | None,
    ) -> ev.Restarted:
        return ev.Restarted(
            NOW,
            _allocations(cdi),
            None if listed is None else _shown(listed),
            ev.Checkpoint(_shown(checkpoint)) if self.config.checkpoint else None,
            None if api is None else _allocations(api),
        )


def _allocations(claims: tuple[tuple[str, int], ...]) -> tuple[ev.Allocation, ...]:
    return tuple(ev.Allocation(ClaimRef(uid), uses(mask)) for uid, mask in claims)
