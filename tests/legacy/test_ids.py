"""Ids that a device no longer has: listed as long as kubelet may use them, given to nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from deviceplugin import AllocationError, ContainerAllocation, ListedHealth
from drabridge.config import load
from drabridge.containers.cdi_store import CdiStore
from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.evidence.pod_objects import watched_pod
from drabridge.inventory.devices import Device, DeviceNode
from drabridge.ledger.entries import LedgerDevice, Owner, PodRef
from drabridge.ledger.events import AgentStarted, CheckpointRead, Discovered, NodeBooted, Observed
from drabridge.ledger.policy import LedgerPolicy
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Store
from drabridge.legacy.resource import LegacyContext, LegacyResource

RESOURCE = load("""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: example.com
resources:
- name: example.com/card
  match: [{subsystem: drm}]
""").resources[0]
CARD = Device("card-0", "C0", RESOURCE.name, nodes=(DeviceNode("/dev/null", "/dev/card", "rw", "c", 1, 3),), replicas=4)
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


class Place:
    """One resource with one device of so many replicas, on a real ledger; ``now`` is its clock."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.card = CARD
        self.ledger_service = LedgerService(Store(directory / "state", node="n"), LedgerPolicy(), now=lambda: self.now)
        self.resource = LegacyResource(
            RESOURCE,
            "cdi",
            LegacyContext(
                ledger_service=self.ledger_service,
                cdi=CdiStore(directory / "cdi", "example.com"),
                devices=lambda: {self.card.name: self.card},
                resolve=lambda device: device,
                now=lambda: self.now,
            ),
        )

    async def have(self, replicas: int) -> None:
        self.card = replace(CARD, replicas=replicas)
        await self.ledger_service.apply(Discovered((LedgerDevice.of(self.card),), self.now))

    async def allocate(self, *ids: str) -> ContainerAllocation:
        answer = self.resource.allocate(ids)
        return answer if isinstance(answer, ContainerAllocation) else await answer

    @property
    def listed(self) -> dict[str, str]:
        current = self.resource.devices().current
        assert current is not None
        return {one.id: HEALTHY if one.health is ListedHealth.HEALTHY else UNHEALTHY for one in current.value}

    @property
    def owner(self) -> Owner:
        return self.ledger_service.ledger.entries["card-0"].owner


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    await place.ledger_service.apply(NodeBooted("boot", 0.0))
    await place.have(4)
    await place.ledger_service.apply(AgentStarted(0.0))
    place.resource.follow_inventory()
    yield place
    await place.ledger_service.close()


async def test_former_ids_stay_listed_for_the_tombstone_time(place: Place) -> None:
    await place.have(2)
    place.resource.follow_ledger()  # may come before follow_inventory(): the ledger tells of its change at once
    wanted = {"C0::0": HEALTHY, "C0::1": HEALTHY, "C0::2": UNHEALTHY, "C0::3": UNHEALTHY}
    assert place.listed == wanted
    place.now = 59.0
    place.resource.follow_inventory()
    assert place.listed == wanted
    place.now = 61.0
    place.resource.follow_inventory(recent=frozenset({"C0::3"}))  # kubelet asked about it a moment ago
    assert place.listed == {"C0::0": HEALTHY, "C0::1": HEALTHY, "C0::3": UNHEALTHY}
    place.resource.follow_inventory()
    assert place.listed == {"C0::0": HEALTHY, "C0::1": HEALTHY}


async def test_what_a_pod_has_stays_listed_and_is_answered_again(place: Place) -> None:
    await place.allocate("C0::3")
    await place.have(2)
    place.now = 600.0
    for _ in range(2):
        place.resource.follow_inventory()
        assert place.listed["C0::3"] == HEALTHY  # or kubelet would fail the pod when it restarts
        assert await place.allocate("C0::3")  # the app container after the init container
    with pytest.raises(AllocationError, match="no share C0::2 to give"):
        await place.allocate("C0::2")  # chosen before kubelet had read the list
    assert place.owner is Owner.LEGACY
    assert place.ledger_service.ledger.entries["card-0"].hold is not None


async def test_fewer_replicas_are_not_shared_by_more_pods_than_that(place: Place) -> None:
    await place.allocate("C0::0", "C0::3")
    await place.have(1)
    place.resource.follow_inventory()
    assert place.listed == {"C0": UNHEALTHY} | {
        f"C0::{n}": health for n, health in enumerate([HEALTHY, UNHEALTHY, UNHEALTHY, HEALTHY])
    }
    with pytest.raises(AllocationError, match="fewer replicas"):
        await place.allocate("C0")
    await place.have(3)
    place.resource.follow_inventory()
    assert place.listed == {"C0": UNHEALTHY} | {
        f"C0::{n}": health for n, health in enumerate([HEALTHY, HEALTHY, HEALTHY, HEALTHY])
    }
    await place.allocate("C0::1")
    place.resource.follow_ledger()
    assert place.listed["C0::2"] == UNHEALTHY  # ::0, ::1 and ::3 are three


async def test_an_id_that_comes_back_is_offered_again(place: Place) -> None:
    for count in (1, 4):
        await place.have(count)
        place.resource.follow_ledger()
    assert place.listed == {"C0": UNHEALTHY} | {f"C0::{n}": HEALTHY for n in range(4)}
    assert await place.allocate("C0::3")


async def test_a_start_believes_what_the_ledger_says_a_pod_has(place: Place, tmp_path: Path) -> None:
    await place.allocate("C0::3")
    await place.ledger_service.close()
    after = Place(tmp_path)
    await after.have(2)
    await after.ledger_service.apply(AgentStarted(1.0))
    after.resource.follow_inventory()
    assert after.listed == {"C0::0": HEALTHY, "C0::1": HEALTHY, "C0::3": HEALTHY}
    await after.ledger_service.close()


POD = PodRef("default", "p", "main")


async def test_a_pod_that_kubelet_shows_with_a_former_id_holds_the_device(place: Place) -> None:
    """Another agent had more replicas, or the record was lost."""
    await place.have(2)
    await place.ledger_service.apply(AgentStarted(1.0, listed={(RESOURCE.name, "C0::139"): (POD,)}))
    assert place.owner is Owner.LEGACY
    place.resource.follow_inventory()
    assert place.listed["C0::139"] == HEALTHY


async def test_evidence_finds_a_pod_by_any_id_of_the_device(place: Place) -> None:
    await place.have(2)
    seq = place.ledger_service.ledger.seq
    observed = Observed(at=1.0, since_seq=seq, listed={(RESOURCE.name, "C0::139"): (POD,)})
    pods = PodWatch(None, "n", lambda: None)  # type: ignore[arg-type]
    container = {"resources": {"limits": {RESOURCE.name: "1"}}}
    metadata = {"namespace": "default", "name": "p", "uid": "u"}
    pods.listed((watched_pod({"metadata": metadata, "spec": {"containers": [container]}}),))
    assert pods.unaccounted(place.ledger_service.ledger, observed) == {}
    await place.ledger_service.apply(observed)
    assert place.owner is Owner.LEGACY


def shown(*units: str) -> dict[tuple[str, str], tuple[PodRef, ...]]:
    return {(RESOURCE.name, unit): (replace(POD, name=unit),) for unit in units}


async def look(place: Place, at: float, *units: str, checkpoint: bool = True) -> None:
    place.now = at
    file = CheckpointRead(shown(*units)) if checkpoint else None
    await place.ledger_service.apply(Observed(at, place.ledger_service.ledger.seq, shown(*units), file))
    place.resource.follow_inventory()


async def test_a_removed_replica_is_given_to_nobody_once_its_pod_has_ended(place: Place) -> None:
    await place.allocate("C0::0", "C0::2", "C0::3")
    await place.have(2)
    await look(place, 65.0, "C0::0", "C0::2", "C0::3")
    assert place.listed == {"C0::0": HEALTHY, "C0::1": UNHEALTHY, "C0::2": HEALTHY, "C0::3": HEALTHY}
    await look(place, 70.0, "C0::0", "C0::2", checkpoint=False)
    assert place.listed["C0::3"] == HEALTHY  # PodResources alone does not show init containers
    await look(place, 75.0, "C0::0", "C0::2")
    assert place.listed == {"C0::0": HEALTHY, "C0::1": UNHEALTHY, "C0::2": HEALTHY, "C0::3": UNHEALTHY}
    with pytest.raises(AllocationError, match="no share C0::3 to give"):
        await place.allocate("C0::3")
    await look(place, 80.0, "C0::0", "C0::2", "C0::3")  # it was a mistake
    assert place.listed["C0::3"] == HEALTHY
    await look(place, 85.0, "C0::0")
    assert place.listed == {"C0::0": HEALTHY, "C0::1": HEALTHY, "C0::2": UNHEALTHY, "C0::3": UNHEALTHY}
    assert place.owner is Owner.LEGACY


async def test_a_share_that_was_just_given_is_not_taken_for_one_whose_pod_has_ended(place: Place) -> None:
    await place.allocate("C0::0", "C0::3")
    await place.have(2)
    await look(place, 100.0, "C0::0", "C0::3")
    assert await place.allocate("C0::3")  # the app container after the init container
    await look(place, 101.0, "C0::0")
    assert place.listed["C0::3"] == HEALTHY
