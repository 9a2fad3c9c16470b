"""Which pods are evicted because their device is lost: those that are proven to have it, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
from msgspec.structs import replace

from deploy.helm import manifests
from drabridge.agent.evictions import Evictor
from drabridge.config import load
from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.inventory.devices import Device, Presence
from drabridge.kube.client import KubernetesCluster
from drabridge.ledger.effects import Notify
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    Entry,
    Hold,
    Lane,
    Ledger,
    LedgerDevice,
    Owner,
    PodRef,
)
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.waiting import until

RESOURCE = "example.com/r"
NOON = 1_700_000_000.0
CONFIG = load(f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: gpu.example.com
resources:
- name: {RESOURCE}
  match: [{{subsystem: pci}}]
  evictHolders: {{afterSeconds: 30}}
""")
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "c", "namespace": "team"},
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "x"}}]}},
}


class Place:
    """A pod on this node at a simulated API server, the watch that sees it, and a ledger where it has a device."""

    def __init__(self, server: SimApiServer, cluster: KubernetesCluster) -> None:
        self.server, self.cluster = server, cluster
        self.pods = PodWatch(cluster, "node-a", lambda: None)
        self.entry = Entry(LedgerDevice("gpu-0", RESOURCE, ("GPU-0",), syspath="/sys/a"))
        self.others: tuple[Entry, ...] = ()
        self.devices: dict[str, Device] = {}
        self.at = NOON
        self.told: list[Notify] = []
        self.counted: list[str] = []
        anything = cast("Any", self)  # it has the ledger, a cluster and its version, and the pods
        self.evictor = Evictor(
            lambda: CONFIG,
            lambda: self.devices,
            anything,
            anything,
            anything,
            anything,
            self.told.append,
            lambda resource, result: self.counted.append(result),
            lambda: self.at,
        )

    api_version = "v1"

    @property
    def ledger(self) -> Ledger:
        return Ledger.of((self.entry, *self.others))

    def make_pod(self) -> str:
        limits = {"resources": {"limits": {RESOURCE: "1"}}}
        spec = {"nodeName": "node-a", "containers": [{"name": "main", "image": "x", **limits}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}, "spec": spec}
        return str(self.server.objects.create(pod)["metadata"]["uid"])

    async def holder(self) -> str:
        """Make the pod, and the device its."""
        uid = self.make_pod()
        await until(lambda: self.pods.living([uid]))
        record = (PodRef("", "", "main", uid),)
        self.entry = replace(self.entry, owner=Owner.LEGACY, hold=Hold(("GPU-0",), NOON, recorded=record))
        return uid

    def unplug(self) -> None:
        self.entry = replace(
            self.entry, device=replace(self.entry.device, presence=Presence.GONE), presence_since=self.at
        )

    def is_there(self) -> bool:
        return any(not pod["metadata"].get("deletionTimestamp") for pod in self.server.objects.peek("pods"))


@pytest_asyncio.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with SimApiServer() as server:
        server.objects.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
        cluster = KubernetesCluster.from_kubeconfig(server.kubeconfig(tmp_path / "kubeconfig"))
        found = Place(server, cluster)
        watching = asyncio.create_task(found.pods.run())
        try:
            yield found
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            cluster.close()


async def test_a_device_that_is_away_for_a_moment_costs_no_pod(place: Place) -> None:
    await place.holder()
    place.at += 1000
    place.unplug()
    place.at += 29
    await place.evictor.look()
    assert place.is_there()
    place.at += 2
    await place.evictor.look()
    assert not place.is_there()
    assert place.counted == ["evicted"]
    assert "gpu-0 is gone for 31 s" in place.told[0].message
    await place.evictor.look()
    assert place.counted == ["evicted"]


async def test_a_device_that_comes_late_after_a_boot_costs_no_pod(place: Place) -> None:
    await place.holder()
    place.at -= 1000
    place.unplug()  # before this agent began
    place.at += 1029
    await place.evictor.look()
    assert place.is_there()


async def test_another_device_in_its_place_counts_at_once(place: Place) -> None:
    await place.holder()
    place.unplug()
    place.others = (Entry(LedgerDevice("gpu-9", RESOURCE, ("GPU-9",), syspath="/sys/a")),)
    await place.evictor.look()
    assert not place.is_there()
    assert "gpu-9 is in its place" in place.told[0].message


async def test_another_serial_counts_only_for_who_had_the_one_before(place: Place) -> None:
    await place.holder()
    device = Device("gpu-0", "GPU-0", RESOURCE, serial="one")
    for serial in ("one", "one", ""):  # not read for a moment
        place.devices = {"gpu-0": replace(device, serial=serial)}
        await place.evictor.look()
    assert place.is_there()
    place.devices = {"gpu-0": replace(device, serial="two")}
    await place.evictor.look()
    assert not place.is_there()
    assert "its serial was one, and is two" in place.told[0].message


async def test_a_pod_that_has_the_name_of_the_holder_is_not_the_holder(place: Place) -> None:
    uid = await place.holder()
    place.server.objects.delete("pods", "p", "team", grace_seconds=0)
    stale = place.pods.living([uid])
    place.make_pod()
    place.pods.living = lambda uids: stale if uid in uids else []  # type: ignore[method-assign]  # a watch that lags
    place.unplug()
    place.at += 100
    await place.evictor.look()
    assert place.is_there()
    assert (place.counted, place.told) == ([], [])


async def test_without_the_proof_of_a_uid_nobody_is_evicted(place: Place) -> None:
    uid = await place.holder()
    hold = place.entry.hold
    assert hold is not None
    named = (PodRef("team", "p", "main", uid),)
    place.entry = replace(place.entry, hold=replace(hold, recorded=(), pods=named))  # by name, in PodResources
    place.unplug()
    place.at += 100
    await place.evictor.look()
    assert place.is_there()


@pytest.mark.parametrize("mine", [True, False])
async def test_a_claims_pods_are_those_for_which_its_uid_is_reserved(place: Place, mine: bool) -> None:
    uid = await place.holder()
    claim = place.server.objects.create(CLAIM)
    reserved = [{"resource": "pods", "name": "p", "uid": uid}]
    devices = {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]}
    status = {"allocation": {"devices": devices}, "reservedFor": reserved}
    place.server.objects.modify(
        "resourceclaims", "c", lambda obj: obj.update(status=status), namespace="team", subresource="status"
    )
    own = claim["metadata"]["uid"] if mine else "another"
    held = ClaimHold(ClaimRef(own, "team", "c"), ClaimPhase.PREPARED, NOON)
    place.entry = replace(place.entry, owner=Owner.DRA_PREPARED, lane=Lane.DRA, hold=None, claims=(held,))
    place.unplug()
    place.at += 100
    await place.evictor.look()
    assert place.is_there() is not mine


async def test_a_budget_is_asked_again_later_and_a_right_that_lacks_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await place.holder()
    place.unplug()
    place.at += 100
    place.server.faults.fail(1, 403, verb="create")
    await place.evictor.look()
    assert "the chart grants it" in place.evictor.notes()[0]
    await place.evictor.look()
    assert place.counted == ["denied"]  # not every three seconds
    monkeypatch.setattr(place.evictor, "_again", {})
    place.server.faults.fail(1, 429, verb="create")
    await place.evictor.look()
    await place.evictor.look()
    assert place.counted == ["denied", "refused"]
    assert place.is_there()
    monkeypatch.setattr(place.evictor, "_again", {})
    await place.evictor.look()
    assert not place.is_there()
    assert place.evictor.notes() == []


@pytest.mark.parametrize("asked", [None, {}, {"afterSeconds": 5}])
def test_the_right_to_evict_is_granted_only_where_it_is_used(asked: dict[str, int] | None) -> None:
    resource = {"name": RESOURCE, "match": [{"subsystem": "pci"}]} | ({} if asked is None else {"evictHolders": asked})
    config = {"driver": "gpu.example.com", "resources": [resource]}
    (role,) = [one for one in manifests({"config": config}) if one["kind"] == "ClusterRole"]
    granted = [rule["verbs"] for rule in role["rules"] if "pods/eviction" in rule["resources"]]
    assert granted == ([] if asked is None else [["create"]])
