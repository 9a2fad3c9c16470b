"""Both sides want shared devices all the time: each gets its part, and no pod is sent where kubelet must refuse it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import Presence
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    Entry,
    Hold,
    Lane,
    Ledger,
    LedgerDevice,
    Move,
    MoveStep,
    NodeState,
    Owner,
)
from drabridge.offers.turns import (
    ASK_SECONDS,
    NOBODYS,
    TURN_SECONDS,
    Change,
    Side,
    Turns,
    follow,
)

STEP = 0.2
STATUS_SECONDS = 10.0  # kubelet's nodeStatusUpdateFrequency
PROOF_SECONDS = 0.6  # from a pod's end, when kubelet gives its device to the next, until the agent has proven it
NEXT_CLAIM_SECONDS = 0.2  # from the slice to the next claim's allocation
LEASE_SECONDS = 5.0  # until the scheduler looks at the condition
BACK_SECONDS = 30.0  # from the dra lane to the shared one


def entry(name: str, side: Side | None, at: float = 0.0, *, lane: Lane = Lane.SHARED) -> Entry:
    device = LedgerDevice(name, "r", (name,))
    match side:
        case Side.PODS:
            return Entry(device, Owner.LEGACY, lane, hold=Hold((name,), at), since=at)
        case Side.CLAIMS:
            claim = ClaimHold(ClaimRef(f"{name}-{at}"), ClaimPhase.PREPARED, at)
            return Entry(device, Owner.DRA_PREPARED, lane, claims=(claim,), since=at)
    return Entry(device, Owner.NONE, lane, since=at)


def _in_lane(lane: Lane) -> dict[str, Lane | Move | None]:
    back = Move(Lane.DRA, Lane.SHARED, MoveStep.REVOKING, 0.0, 0.0)
    return {"lane": lane, "move": back if lane is Lane.DRA_TO_LEGACY else None}


class Node:
    """Shared devices, a kubelet whose number reaches the scheduler late, and pods and claims that wait or do not."""

    def __init__(
        self,
        devices: int,
        job_seconds: float,
        *,
        turns: bool = True,
        settled_at: float = 0.0,
        most: Mapping[Side, int] = MappingProxyType({}),
    ) -> None:
        """``most``: how many devices a side wants; all if it is not there."""
        self.most = dict.fromkeys(Side, devices) | dict(most)
        self._job_seconds = job_seconds
        self._turns_count = turns
        self.names = [f"d{index}" for index in range(devices)]
        self.has: dict[str, Side | None] = dict.fromkeys(self.names)
        self._until = dict.fromkeys(self.names, 0.0)
        state = NodeState(releases_suspended_until=settled_at)
        self.ledger = Ledger.of([entry(name, None) for name in self.names], state)
        self.turns = NOBODYS
        self.at = 0.0
        self.told = devices
        self.steps: Counter[Side] = Counter()
        self.refused = 0
        self.leases = 0
        self.lane = dict.fromkeys(self.names, Lane.SHARED)
        self._back = dict.fromkeys(self.names, 0.0)

    def run(self, seconds: float, waiting: Iterable[Side] = Side) -> None:
        until = self.at + seconds
        while self.at < until:
            self._step(frozenset(waiting))

    def share(self, side: Side) -> float:
        return self.steps[side] / self.steps.total()

    def claims_tried(self) -> None:
        """Once a claim tried to get a device: nobody sees those that wait."""
        self.turns = replace(self.turns, wanting={"r": frozenset(Side)})

    @property
    def unused(self) -> int:
        return sum(side is None for side in self.has.values())

    def _step(self, waiting: frozenset[Side]) -> None:
        before = self.at
        self.at += STEP
        if before // STATUS_SECONDS != self.at // STATUS_SECONDS:
            self.told = sum(side is not Side.CLAIMS and self._healthy(name) for name, side in self.has.items())
        if Side.PODS in waiting:
            self._send_pod()
        proof = {Side.PODS: PROOF_SECONDS, Side.CLAIMS: 0.0}
        self._change({name: None for name, side in self.has.items() if side and self._is_over(name, proof[side])})
        self._move()
        if Side.CLAIMS in waiting:
            free = [name for name in self.names if self.has[name] is None and self.lane[name] is not Lane.DRA_TO_LEGACY]
            ready = [one for one in free if not self._kept_from_claims(one)]
            ready = [one for one in ready if self.at - self._until[one] >= NEXT_CLAIM_SECONDS]
            ready.sort(key=lambda one: self.lane[one] is Lane.SHARED)  # the scheduler takes what needs no lease first
            ready = ready[: max(0, self.most[Side.CLAIMS] - self._count(Side.CLAIMS))]
            self.leases += sum(self.lane[one] is Lane.SHARED for one in ready)
            self._change(dict.fromkeys(ready, Side.CLAIMS))
        self.steps.update(side for side in self.has.values() if side)

    def _send_pod(self) -> None:
        """The scheduler counts pods that run, kubelet needs a Healthy device that none of them has."""
        over = {name for name, side in self.has.items() if side is Side.PODS and self._is_over(name)}
        if self._count(Side.PODS) - len(over) >= min(self.told, self.most[Side.PODS]):
            return
        ready = [one for one in self.names if (self.has[one] is None or one in over) and self._healthy(one)]
        if ready:
            self._change({ready[0]: Side.PODS})
        else:
            self.refused += 1
            self._follow(self.ledger, {"r"})

    def _is_over(self, name: str, more: float = 0.0) -> bool:
        return self._until[name] + more <= self.at

    def _count(self, wanted: Side) -> int:
        return sum(side is wanted for side in self.has.values())

    def _healthy(self, name: str) -> bool:
        return self.lane[name] is Lane.SHARED and not (self._turns_count and name in self.turns.kept_from_pods)

    def _kept_from_claims(self, name: str) -> bool:
        return self._turns_count and self.turns.keeps_from_claims(self.ledger.entries[name])

    def _move(self) -> None:
        """Lanes follow what is lent; what no claim is to have any more comes back after the schedulers' quiet time."""
        if not self._turns_count:
            return
        moved = {}
        for name, side in self.has.items():
            lent, lane = name in self.turns.lent, self.lane[name]
            if lent and lane is Lane.SHARED and side is not Side.PODS:
                moved[name] = Lane.DRA
            elif not lent and lane is Lane.DRA and side is None:
                moved[name], self._back[name] = Lane.DRA_TO_LEGACY, self.at + BACK_SECONDS
            elif lane is Lane.DRA_TO_LEGACY and self._back[name] <= self.at:
                moved[name] = Lane.SHARED
        if moved:
            self.lane |= moved
            old = self.ledger
            entries = [old.entries[name] for name in moved]
            self.ledger = old.replace([replace(one, **_in_lane(moved[one.name])) for one in entries])
            self._follow(old)

    def _change(self, changes: dict[str, Side | None]) -> None:
        old = self.ledger
        for name, side in changes.items():
            self.has[name] = side
            lease = LEASE_SECONDS if side is Side.CLAIMS and self.lane[name] is Lane.SHARED else 0.0
            self._until[name] = self.at + (self._job_seconds if side else 0.0) + lease
        self.ledger = old.replace([entry(name, side, self.at, lane=self.lane[name]) for name, side in changes.items()])
        self._follow(old)

    def _follow(self, old: Ledger, sent: Collection[str] = ()) -> None:
        self.turns = follow(self.turns, Change(old, self.ledger, self.at, {"r": self.told}, sent))


@pytest.mark.parametrize(
    ("devices", "job_seconds", "first"),
    [
        (2, 30.0, Side.CLAIMS),
        (3, 30.0, Side.PODS),
        (4, 30.0, Side.CLAIMS),
        (4, 90.0, Side.PODS),
        (7, 30.0, Side.PODS),
    ],
)
def test_each_side_has_a_third_while_both_wait(devices: int, job_seconds: float, first: Side) -> None:
    node = Node(devices, job_seconds)
    node.run(100.0, {first})
    node.claims_tried()
    node.run(ASK_SECONDS + 200.0)  # pods with limits are not seen while they wait
    node.steps.clear()
    node.refused = 0
    node.run(300.0)
    assert min(node.share(side) for side in Side) > 0.3
    assert node.refused == 0


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("job_seconds", [1.0, 5.0])
def test_claims_that_have_half_keep_it_however_short_the_jobs_are(devices: int, job_seconds: float) -> None:
    node = Node(devices, job_seconds)
    node.run(60.0, {Side.CLAIMS})
    node.run(ASK_SECONDS + 200.0)
    node.steps.clear()
    node.refused = 0
    node.run(300.0)
    assert min(node.share(side) for side in Side) > 0.3
    assert node.refused == 0


@pytest.mark.parametrize("job_seconds", [1.0, 3.0, 5.0, 9.0, 13.0, 17.0, 21.0, 30.0, 65.0])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_pod_after_a_pod_is_never_refused_for_claims_that_wait(devices: int, job_seconds: float) -> None:
    node = Node(devices, job_seconds)
    node.run(2 * job_seconds + 1.0, {Side.PODS})
    node.claims_tried()
    node.run(300.0)
    assert node.refused == 0


@pytest.mark.parametrize(
    ("last_seconds", "since_seconds", "promised"),
    [
        (None, 100.0, False),  # no pod has ended yet: nobody knows how long they stay
        (60.0, TURN_SECONDS - 1.0, False),
        (60.0, TURN_SECONDS, True),
        (60.0, 55.0, False),
        (60.0, 65.0, False),
        (60.0, 100.0, True),  # it is not like the last one
        (3.0, TURN_SECONDS, False),
        (3.0, 100.0, True),
    ],
)
def test_only_what_a_pod_is_expected_to_keep_is_promised(
    last_seconds: float | None, since_seconds: float, promised: bool
) -> None:
    ledger = Ledger.of([entry("d", Side.PODS, 1000.0 - since_seconds)])
    stays = {} if last_seconds is None else {"r": last_seconds}
    turns = follow(Turns({"r": frozenset(Side)}, stays=stays), Change(ledger, ledger, 1000.0, {"r": 1}))
    assert turns.kept_from_pods == ({"d"} if promised else set())


def test_an_init_container_that_hands_over_to_its_pods_next_container_is_no_pod_that_ended() -> None:
    before, stays = entry("d", Side.PODS, 1.0), {"r": 60.0}
    for at, expected in ((1.1, 60.0), (31.0, 30.0)):
        old, new = Ledger.of([before]), Ledger.of([entry("d", Side.PODS, at)])
        assert follow(Turns(stays=stays), Change(old, new, at, {"r": 1})).stays == {"r": expected}


def test_claims_get_what_pods_had() -> None:
    node = Node(4, 30.0)
    node.run(60.0, {Side.PODS})
    node.claims_tried()
    node.run(200.0)
    assert Counter(node.has.values())[Side.CLAIMS] in (1, 2)
    assert node.refused == 0


def test_without_turns_one_side_gets_all() -> None:
    """What the test above is worth: the same node, and nobody follows its turns."""
    node = Node(4, 5.0, turns=False)
    node.run(60.0, {Side.PODS})
    node.run(300.0)
    assert min(node.share(side) for side in Side) < 0.2


@pytest.mark.parametrize("side", Side)
def test_a_side_alone_has_nearly_all_the_time_of_all_devices(side: Side) -> None:
    node = Node(4, 30.0)
    node.run(200.0)
    node.run(100.0, {side})  # the other one left a turn unused by now
    node.steps.clear()
    node.run(3 * ASK_SECONDS, {side})  # pods are asked again
    assert node.share(side) == 1.0
    assert node.steps[side] * STEP > 0.8 * 4 * 3 * ASK_SECONDS


def test_the_only_device_is_for_each_side_in_turns() -> None:
    node = Node(1, 30.0)
    node.run(60.0, {Side.PODS})
    node.claims_tried()
    node.run(ASK_SECONDS + 200.0)
    node.steps.clear()
    node.run(600.0)
    assert min(node.share(side) for side in Side) > 0.3


def test_pods_get_a_device_though_claims_have_all_and_the_agent_forgot_that_pods_wait() -> None:
    node = Node(4, 5.0)
    node.run(60.0, {Side.CLAIMS})
    node.turns = NOBODYS
    node.run(ASK_SECONDS + BACK_SECONDS + 30.0)
    assert Side.PODS in node.has.values()


def test_nothing_that_a_pod_has_is_unhealthy_while_kubelet_admits_its_pods_anew() -> None:
    for settled_at, promised in ((0.0, True), (1e9, False)):
        node = Node(2, 30.0, settled_at=settled_at)
        node.run(45.0, {Side.PODS})
        node.claims_tried()
        node.run(5.0, {Side.PODS})
        assert bool(node.turns.kept_from_pods) is promised


def test_only_shared_devices_take_turns() -> None:
    for lane in (Lane.LEGACY, Lane.DRA):
        old = Ledger.of([entry("d", Side.PODS, lane=lane)])
        new = old.replace([entry("d", None, 1.0, lane=lane)])
        assert follow(Turns({"r": frozenset(Side)}), Change(old, new, 1.0, {"r": 1})) is NOBODYS


@pytest.mark.parametrize("more", [{"presence": Presence.FAULTY}, {"units": ("d::0", "d::1")}, {"cordoned": "fan"}])
def test_what_one_pod_cannot_have_takes_no_turn(more: dict[str, Any]) -> None:
    """Else it counts as a side's part, and another device is kept from the other side for it."""
    device = LedgerDevice(**{"name": "d", "resource": "r", "units": ("d",), **more})
    old = Ledger.of([replace(entry("d", Side.PODS), device=device)])
    new = old.replace([replace(entry("d", None, 1.0), device=device)])
    assert follow(Turns({"r": frozenset(Side)}), Change(old, new, 1.0, {"r": 1})) is NOBODYS


def test_a_turn_that_nobody_takes_ends() -> None:
    old = Ledger.of([entry("d", Side.CLAIMS), entry("e", Side.CLAIMS)])
    new = old.replace([entry("d", None, 1.0)])
    turns = follow(Turns({"r": frozenset(Side)}), Change(old, new, 1.0, {"r": 0}))
    assert turns.keeps_from_claims(new.entries["d"])
    later = follow(turns, Change(new, new, 1.0 + TURN_SECONDS, {"r": 1}))
    assert not later.keeps_from_claims(new.entries["d"])
    assert later.wanting["r"] == {Side.CLAIMS}


def test_nobody_is_kept_from_a_device_while_another_one_is_free() -> None:
    old = Ledger.of([entry("d", Side.CLAIMS), entry("e", None)])
    new = old.replace([entry("d", None, 1.0)])
    turns = follow(Turns({"r": frozenset(Side)}), Change(old, new, 1.0, {"r": 1}))
    assert not turns.turns


def test_what_an_earlier_agent_lent_to_a_claim_stays_lent_until_the_claim_ends() -> None:
    waits = Move(Lane.DRA, Lane.SHARED, MoveStep.WAITING, 0.0, 0.0)
    ledger = Ledger.of([replace(entry("d", Side.CLAIMS, lane=Lane.DRA), move=waits), entry("e", None)])
    assert follow(NOBODYS, Change(ledger, ledger, 1.0, {"r": 1})).lent == {"d"}


def test_a_pod_that_is_sent_here_wants_a_device_even_if_kubelet_refuses_it() -> None:
    ledger = Ledger.of([entry("d", Side.CLAIMS)])
    turns = follow(NOBODYS, Change(ledger, ledger, 1.0, {"r": 0}, {"r"}))
    assert turns.wanting["r"] == {Side.PODS}


@pytest.mark.parametrize("devices", [2, 4])
def test_claims_need_no_lease_for_what_they_keep(devices: int) -> None:
    node = Node(devices, 5.0)
    node.run(100.0)
    node.leases, before = 0, node.steps[Side.CLAIMS]
    node.run(200.0)
    assert node.steps[Side.CLAIMS] > before
    assert node.leases == 0


def test_nothing_is_lent_to_claims_of_which_none_waits() -> None:
    """A lent device that no claim takes is away from pods for the quiet time of its lane."""
    node = Node(6, 20.0, most={Side.PODS: 6, Side.CLAIMS: 1})
    for second in range(300):
        node.most[Side.CLAIMS] = second % 60 < 22  # a claim comes long after the last one has ended
        node.run(1.0)
        assert not node.turns.lent


def test_what_claims_leave_unused_is_shared_again() -> None:
    node = Node(4, 5.0)
    node.run(100.0)
    assert node.turns.lent
    node.run(100.0, {Side.PODS})
    assert not node.turns.lent
    assert set(node.lane.values()) == {Lane.SHARED}
    assert set(node.has.values()) == {Side.PODS}


def test_what_claims_had_alone_is_for_pods_when_it_has_come_back() -> None:
    back = Move(Lane.DRA, Lane.SHARED, MoveStep.QUIESCING, 0.0, 0.0)
    coming = replace(entry("f", None), lane=Lane.DRA_TO_LEGACY, move=back)
    old = Ledger.of([entry("d", Side.CLAIMS), entry("e", Side.CLAIMS), coming])
    new = old.replace([entry("f", None)])
    turns = follow(Turns({"r": frozenset(Side)}), Change(old, new, 1.0, {"r": 0}))
    assert turns.turns["f"].side is Side.PODS


def test_what_comes_back_counts_for_pods() -> None:
    """Else claims would give up one device after the other until the first has come back."""
    back = Move(Lane.DRA, Lane.SHARED, MoveStep.QUIESCING, 0.0, 0.0)
    coming = replace(entry("f", None), lane=Lane.DRA_TO_LEGACY, move=back)
    old = Ledger.of([entry("d", Side.CLAIMS, lane=Lane.DRA), entry("e", Side.CLAIMS, lane=Lane.DRA), coming])
    new = old.replace([entry("d", None, 1.0, lane=Lane.DRA)])
    turns = follow(Turns({"r": frozenset(Side)}, lent=frozenset("de")), Change(old, new, 1.0, {"r": 0}))
    assert turns.lent == {"d", "e"}
