"""A small world around the real ledger: kubelet, a scheduler, the API server, pods and claims, and what can go wrong.

Every message may be late by any time: kubelet acts on the last list that reached it, the scheduler on the last slices
that it saw, the agent on evidence gathered earlier. Time is one bit for each memory of it, "now" or "long ago":
"time passes" makes everything long ago, and may happen only when the timing assumptions that
the policy's numbers stand for are met: an Allocate's reply is recorded by kubelet, a new kubelet has re-synced, a
force-deleted pod's processes are dead, schedulers have seen withdrawn slices, kubelet has read that a device is gone.
The ledger's part is the real ``step``, memoised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

from drabridge.inventory.model import Presence
from drabridge.ledger import events as ev
from drabridge.ledger import invariants
from drabridge.ledger.machine import step
from drabridge.ledger.model import (
    ClaimRef,
    Entry,
    Facts,
    Lane,
    Ledger,
    NodeState,
    Owner,
    PodRef,
)
from tests.ledger.forget import aged, crashed, swap_claims, swap_devices, swap_gathered, unsequenced
from tests.ledger.ledgers import Ledgers
from tests.ledger.states import (
    _POD,
    DEVICES,
    NOW,
    SWAPPED,
    UIDS,
    Broken,
    Claim,
    Gathered,
    K,
    P,
    Pod,
    State,
    bits,
)


def _same(event: ev.Event) -> ev.Event:
    return event


def _without_id(name: str, ledger: Ledger) -> Ledger:
    return ledger.replace((), (name,))


def _order(state: State) -> tuple[Any, ...]:
    return (*state[:7], state.gathered or (), *state[8:])


def _names(mask: int) -> str:
    return ",".join(DEVICES[device] for device in bits(mask)) or "nothing"


def _uses(mask: int) -> tuple[ev.Use, ...]:
    return tuple(ev.Use(DEVICES[device]) for device in bits(mask))


def _allocated(uid: str, claim: Claim) -> ev.ClaimAllocated:
    return ev.ClaimAllocated(ClaimRef(uid), _uses(claim.devices), NOW)


def _shown(mask: int) -> Mapping[str, tuple[PodRef, ...]]:
    return {DEVICES[device]: _POD for device in bits(mask)}


class World(Ledgers):
    """The transition relation. ``successors`` yields (label, state, whether it helps to drain)."""

    # --- the beginning ---

    def initial(self) -> State:
        """Two free devices in the legacy lane, an agent that has just merged, nothing offered yet."""
        entries = [
            Entry(Facts(name, "r", (name,)), lane=lane)
            for name, lane in zip(DEVICES[: self.config.devices], self.config.lanes, strict=False)
        ]
        ledger = Ledger.of(entries, NodeState(boot_id="boot", merged=True))
        state = State(
            self.intern(ledger),
            0,
            0,
            0,
            True,
            True,
            True,
            None,
            ((P.IDLE, -1),) * self.config.pods,
            (Claim(),) * self.config.claims,
            self.config.faults,
            self.config.moves,
        )
        return self.canonical(state)

    # --- symmetry ---

    def canonical(self, state: State) -> State:
        """One of the states that differ only in the names of pods, claims and (if they began alike) devices."""
        number = state.ledger
        if state.gathered is None:
            number = self.memo("settled", number, unsequenced)
        plain = self._sorted(state._replace(ledger=number, pods=tuple(sorted(state.pods))))
        if not self.config.alike:
            return plain
        other = self._sorted(self._swapped(plain))
        return min(plain, other, key=_order)

    def _sorted(self, state: State) -> State:
        if len(state.claims) < 2 or state.claims[0] < state.claims[1]:
            return state
        number = self.memo("claims", state.ledger, swap_claims)
        if state.claims[0] == state.claims[1]:
            return state if state.ledger <= number else state._replace(ledger=number)
        return state._replace(ledger=number, claims=state.claims[::-1])

    def _swapped(self, state: State) -> State:
        seen = state.gathered
        return state._replace(
            ledger=self.memo("devices", state.ledger, swap_devices),
            healthy=SWAPPED[state.healthy],
            api=SWAPPED[state.api],
            scheduler=SWAPPED[state.scheduler],
            pods=tuple(sorted((phase, device if device < 0 else 1 - device) for phase, device in state.pods)),
            claims=tuple(claim._replace(devices=SWAPPED[claim.devices]) for claim in state.claims),
            gathered=seen and swap_gathered(seen),
        )

    # --- what is really the case ---

    def check(self, state: State) -> None:
        """Raise :class:`Broken` if an invariant does not hold."""
        pods: dict[str, set[str]] = {}
        promised_pods: dict[str, set[str]] = {}
        in_allocate: set[str] = set()
        for index, (phase, device) in enumerate(state.pods):
            if phase in (P.INIT, P.RUN, P.ZOMBIE):
                pods.setdefault(DEVICES[device], set()).add(f"p{index}")
            if phase in (P.REPLIED, P.INIT, P.RUN, P.ZOMBIE):
                promised_pods.setdefault(DEVICES[device], set()).add(f"p{index}")
            if phase in (P.CHOSEN, P.REPLIED, P.INIT, P.RUN):
                in_allocate.add(DEVICES[device])
        claims: dict[str, set[str]] = {}
        uses: dict[str, set[str]] = {}
        for uid, claim in zip(UIDS, state.claims, strict=False):
            names = {DEVICES[device] for device in bits(claim.devices)}
            if claim.api == 1:
                uses[uid] = names
            if claim.kubelet == K.RUNNING:
                for name in names:
                    claims.setdefault(name, set()).add(uid)
        truth = invariants.Truth(
            pods,
            claims,
            promised_pods,
            claims,
            {DEVICES[device] for device in bits(state.healthy)},
            {DEVICES[device] for device in bits(state.scheduler)},
            in_allocate,
            uses,
        )
        if violations := invariants.check_truth(self.ledgers[state.ledger], truth, self.config.policy):
            raise Broken(violations)

    def drained(self, state: State) -> bool:
        """Nobody holds anything."""
        key = ("drained", state.ledger)
        known: bool | None = self._memo.get(key)
        if known is None:
            known = self._memo[key] = invariants.drained(self.ledgers[state.ledger])
        return known

    # --- what can happen ---

    def successors(self, state: State) -> Iterator[tuple[str, State, bool]]:
        """Everything that can happen next."""
        yield from self._pods(state)
        yield from self._claims(state)
        yield from self._messages(state)
        if state.up:
            yield from self._evidence(state)
            yield from self._operator(state)
        else:
            yield from self._restart(state)
        if self._may_tick(state):
            yield "time passes", state._replace(ledger=self.memo("tick", state.ledger, aged)), True
        if state.faults:
            yield from self._faults(state._replace(faults=state.faults - 1))

    def _pods(self, state: State) -> Iterator[tuple[str, State, bool]]:
        taken = {device for phase, device in state.pods if P.CHOSEN <= phase <= P.RUN}
        for index, (phase, device) in enumerate(state.pods):
            if index and state.pods[index - 1] == (phase, device):
                continue  # its twin does the same

            def at(phase: P, device: int, index: int = index) -> tuple[Pod, ...]:
                return (*state.pods[:index], (phase, device), *state.pods[index + 1 :])

            if phase == P.IDLE:
                for free in bits(state.healthy):
                    if free not in taken:
                        yield f"kubelet chooses d{free} for p{index}", state._replace(pods=at(P.CHOSEN, free)), False
            elif phase == P.CHOSEN:
                yield from self._allocate(state, index, device, at)
            elif phase == P.REPLIED:
                for then in (P.INIT, P.RUN, P.DONE):
                    yield (
                        f"p{index} becomes {then.name}",
                        state._replace(pods=at(then, -1 if then == P.DONE else device)),
                        True,
                    )
            elif phase == P.INIT:
                yield f"p{index} becomes RUN", state._replace(pods=at(P.RUN, device)), True
                yield f"p{index} ends", state._replace(pods=at(P.DONE, -1)), True
            elif phase in (P.RUN, P.ZOMBIE):
                yield f"p{index} ends", state._replace(pods=at(P.DONE, -1)), True
            if phase in (P.INIT, P.RUN) and state.faults and "force" in self.config.kinds:
                zombie = state._replace(pods=at(P.ZOMBIE, device), faults=state.faults - 1)
                yield f"FAULT p{index} is force-deleted", zombie, False

    def _allocate(
        self, state: State, index: int, device: int, at: Callable[[P, int], tuple[Pod, ...]]
    ) -> Iterator[tuple[str, State, bool]]:
        failed = at(P.DONE, -1)
        if not state.up:
            yield f"p{index}: no agent for Allocate", state._replace(pods=failed), True
            return
        name = DEVICES[device]
        number, accepted = self.apply(state.ledger, ("allocate", device), lambda: ev.Allocate({name: (name,)}, NOW))
        pods = at(P.REPLIED, device) if accepted else failed
        answer = "yes" if accepted else "no"
        yield f"Allocate d{device} for p{index}: {answer}", state._replace(ledger=number, pods=pods), True
        if state.faults and "crash" in self.config.kinds:
            early = self._down(state, state.ledger)
            if self.config.reply_before_durable and accepted:
                yield f"Allocate d{device}: yes, FAULT crash before it is durable", early._replace(pods=pods), False
            yield f"Allocate d{device}: FAULT crash before it is durable", early._replace(pods=failed), False
            late = self._down(state, number)._replace(pods=failed)
            yield f"Allocate d{device}: FAULT crash before the reply", late, False

    def _claims(self, state: State) -> Iterator[tuple[str, State, bool]]:
        allocated = 0
        for claim in state.claims:
            if claim.api == 1:
                allocated |= claim.devices
        for index, claim in enumerate(state.claims):
            uid = UIDS[index]

            def at(changed: Claim, index: int = index) -> tuple[Claim, ...]:
                return (*state.claims[:index], changed, *state.claims[index + 1 :])

            if claim.api == 0:
                for mask in (1, 2, 3) if self.config.whole_claims else (1, 2):
                    if mask & state.scheduler == mask and not mask & allocated:
                        chosen = state._replace(claims=at(claim._replace(api=1, devices=mask)))
                        yield f"the scheduler gives {_names(mask)} to {uid}", chosen, False
                continue
            if state.up:
                yield from self._watch(state, uid, claim, at)
            if claim.kubelet <= K.TRIED and claim.api == 1 and state.up:
                yield from self._prepare(state, uid, claim, at)
            if claim.kubelet in (K.TRIED, K.RUNNING):
                yield f"{uid}'s pod stops", state._replace(claims=at(claim._replace(kubelet=K.STOPPED))), True
            if claim.kubelet == K.STOPPED and state.up:
                yield from self._unprepare(state, uid, claim, at)
            if claim.api == 1:
                gone = state._replace(claims=at(claim._replace(api=2)))
                if claim.kubelet in (K.NEW, K.STOPPED, K.DONE):
                    yield f"{uid} is deallocated", gone, True
                elif claim.kubelet == K.RUNNING and state.faults and "force" in self.config.kinds:
                    forced = gone._replace(faults=state.faults - 1)
                    yield f"FAULT {uid}'s pod is force-deleted and {uid} deallocated", forced, False

    def _watch(
        self, state: State, uid: str, claim: Claim, at: Callable[[Claim], tuple[Claim, ...]]
    ) -> Iterator[tuple[str, State, bool]]:
        """The watch is in order, may be late by any time, and may be lost and listed again (it then skips)."""
        recorded = uid in self.ledgers[state.ledger].by_claim
        if claim.seen == 0 or (claim.seen == 1 and claim.api == 1 and not recorded):
            number, accepted = self.apply(
                state.ledger, ("allocated", uid, claim.devices), lambda: _allocated(uid, claim)
            )
            after = state._replace(ledger=number, claims=at(claim._replace(seen=1)))
            if after != state:
                yield f"the watch shows {uid} allocated: {'granted' if accepted else 'not granted'}", after, True
        if claim.seen < 2 and claim.api == 2:
            number, _ = self.apply(state.ledger, ("deallocated", uid), lambda: ev.ClaimDeallocated(uid, NOW))
            after = state._replace(ledger=number, claims=at(claim._replace(seen=2)))
            yield f"the watch shows {uid} deallocated", after, True

    def _prepare(
        self, state: State, uid: str, claim: Claim, at: Callable[[Claim], tuple[Claim, ...]]
    ) -> Iterator[tuple[str, State, bool]]:
        number, accepted = self.apply(
            state.ledger,
            ("prepare", uid, claim.devices),
            lambda: ev.Prepare(ClaimRef(uid), _uses(claim.devices), NOW),
        )
        tried = claim._replace(kubelet=K.TRIED)
        done = claim._replace(kubelet=K.RUNNING, cdi=True) if accepted else tried
        answer = "yes" if accepted else "no"
        yield f"Prepare {uid}: {answer}", state._replace(ledger=number, claims=at(done)), True
        if state.faults and "crash" in self.config.kinds and accepted:
            before = self._down(state, state.ledger)
            if self.config.reply_before_durable:
                yield f"Prepare {uid}: yes, FAULT crash before it is durable", before._replace(claims=at(done)), False
            yield f"Prepare {uid}: FAULT crash before it is durable", before._replace(claims=at(tried)), False
            after = self._down(state, number)
            yield f"Prepare {uid}: FAULT crash before the CDI file", after._replace(claims=at(tried)), False
            written = tried._replace(cdi=True)
            yield f"Prepare {uid}: FAULT crash before the reply", after._replace(claims=at(written)), False

    def _unprepare(
        self, state: State, uid: str, claim: Claim, at: Callable[[Claim], tuple[Claim, ...]]
    ) -> Iterator[tuple[str, State, bool]]:
        number, _ = self.apply(state.ledger, ("unprepare", uid), lambda: ev.Unprepare(uid, NOW))
        done = claim._replace(kubelet=K.DONE, cdi=False)
        yield f"Unprepare {uid}", state._replace(ledger=number, claims=at(done)), True
        if state.faults and "crash" in self.config.kinds:
            again = at(claim._replace(cdi=False))
            before = self._down(state, state.ledger)._replace(claims=again)
            yield f"Unprepare {uid}: FAULT crash before it is durable", before, False
            after = self._down(state, number)._replace(claims=again)
            yield f"Unprepare {uid}: FAULT crash before the reply", after, False

    def _messages(self, state: State) -> Iterator[tuple[str, State, bool]]:
        if not state.known:
            yield "kubelet has re-synced its pods", state._replace(known=True), True
        if state.scheduler != state.api:
            yield "the scheduler sees the slices", state._replace(scheduler=state.api), True
        if not state.up:
            return
        if not state.noticed:
            number, _ = self.apply(state.ledger, ("subscribed",), lambda: ev.Subscribed(NOW))
            yield "kubelet subscribes", state._replace(ledger=number, noticed=True), True
        legacy, dra = self.offers(state.ledger)
        if state.noticed and state.healthy != legacy:
            yield f"kubelet gets the list: {_names(legacy)}", state._replace(healthy=legacy), True
        if state.api != dra:
            after = state._replace(api=dra, scheduler=state.scheduler | dra)
            yield f"the slices are published: {_names(dra)}", after, True

    def _evidence(self, state: State) -> Iterator[tuple[str, State, bool]]:
        if state.gathered is None:
            gathered = self.look(state)
            if self.config.late_evidence:
                yield f"the agent gathers evidence ({gathered})", state._replace(gathered=gathered), True
                return
        else:
            gathered = state.gathered
        yield "the agent applies its evidence", self._judge(state, gathered), True

    def look(self, state: State) -> Gathered:
        """What kubelet, the disk, the processes and the API server would show now."""
        listed = checkpoint = opened = claimed = 0
        unaccounted = False
        for phase, device in state.pods:
            if phase == P.RUN and state.known:
                listed |= 1 << device
            if phase in (P.INIT, P.RUN):
                checkpoint |= 1 << device
            if phase in (P.INIT, P.RUN, P.ZOMBIE):
                opened |= 1 << device
            if phase in (P.CHOSEN, P.REPLIED, P.INIT) or (phase == P.RUN and not state.known):
                unaccounted = True
        for claim in state.claims:
            if claim.api == 1:
                claimed |= claim.devices
        if self.config.checkpoint:
            unaccounted = any(P.CHOSEN <= phase <= P.REPLIED for phase, _ in state.pods)
        return Gathered(
            listed,
            checkpoint if self.config.checkpoint else 0,
            opened if self.config.probe else 0,
            state.healthy,
            state.api,
            claimed,
            unaccounted,
        )

    def _judge(self, state: State, seen: Gathered) -> State:
        number, _ = self.apply(
            state.ledger,
            ("observed", seen.listed, seen.checkpoint, seen.opened, seen.unaccounted),
            lambda: self._observed(seen),
        )
        for bit, name in enumerate(DEVICES):
            entry = self.ledgers[number].entries.get(name)
            if entry is None:
                continue
            if entry.lane is Lane.LEGACY_TO_DRA and not seen.healthy >> bit & 1:
                number, _ = self.apply(number, ("withdrawn", bit), partial(ev.Withdrawn, name, 0, NOW))
            elif entry.lane is Lane.DRA_TO_LEGACY and not seen.api >> bit & 1:
                number, _ = self.apply(number, ("slice", bit), partial(ev.SliceWithdrawn, name, 0, NOW))
                if not seen.claimed >> bit & 1:
                    number, _ = self.apply(number, ("clear", bit), partial(ev.QuorumClear, name, 0, NOW))
        return state._replace(ledger=number, gathered=None)

    def _observed(self, seen: Gathered) -> ev.Observed:
        return ev.Observed(
            NOW,
            0,
            _shown(seen.listed),
            ev.Checkpoint(_shown(seen.checkpoint)) if self.config.checkpoint else None,
            {"r": ("ns/pod",)} if seen.unaccounted else {},
            {name: bool(seen.opened >> bit & 1) for bit, name in enumerate(DEVICES)} if self.config.probe else None,
        )

    def _operator(self, state: State) -> Iterator[tuple[str, State, bool]]:
        for bit, name in enumerate(DEVICES):
            for lane in (Lane.LEGACY, Lane.DRA) if state.moves else ():
                if name in self.ledgers[state.ledger].entries:
                    number, _ = self.apply(state.ledger, ("lane", bit, lane), partial(ev.SetLane, name, lane, NOW))
                    if number != state.ledger:
                        moved = state._replace(ledger=number, moves=state.moves - 1)
                        yield f"the operator moves {name} to {lane}", moved, False
            if "unplug" in self.config.kinds:
                number, done = self.apply(state.ledger, ("forget", bit), partial(ev.Forgotten, (name,), NOW))
                if done and number != state.ledger:
                    yield f"the agent drops the id of {name}", state._replace(ledger=number), True

    def _may_tick(self, state: State) -> bool:
        """Whether every timing assumption is met; see the head of the file."""
        phases = {phase for phase, _ in state.pods}
        if phases & {P.CHOSEN, P.REPLIED} or (P.ZOMBIE in phases and not self.config.probe):
            return False
        if not (state.known and state.noticed and state.up) or state.scheduler != state.api:
            return False
        entries = self.ledgers[state.ledger].entries
        for bit, name in enumerate(DEVICES):
            if name in entries and entries[name].device.presence is Presence.GONE and state.healthy >> bit & 1:
                return False  # kubelet reads a list within a minute
        if any(entry.owner is Owner.QUARANTINE for entry in entries.values()):
            return state.api == self.offers(state.ledger)[1]  # the slices of a lost ledger are replaced by then
        return True

    # --- faults, and getting up again ---

    def _down(self, state: State, number: int) -> State:
        """The agent is killed (that costs a fault): kubelet's stream breaks, unwritten evidence is gone."""
        return state._replace(
            ledger=self.memo("crashed", number, crashed),
            up=False,
            noticed=False,
            healthy=0,
            gathered=None,
            faults=state.faults - 1,
        )

    def _faults(self, state: State) -> Iterator[tuple[str, State, bool]]:
        kinds = self.config.kinds
        idle = state._replace(faults=state.faults + 1)
        if state.up and "crash" in kinds:
            yield "FAULT the agent is killed", self._down(idle, state.ledger), False
        pods = tuple(
            (P.DONE, -1) if P.CHOSEN <= phase <= P.REPLIED else (phase, device) for phase, device in state.pods
        )
        if "kubelet" in kinds:
            yield "FAULT kubelet restarts", state._replace(healthy=0, known=False, noticed=False, pods=pods), False
        if "reboot" in kinds:
            down = self._down(idle, state.ledger)
            number, _ = self.apply(down.ledger, ("boot",), lambda: ev.Booted("another boot", NOW))
            yield (
                "FAULT the node reboots",
                down._replace(
                    ledger=number,
                    known=False,
                    pods=tuple((P.DONE, -1) if phase == P.ZOMBIE else (phase, device) for phase, device in pods),
                    claims=tuple(
                        claim._replace(cdi=False, kubelet=K.TRIED if claim.kubelet == K.RUNNING else claim.kubelet)
                        for claim in state.claims
                    ),
                ),
                False,
            )
        if "lost" in kinds:
            down = self._down(idle, state.ledger)
            lost = self.memo("free" if self.config.restart_as_free else "lost", 0, self._lost)
            yield "FAULT the agent is killed and its ledger is lost", down._replace(ledger=lost), False
        if "unplug" in kinds and state.up:
            for bit, name in enumerate(DEVICES):
                entry = self.ledgers[state.ledger].entries.get(name)
                if entry and entry.device.presence is Presence.PRESENT:
                    number, _ = self.apply(state.ledger, ("unplug", bit), partial(self._without, state.ledger, bit))
                    if self.config.drop_ids:
                        number = self.memo(f"dropped {bit}", number, partial(_without_id, name))
                    yield f"FAULT {name} is unplugged", state._replace(ledger=number), False

    def _without(self, number: int, bit: int) -> ev.Discovered:
        rest = [entry.device for name, entry in self.ledgers[number].entries.items() if name != DEVICES[bit]]
        return ev.Discovered(tuple(rest), NOW)

    def _lost(self, ledger: Ledger) -> Ledger:
        fresh = Ledger.of(
            [Entry(Facts(name, "r", (name,))) for name in DEVICES[: self.config.devices]], NodeState(boot_id="boot")
        )
        if self.config.restart_as_free:
            return fresh
        return step(fresh, ev.Lost(NOW, reason="lost"), self.config.policy).of(fresh)

    def _restart(self, state: State) -> Iterator[tuple[str, State, bool]]:
        """The agent starts. Kubelet, its checkpoint and the API server answer now, or not at all."""
        cdi = tuple(
            ev.Allocation(ClaimRef(uid), _uses(claim.devices))
            for uid, claim in zip(UIDS, state.claims, strict=False)
            if claim.cdi
        )
        api = tuple(
            ev.Allocation(ClaimRef(uid), _uses(claim.devices))
            for uid, claim in zip(UIDS, state.claims, strict=False)
            if claim.api == 1
        )
        look = self.look(state)
        for kubelet, cluster in product((True, False), repeat=2):
            listed = look.listed if kubelet else None
            event = ev.Restarted(
                NOW,
                cdi,
                None if listed is None else _shown(listed),
                ev.Checkpoint(_shown(look.checkpoint)) if self.config.checkpoint else None,
                api if cluster else None,
            )
            key = ("restarted", cdi, listed, look.checkpoint, api if cluster else None)
            number, _ = self.apply(state.ledger, key, partial(_same, event))
            claims = tuple(claim._replace(seen=claim.api if cluster else 0) for claim in state.claims)
            asked = " and ".join(name for name, on in (("kubelet", kubelet), ("the API server", cluster)) if on)
            yield (
                f"the agent starts (answered by {asked or 'nobody'})",
                state._replace(ledger=number, up=True, noticed=True, claims=claims),
                True,
            )
