"""Held seconds by workload, and each hold once: what a bill and an audit are made of."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from drabridge.inventory.devices import Device
from drabridge.ledger.entries import Entry, Lane, LedgerDevice, PodRef
from drabridge.ledger.events import Allocate, CheckpointRead, ClaimDeallocated, Event, Observed, Unprepare
from drabridge.ledger.proofs import End
from drabridge.telemetry import holds
from drabridge.telemetry.holds import Ended, Holding, Holds
from tests.support.ledger_node import CLAIM, NOON, POD, Node, allocate, device, prepare

NEXT = PodRef("team-b", "next", "main", "next-uid")
Labels = tuple[str, ...]


class Watched:
    """A node and what is counted on it. Both clocks go on with :meth:`wait`."""

    def __init__(self, *entries: Entry, owners: dict[str, str] | None = None) -> None:
        self.node, self.at, self.owners = Node(*entries), NOON, owners if owners is not None else {}
        self.holds = Holds(self._owner_of, lambda: self.at)

    def _owner_of(self, holding: Holding) -> str:
        return self.owners.get(holding.name, "")

    def wait(self, seconds: float) -> None:
        self.at += seconds

    def do(self, event: Event) -> list[Ended]:
        self.node.yes(replace(event, at=self.at))
        return self.holds.follow(self.node.ledger, self.at)

    def show(self, *pods: PodRef, unit: str = "GPU-0", ended: str = "") -> list[Ended]:
        shown = {("r", unit): pods} if pods else {}
        ends = {ended: End.REPORTED} if ended else {}
        return self.do(Observed(0.0, self.node.ledger.seq, shown, CheckpointRead(shown, True), ends=ends))

    def let_go(self, uid: str) -> list[Ended]:
        ended = []
        for _ in range(3):
            self.wait(60)
            ended += self.show(ended=uid)
        return ended

    @property
    def seconds(self) -> dict[Labels, float]:
        return {labels: value for _, labels, value in self.holds.samples()}


def test_seconds_go_on_while_a_pod_has_the_device_and_end_with_it() -> None:
    node = Watched(device(0), owners={"notebook": "Deployment/web"})
    assert node.do(allocate(0)) == []
    node.wait(5)
    assert node.seconds == {}  # kubelet has not shown the pod yet
    node.show(POD)
    node.wait(5)
    series = ("team-a", "Deployment", "web", "deviceplugin", "r")
    assert node.seconds == {series: 10}
    node.wait(30)
    assert node.seconds == {series: 40}
    (one,) = node.let_go(POD.uid)
    assert (one.holding.owner, one.holding.since, one.until > NOON + 40) == ("Deployment/web", NOON, True)
    until = node.seconds[series]
    node.wait(100)
    assert node.seconds == {series: until}


def test_a_pod_whose_device_kubelet_gave_on_at_once_has_an_end_of_its_own() -> None:
    """Kubelet allocates the device again before the agent has seen that the first pod ended."""
    node = Watched(device(0))
    node.do(allocate(0))
    node.show(POD)
    node.wait(100)
    assert node.do(allocate(0)) == []  # perhaps the pod's next container
    assert [one.name for one in node.holds.open] == ["notebook"]
    node.wait(5)
    (one,) = node.show(NEXT)
    assert (one.holding.name, one.until, one.because) == ("notebook", NOON + 100, "another pod has it")
    assert [(one.name, one.since) for one in node.holds.open] == [("next", NOON + 100)]
    node.do(allocate(0))
    assert node.show(NEXT) == []  # its own next container


def test_claims_count_from_their_grant_to_their_end_and_sharers_each() -> None:
    node = Watched(device(0, Lane.DRA), owners={"train": "Job/train"})
    node.do(prepare(0))
    node.wait(20)
    assert node.seconds == {("team-a", "Job", "train", "dra", "r"): 20}
    node.do(Unprepare(CLAIM.uid, 0.0))
    (one,) = node.do(ClaimDeallocated(CLAIM.uid, 0.0))
    assert (one.holding.uid, one.until - one.holding.since) == (CLAIM.uid, 20)
    node = Watched(Entry(LedgerDevice.of(Device("gpu-0", "GPU-0", "r", replicas=2))))
    for pod, unit in ((POD, "GPU-0::0"), (NEXT, "GPU-0::1")):
        node.do(Allocate({"gpu-0": (unit,)}, 0.0))
        shown = {("r", "GPU-0::0"): (POD,)} | ({("r", "GPU-0::1"): (NEXT,)} if pod is NEXT else {})
        node.do(Observed(0.0, node.node.ledger.seq, shown, CheckpointRead(shown, True)))
        node.wait(holds.PATIENCE_SECONDS)
    assert sorted(node.seconds.values()) == [holds.PATIENCE_SECONDS, 2 * holds.PATIENCE_SECONDS]


def test_owners_and_namespaces_beyond_the_bound_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant makes any number of workloads and namespaces; Prometheus must live."""
    monkeypatch.setattr(holds, "SERIES_MAX", 10)
    monkeypatch.setattr(holds, "OVERFLOW_MAX", 20)
    node = Watched(device(0))
    for number in range(70):
        pod = PodRef(f"ns-{number}", "p", "main", f"uid-{number}")
        node.node = Node(device(0))
        node.do(allocate(0))
        node.owners = {"p": f"Job/{number}"}
        node.show(pod)
        node.wait(1)
    found = node.seconds
    assert len(found) <= holds.OVERFLOW_MAX + 1
    assert found["ns-0", "Job", "0", "deviceplugin", "r"] == 1
    assert found["other", "", "other", "deviceplugin", "r"] > holds.OVERFLOW_MAX
    assert sum(found.values()) == 70
