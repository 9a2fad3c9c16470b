"""What the agent does, seen from the ledger: it tells others what it offers, weighs evidence, moves lanes, starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from drabridge.ledger import events as ev
from drabridge.ledger import startup_events
from drabridge.ledger.entries import ClaimRef, Lane, Owner, WaitsFor
from drabridge.ledger.proofs import End
from tests.ledger.search.leases import uses
from tests.ledger.search.ledgers import WHY, Ledgers
from tests.ledger.search.rules import Outcomes, Rule, Stage, happens, helps, stage, where
from tests.ledger.search.states import (
    DEVICES,
    GRACE,
    NOW,
    POD,
    PODS,
    UIDS,
    USING,
    Claim,
    Gathered,
    K,
    Keeper,
    P,
    State,
    bits,
    names,
)

UP = where("up", lambda state: state.up)
DOWN = where("up", lambda state: not state.up)
Known = Collection[tuple[str, int]]  # UIDs of claims, with their devices
BLANK = Gathered(0, 0, 0, 0, 0, 0, None, False, (0, 0), 0, True)


def _in_list(claim: Claim) -> bool:
    """Whether kubelet, once it knows its pods, lists a container with the claim."""
    return claim.kubelet == K.RUNNING and claim.api == 1


def _shown(mask: int) -> ev.Pods:
    return {("r", DEVICES[device]): POD for device in bits(mask)}


class Agent:
    """The rules of an agent around the ledger."""

    def __init__(self, ledgers: Ledgers) -> None:
        self.ledgers, self.config = ledgers, ledgers.config

    def rules(self) -> Iterator[Rule]:
        """All of them."""
        pods = " ".join(f"pod{index}" for index in range(self.config.pods))
        claims = " ".join(f"claim{index}" for index in range(self.config.claims))
        look = stage(f"{pods} known gathered", self.look)
        shown = (stage(f"known gathered {claims}", self.look_at_containers),) if self.config.claims_shown else ()
        yield helps(DOWN, look, *shown, stage(f"ledger gathered {claims}", self.start))
        yield helps(UP, where("noticed", lambda state: not state.noticed), stage("ledger", self.subscribe))
        yield helps(UP, where("noticed", lambda state: state.noticed), stage("healthy ledger", self.list_to_kubelet))
        if not self.config.prompt:
            yield helps(UP, stage("api ledger scheduler", self.publish))
        gather = (UP, where("gathered", lambda state: state.gathered is None), look, *shown)
        offers = stage("gathered healthy api", self.look_at_offers)
        answered = stage(f"gathered {claims}", self.look_at_claims), offers
        partitioned = (stage("gathered healthy", self.look_at_kubelet),)
        judge = (
            where("gathered", lambda state: state.gathered is not None),
            stage("gathered ledger", self.judge),
            stage("gathered ledger", self.acknowledge),
        )
        if self.config.late_evidence:
            yield helps(*gather, *answered)
            yield helps(UP, *judge)
            unasked: tuple[Stage, ...] = (offers,)
        else:
            yield helps(*gather, *answered, *judge)
            yield happens(*gather, *partitioned, *judge)
            unasked = offers, *judge
        if self.config.files_lost:  # the API server tells of pods, and claims cannot be listed
            yield happens(*gather, *unasked)
        if self.config.moves:
            left = where("moves", lambda state: state.moves)
            yield happens(UP, left, stage("moves ledger", self.cordon if self.config.cordons else self.move))
        if self.config.cordons:
            yield happens(UP, stage("ledger", self.uncordon))
        if self.config.leases and Lane.DRA not in self.config.lanes:
            yield helps(UP, stage("ledger", self.share))
        if "unplug" in self.config.kinds:
            yield helps(UP, stage("ledger", self.forget))

    # --- what others are told ---

    def subscribe(self, state: State) -> Outcomes:
        number, _ = self.ledgers.apply(state.ledger, ("subscribed",), lambda: ev.KubeletStarted(NOW))
        yield "kubelet subscribes", state._replace(ledger=number, noticed=True)

    def list_to_kubelet(self, state: State) -> Outcomes:
        legacy, _ = self.ledgers.offers(state.ledger)
        if state.healthy != legacy:
            yield f"kubelet gets the list: {names(legacy)}", state._replace(healthy=legacy)

    def publish(self, state: State) -> Outcomes:
        _, dra = self.ledgers.offers(state.ledger)
        if state.api != dra:
            # What an old view makes the scheduler choose is refused a lease, as is what somebody took just now.
            after = state._replace(api=dra, scheduler=dra if self.config.leases else state.scheduler | dra)
            yield f"the slices are published: {names(dra)}", after

    # --- evidence ---

    def look(self, state: State) -> Outcomes:
        """What kubelet, the disk and the processes would show now."""
        listed = checkpoint = opened = reported = 0
        recorded, stale = [0] * len(DEVICES), [0] * len(DEVICES)
        unaccounted = False
        for index, (phase, device) in enumerate(state.pods):
            if self.config.proofs and phase in (P.INIT, P.RUN):
                recorded[device] |= 1 << index
            elif self.config.proofs and phase in (P.ENDED, P.ZOMBIE):
                stale[device] |= 1 << index
            if phase == P.ENDED:
                reported |= 1 << index
            if phase == P.RUN and state.known:
                listed |= 1 << device
            if phase in (P.INIT, P.RUN):
                checkpoint |= 1 << device
            if phase in USING:
                opened |= 1 << device
            if phase in (P.CHOSEN, P.REPLIED, P.SKIPPED):
                unaccounted = True
            elif phase == P.INIT or (phase == P.RUN and not state.known):
                unaccounted |= not self.config.checkpoint
        seen = BLANK._replace(
            listed=listed,
            checkpoint=checkpoint if self.config.checkpoint else 0,
            opened=opened if self.config.probe else 0,
            unaccounted=unaccounted,
            recorded=tuple(now or before for now, before in zip(recorded, stale, strict=True)),
            reported=reported,
        )
        yield "", state._replace(gathered=seen)
        if reported:  # the watch is late
            yield "", state._replace(gathered=seen._replace(reported=0))

    def look_at_containers(self, state: State) -> Outcomes:
        """What kubelet shows of claims: not of a pod that was force-deleted, nor of one that it does not know yet."""
        assert state.gathered is not None
        shown = 0
        for claim in state.claims:
            if _in_list(claim) and state.known:
                shown |= claim.devices
        yield "", state._replace(gathered=state.gathered._replace(shown=shown))

    def look_at_claims(self, state: State) -> Outcomes:
        """What the API server shows of claims."""
        assert state.gathered is not None
        allocated = tuple(claim.devices if claim.api == 1 else 0 for claim in state.claims)
        yield "", state._replace(gathered=state.gathered._replace(allocated=allocated))

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
        """Apply the gathered evidence: holds that it shows ended are released."""
        seen = state.gathered
        assert seen is not None
        entries = self.ledgers.ledgers[state.ledger].entries
        asked = any(entry.owner is Owner.QUARANTINE for entry in entries.values())
        told = seen if asked else seen._replace(shown=0, allocated=())
        number, _ = self.ledgers.apply(
            state.ledger, ("observed", told._replace(healthy=0, api=0)), partial(self._observed, told)
        )
        rest = BLANK._replace(healthy=seen.healthy, api=seen.api, allocated=seen.allocated, cluster=seen.cluster)
        yield "the agent applies its evidence", state._replace(ledger=number, gathered=rest)

    def _observed(self, seen: Gathered) -> ev.Observed:
        return ev.Observed(
            NOW,
            0,
            _shown(seen.listed),
            ev.CheckpointRead(_shown(seen.checkpoint)) if self.config.checkpoint else None,
            ({"r": ("ns/pod",)} if seen.unaccounted else {}) if seen.cluster else None,
            {name: bool(seen.opened >> bit & 1) for bit, name in enumerate(DEVICES)} if self.config.probe else None,
            {DEVICES[device]: (ClaimRef("some"),) for device in bits(seen.shown)},
            None if seen.allocated is None else _allocations(zip(UIDS, seen.allocated, strict=False)),
            grace=GRACE if self.config.grace and seen.cluster else {},
            ends={PODS[pod].uid: End.REPORTED for pod in bits(seen.reported)},
            recorded={
                ("r", DEVICES[device]): tuple(PODS[pod] for pod in bits(mask))
                for device, mask in enumerate(seen.recorded)
                if mask
            },
        )

    def acknowledge(self, state: State) -> Outcomes:
        """Apply acknowledgements: a device that the other side gave up goes on with its move."""
        seen, number, apply = state.gathered, state.ledger, self.ledgers.apply
        assert seen is not None
        for bit, name in enumerate(DEVICES):
            entry = self.ledgers.ledgers[number].entries.get(name)
            if entry is None:
                continue
            given_up = not seen.healthy >> bit & 1
            if entry.waits_for is WaitsFor.KUBELET and given_up:
                number, _ = apply(number, ("withdrawn", bit), partial(ev.WithdrawnFromKubelet, name, 0, NOW))
            elif entry.lane is Lane.DRA_TO_LEGACY and seen.cluster and not seen.api >> bit & 1:
                number, _ = apply(number, ("slice", bit), partial(ev.WithdrawnFromSlices, name, 0, NOW))
                if seen.allocated is not None and not any(mask >> bit & 1 for mask in seen.allocated):
                    number, _ = apply(number, ("clear", bit), partial(ev.NoClaimListed, name, 0, NOW))
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

    def cordon(self, state: State) -> Outcomes:
        cordoned = self.ledgers.cordoned(state.ledger)
        for name in sorted(self.ledgers.ledgers[state.ledger].entries.keys() - cordoned):
            number = self._cordoned(state.ledger, {*cordoned, name})
            yield f"the operator cordons {name}", state._replace(ledger=number, moves=state.moves - 1)

    def uncordon(self, state: State) -> Outcomes:
        cordoned = self.ledgers.cordoned(state.ledger)
        for name in sorted(cordoned):
            number = self._cordoned(state.ledger, cordoned.keys() - {name})
            yield f"the operator uncordons {name}", state._replace(ledger=number)

    def _cordoned(self, number: int, devices: Iterable[str]) -> int:
        why = dict.fromkeys(sorted(devices), WHY)
        return self.ledgers.apply(number, ("cordon", *why), partial(ev.Cordoned, why, NOW))[0]

    def share(self, state: State) -> Outcomes:
        """Devices of a lost record are in the legacy lane; the agent moves them to where they are to be."""
        for bit, name in enumerate(DEVICES):
            if name in self.ledgers.ledgers[state.ledger].entries:
                number, _ = self.ledgers.apply(
                    state.ledger, ("lane", bit, Lane.SHARED), partial(ev.SetLane, name, Lane.SHARED, NOW)
                )
                if number != state.ledger:
                    yield f"the agent shares {name}", state._replace(ledger=number)

    def forget(self, state: State) -> Outcomes:
        for bit, name in enumerate(DEVICES):
            number, done = self.ledgers.apply(state.ledger, ("forget", bit), partial(ev.Forgotten, (name,), NOW))
            if done and number != state.ledger:
                yield f"the agent drops the id of {name}", state._replace(ledger=number)

    # --- the start ---

    def start(self, state: State) -> Outcomes:
        """The agent starts, and tells its ledger what the real one does. Kubelet answers now, or not at all; the API
        server is asked for nothing yet.
        """
        seen = state.gathered
        assert seen is not None
        known = tuple(zip(UIDS, state.claims, strict=False))
        files = tuple((uid, claim.devices) for uid, claim in known if claim.cdi)
        shown = tuple((uid, claim.devices) for uid, claim in known if _in_list(claim) and claim.devices & seen.shown)
        claims = tuple(claim._replace(seen=0, keeper=Keeper()) for claim in state.claims)
        for kubelet in (True, False):
            listed = seen.listed if kubelet else None
            number = self._merge(state.ledger, files, shown if kubelet else (), listed, seen.checkpoint)
            yield (
                f"the agent starts (answered by {'kubelet' if kubelet else 'nobody'})",
                state._replace(ledger=number, up=True, noticed=True, claims=claims, gathered=None),
            )

    def _merge(self, number: int, files: Known, shown: Known, listed: int | None, checkpoint: int) -> int:
        begin, ledger = number, self.ledgers.ledgers[number]
        found = startup_events.StartupFindings(
            NOW,
            () if self.config.files_lost else _allocations(files, named=True),  # with the files, the records are lost
            files=_allocations(files) if self.config.files_lost else (),
            listed=None if listed is None else _shown(listed),
            claims=_allocations(shown, named=True),
            checkpoint=ev.CheckpointRead(_shown(checkpoint)) if self.config.checkpoint else None,
        )
        told = startup_events.events(ledger, found, startup_events.in_use(ledger, found))
        for index, event in enumerate(told):
            key = ("start", begin, files, shown, listed, checkpoint, index)
            number, _ = self.ledgers.apply(number, key, partial(_itself, event))
        return number


def _itself(event: ev.Event) -> ev.Event:
    return event


def _allocations(claims: Iterable[tuple[str, int]], *, named: bool = False) -> tuple[ev.ClaimDevices, ...]:
    return tuple(
        ev.ClaimDevices(ClaimRef(uid, "ns", uid) if named else ClaimRef(uid), uses(mask))
        for uid, mask in claims
        if mask
    )
