"""Devices that all nodes reach: given on any node, to one claim at a time, whatever coordinators and nodes do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cluster import workloads as w
from tests.cluster.bed import CLAIMS, CLASSES, DEVICES, DRIVER, NAMESPACE, PODS, SLICES, Bed, Json, wait_for
from tests.cluster.real_bed import own_cluster
from tests.cluster.steps import deleted, force_deleted, phase, running
from tests.cluster.three_nodes.bed import AWAY, NAMES, ThreeNodes, config
from tests.cluster.three_nodes.coordinators import another_leads, leader, two_are_ready

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]

POOL = f"{DRIVER}/fabric"
PORT = 7999
_CLUSTER = own_cluster()
DOOR = _CLUSTER.node(NAMES[0]).address if _CLUSTER is not None else "127.0.0.1"
"""Where a pod on the first node's network answers, or does not."""
VALUES = {"coordinator": {"enabled": True}}


def _of(kind: str, name: str, **more: Any) -> Json:
    return {"name": name, "attributes": {"type": {"value": kind}}, "env": {"FABRIC": "{name}"}, **more}


CONFIG = {
    **config(legacy=DEVICES, dra=0),
    "fabric": [
        _of("camera", "lobby"),
        _of("camera", "yard"),
        _of("licence", "licence"),
        _of("door", "door", health={"host": DOOR, "port": PORT, "everySeconds": 1, "failures": 2}),
        _of("rack", "rack", pool="first", nodeSelector={"kubernetes.io/hostname": NAMES[0]}),
    ],
}


async def a_class(bed: Bed, kind: str) -> None:
    """A DeviceClass for the fabric devices of a type."""
    of_driver = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].type == "{kind}"'
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": f"fabric-{kind}"}}
    await bed.api.delete(CLASSES, f"fabric-{kind}")
    await bed.api.create(CLASSES, {**body, "spec": {"selectors": [{"cel": {"expression": of_driver}}]}})


async def a_claim(bed: Bed, name: str, kind: str) -> None:
    await bed.api.create(CLAIMS, w.claim(name, w.request(device_class=f"fabric-{kind}")), namespace=NAMESPACE)


async def a_pod(bed: Bed, name: str, claim: str, node: str = "", **more: Any) -> None:
    """A pod with a claim, which says what it was given."""
    container = {
        "name": "main",
        "image": bed.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "echo has $FABRIC; trap 'exit 0' TERM; sleep 3600 & wait"],
        "resources": {"claims": [{"name": "device"}]},
    }
    claims = [{"name": "device", "resourceClaimName": claim}]
    spec = w.spec_of(node, container, resourceClaims=claims, **more)
    await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)


async def given(bed: Any, pod: str) -> str:
    """The device that a pod says it has."""

    async def said() -> str:
        lines = [line for line in (await bed.said(pod)).splitlines() if line.startswith("has ")]
        return lines[0].removeprefix("has ") if lines else ""

    found: str = await wait_for(bed, f"{pod} to say what it has", said)
    return found


async def slices(bed: Bed) -> list[Json]:
    found = (await bed.api.list(SLICES, field_selector=f"spec.nodeName=,spec.driver={DRIVER}")).items
    return sorted(found, key=lambda one: str(one["metadata"]["name"]))


async def taints(bed: Bed) -> dict[str, str]:
    """Device -> the value of its taint, or ""."""
    devices = [device for one in await slices(bed) for device in one["spec"].get("devices", ())]
    return {one["name"]: (one.get("taints") or [{"value": ""}])[0].get("value", "") for one in devices}


async def published(bed: Bed) -> None:
    async def there() -> bool:
        return set(await taints(bed)) == {"lobby", "yard", "licence", "door", "rack"}

    await wait_for(bed, "the fabric devices to be published", there)


async def ended(bed: Bed, *claims: str) -> None:
    """The claims are deleted, and gone: their devices are free."""
    for name in claims:
        await bed.api.delete(CLAIMS, name, namespace=NAMESPACE)

    async def none() -> bool:
        left = (await bed.api.list(CLAIMS, namespace=NAMESPACE)).items
        return not {one["metadata"]["name"] for one in left} & {*claims}

    await wait_for(bed, "the claims to be gone", none)


async def test_pods_on_all_nodes_get_devices_and_no_device_is_given_twice(three: ThreeNodes) -> None:
    await published(three)
    for kind in ("camera", "licence", "rack"):
        await a_class(three, kind)
    for number, node in enumerate(NAMES[:2]):
        await a_claim(three, f"camera-{number}", "camera")
        await a_pod(three, f"camera-{number}", f"camera-{number}", node)
    await running(three, "camera-0", "camera-1")
    assert {await given(three, f"camera-{number}") for number in (0, 1)} == {"lobby", "yard"}

    await a_claim(three, "licence", "licence")
    for node in NAMES:
        await a_pod(three, f"licence-{node}", "licence", node)
    await running(three, *(f"licence-{node}" for node in NAMES))
    assert {await given(three, f"licence-{node}") for node in NAMES} == {"licence"}, "one claim, on three nodes"

    await a_claim(three, "rack", "rack")
    await a_pod(three, "rack", "rack")
    await running(three, "rack")
    assert (await three.api.get(PODS, "rack", namespace=NAMESPACE))["spec"]["nodeName"] == NAMES[0]

    await a_claim(three, "waits", "camera")
    await a_pod(three, "waits", "waits")
    await three.api.delete(CLAIMS, "camera-0", namespace=NAMESPACE)  # in the middle: its pod keeps it
    await asyncio.sleep(3.0)
    assert await phase(three, "waits") == "Pending"
    assert await phase(three, "camera-0") == "Running"
    await deleted(three, "camera-0")
    await running(three, "waits")
    assert not await three.conflicts()
    await deleted(three, "waits", "camera-1", "rack", *(f"licence-{node}" for node in NAMES))
    await ended(three, "waits", "camera-1", "rack", "licence")


async def test_another_coordinator_writes_nothing_that_is_there_and_goes_on_checking(three: ThreeNodes) -> None:
    await published(three)
    first = await two_are_ready(three)

    async def is_tainted(wanted: str) -> bool:
        return (await taints(three))["door"] == wanted

    await wait_for(three, "the door that nobody opened to be tainted", lambda: is_tainted("refused"))
    before = await slices(three)
    await three.force_delete(first["metadata"]["name"])
    await another_leads(three, first)
    await asyncio.sleep(12.0)  # more than two looks of the new one
    assert await slices(three) == before, "nothing is doubled, deleted, or written again"

    answer = {
        "name": "main",
        "image": three.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", f"trap 'exit 0' TERM; while :; do nc -l -p {PORT} </dev/null >/dev/null; done & wait"],
    }
    spec = w.spec_of(NAMES[0], answer, hostNetwork=True)
    await three.api.create(PODS, w.pod("door", spec), namespace=NAMESPACE)
    await wait_for(three, "the door to answer", lambda: is_tainted(""))
    assert (await leader(three) or {})["metadata"]["uid"] != first["metadata"]["uid"]
    await deleted(three, "door")
    await wait_for(three, "the door to be tainted again", lambda: is_tainted("refused"))


async def test_a_lost_nodes_device_stays_allocated_until_the_api_server_frees_it(three: ThreeNodes) -> None:
    lost, *others = NAMES[::-1]
    await published(three)
    await a_class(three, "camera")
    await a_claim(three, "there", "camera")
    await a_pod(three, "there", "there", lost, tolerations=AWAY)
    await running(three, "there")
    device = await given(three, "there")
    await asyncio.to_thread(three.cluster.node(lost).cut)
    try:
        await three.lost(lost)
        for number in (0, 1):
            await a_claim(three, f"other-{number}", "camera")
            await a_pod(three, f"other-{number}", f"other-{number}", others[0], tolerations=[])

        async def one_runs() -> bool:
            return sorted([await phase(three, f"other-{n}") for n in (0, 1)]) == ["Pending", "Running"]

        await wait_for(three, "one of the others to have the other camera", one_runs)
        await force_deleted(three, "there")  # an administrator says that it is gone
        await running(three, "other-0", "other-1")
        assert device in {await given(three, f"other-{n}") for n in (0, 1)}
    finally:
        await three.back(lost)

    async def unprepared() -> bool:
        return "unprepare" in await three.on(lost).agent_story()

    await wait_for(three, "the node to end what it had", unprepared)
    await deleted(three, "other-0", "other-1")
    await ended(three, "there", "other-0", "other-1")
    await a_claim(three, "again", "camera")
    await a_pod(three, "again", "again", lost)
    await running(three, "again")
    await deleted(three, "again")
    await ended(three, "again")
