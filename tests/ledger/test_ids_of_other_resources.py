"""Kubelet counts by resource: an id of ours under another resource is another device, unless in doubt."""

from __future__ import annotations

from pathlib import Path

from drabridge.ledger.effects import Notify, RefusalCode
from drabridge.ledger.entries import Lane, Ledger, NodeState, Owner, PodRef
from drabridge.ledger.events import (
    AgentStarted,
    Allocate,
    CheckpointRead,
    ClaimDevices,
    DeviceUse,
    Observed,
    RecordLost,
)
from drabridge.ledger.store import Store
from tests.ledger.saved_ledger import load
from tests.support.ledger_node import CLAIM, NOON, POD, PODS, Node, allocate, device, prepare

ELSEWHERE = {("vendor", "GPU-0"): (POD,)}


def new(*numbers: int, lane: Lane = Lane.LEGACY) -> Node:
    """A node whose ledger no agent has compared with kubelet's view."""
    node = Node(*(device(n, lane) for n in numbers))
    node.ledger = Ledger.of(node.ledger.entries.values(), NodeState("boot"))
    return node


def settled(*numbers: int, lane: Lane = Lane.LEGACY) -> Node:
    """One where an agent has started."""
    node = new(*numbers, lane=lane)
    node.yes(AgentStarted(NOON, listed={}))
    return node


def silence(node: Node, **more: dict[str, tuple[str, ...]]) -> None:
    """Every source agrees that nobody has anything, for long enough."""
    for at in (NOON + 500, NOON + 600):
        node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}), more.get("unaccounted", {})))


def test_a_take_over_under_another_resource_name_gives_nobody_what_pods_have() -> None:
    for lane in (Lane.LEGACY, Lane.DRA):
        for listed, checkpoint in ((ELSEWHERE, None), (None, CheckpointRead(ELSEWHERE, barrier=False))):
            node = new(0, 1, lane=lane)
            done = node.yes(AgentStarted(NOON, listed=listed, checkpoint=checkpoint))
            assert [e.message for e in done.effects if isinstance(e, Notify)] == [
                f"gpu-0 was recorded as none, and kubelet shows {POD} on it as vendor"
            ]
            assert [node.owner(name) for name in ("gpu-0", "gpu-1")] == [Owner.LEGACY, Owner.NONE]
            assert node.offers("gpu-0") == (False, False), "under our name kubelet takes it for free"
            assert node.no(allocate(0))[0] is RefusalCode.LEGACY_HELD
            node.yes(Observed(NOON + 400, node.ledger.seq, ELSEWHERE, CheckpointRead({}), {}))
            assert node.owner("gpu-0") is Owner.LEGACY, "the same pod is seen again"
            silence(node)
            assert node.owner("gpu-0") is Owner.NONE
            assert any(node.offers("gpu-0")) == (lane is Lane.LEGACY)
            node.yes(Observed(NOON + 700, node.ledger.seq, ELSEWHERE, CheckpointRead(ELSEWHERE), {}))
            assert node.owner("gpu-0") is Owner.NONE, "from now on that name is another plugin's"


def test_a_pod_that_asks_for_the_name_it_is_counted_under_is_waited_for() -> None:
    node = new(0)
    node.yes(AgentStarted(NOON, listed=ELSEWHERE))
    silence(node, unaccounted={"vendor": ("ns/pod",)})
    assert node.owner("gpu-0") is Owner.LEGACY


def test_another_plugin_s_ids_are_not_ours() -> None:
    node = settled(0, 1, 2)
    node.yes(allocate(0))
    node.yes(Observed(NOON + 50, node.ledger.seq, PODS, CheckpointRead(PODS), {}))
    shown = {("vendor", f"GPU-{n}"): (POD,) for n in range(3)}
    for at in (NOON + 500, NOON + 600):
        node.yes(Observed(at, node.ledger.seq, shown, CheckpointRead(shown), {}))
    assert {entry.owner for entry in node.ledger.entries.values()} == {Owner.NONE}, "and keep nothing held"
    node = settled(0, lane=Lane.DRA)
    node.yes(prepare(0))
    node.yes(Observed(NOON + 50, node.ledger.seq, ELSEWHERE, CheckpointRead(ELSEWHERE), {}))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED
    node.yes(AgentStarted(NOON + 60, listed=ELSEWHERE, checkpoint=CheckpointRead(ELSEWHERE)))
    assert node.owner("gpu-0") is Owner.DRA_PREPARED


def test_ids_of_another_plugin_do_not_put_a_known_holder_in_doubt() -> None:
    node = new(0, 1)
    mine = ClaimDevices(CLAIM, (DeviceUse("gpu-1"),))
    node.yes(AgentStarted(NOON, (mine,), {**PODS, **ELSEWHERE, ("vendor", "GPU-1"): (POD,)}))
    assert node.owner("gpu-1") is Owner.DRA_PREPARED
    assert node.owner("gpu-0") is Owner.LEGACY
    assert node.offers("gpu-0") == (True, False), "its pod has it under our own name"


def test_quarantine_stays_while_a_pod_may_have_another_device() -> None:
    for merged in (False, True):
        node = settled(0) if merged else new(0)
        node.yes(RecordLost(NOON, reason="rotten"))
        node.yes(AgentStarted(NOON, listed=ELSEWHERE))
        assert node.owner("gpu-0") is Owner.QUARANTINE
        for at in (NOON + 500, NOON + 600):
            node.yes(Observed(at, node.ledger.seq, ELSEWHERE, CheckpointRead(ELSEWHERE), {}))
        assert node.owner("gpu-0") is Owner.QUARANTINE
        assert node["gpu-0"].hold
        assert (node["gpu-0"].hold.resource, node["gpu-0"].hold.pods) == ("vendor", (POD,))
        for at in (NOON + 700, NOON + 800):
            node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({})))
        assert node.owner("gpu-0") is Owner.QUARANTINE, "kubelet alone does not end it"
        for at in (NOON + 900, NOON + 1000):
            node.yes(Observed(at, node.ledger.seq, {}, CheckpointRead({}), {}))
        assert node.owner("gpu-0") is Owner.NONE


def test_a_claim_that_is_found_where_quarantine_has_seen_a_pod_is_a_conflict() -> None:
    node = new(0)
    node.yes(RecordLost(NOON, reason="rotten"))
    node.yes(AgentStarted(NOON, listed=ELSEWHERE))
    assert node.owner("gpu-0") is Owner.QUARANTINE
    node.yes(AgentStarted(NOON + 1, (ClaimDevices(CLAIM, (DeviceUse("gpu-0"),)),)))
    assert node.owner("gpu-0") is Owner.CONFLICT
    assert node["gpu-0"].hold
    assert node["gpu-0"].hold.pods == (POD,)


def test_the_resource_that_a_hold_is_counted_under_is_saved(tmp_path: Path) -> None:
    for lost in (False, True):
        node = new(0)
        if lost:
            node.yes(RecordLost(NOON, reason="rotten"))
        assert node.yes(AgentStarted(NOON, listed=ELSEWHERE)).durable
        store = Store(tmp_path / str(lost), node="n")
        store.rewrite(node.ledger)
        store.close()
        hold = load(tmp_path / str(lost), "n").ledger.entries["gpu-0"].hold
        assert hold
        assert (hold.resource, hold.units) == ("vendor", ("GPU-0",))


def test_replicas_and_init_containers_elsewhere_count_as_well() -> None:
    node = new(0)
    node.yes(AgentStarted(NOON, (), {}, CheckpointRead({("vendor", "GPU-0::3"): (PodRef(uid="u"),)}, barrier=False)))
    assert node.owner("gpu-0") is Owner.LEGACY
    assert node["gpu-0"].hold
    assert node["gpu-0"].hold.units == ("GPU-0::3",)


def test_an_allocate_by_the_resource_that_a_device_had_is_refused() -> None:
    node = settled(0)
    assert node.no(Allocate({"gpu-0": ("GPU-0",)}, NOON, "before"))[0] is RefusalCode.UNKNOWN
    node.yes(Allocate({"gpu-0": ("GPU-0",)}, NOON, "r"))
