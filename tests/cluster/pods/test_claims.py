"""What claims can say: alternatives, all devices, CEL, sharing, admin access, parameters; what a container reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.bed import CLAIMS, CLASS, DRIVER, NAMESPACE, PODS, RESOURCE, Bed, Json, failed, wait_for
from tests.cluster.releases.features import needs
from tests.cluster.steps import allocated, claim_by_pythons_client, deleted, event, phase, pod_with, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARTS = "example.com/cluster-test-parts"
PARTS_CLASS = "drabridge-cluster-test-parts"
CONFIG: Json = {
    **b.CONFIG,
    "resources": [
        {
            **b.CONFIG["resources"][0],
            "lanes": {"legacy": 0, "dra": 4},
            "attributes": {
                "minor": {"from": "property:MINOR", "type": "int"},
                "firmware": {"value": "1.10.2", "type": "version"},
            },
            "capacity": {"memory": {"from": "property:MINOR", "unit": "GiB"}},  # null 3, zero 5, full 7, random 8
            "claimConfig": {"env": ["MODE"], "profiles": {"quiet": {"env": {"VOLUME": "0"}}}},
        },
        {
            "name": PARTS,
            "match": [{"subsystem": "mem", "sysname": "urandom"}],
            "id": ["{sysname}"],
            "nodes": [{"from": "devnode", "as": "/dev/test-{sysname}"}],
            "lanes": {"legacy": 0, "dra": 1},
            "sharing": {"allowMultipleAllocations": True},
            "capacity": {"memory": {"value": "8Gi", "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi"}}}},
            "deviceClass": {"name": PARTS_CLASS},
        },
    ],
}
METADATA = "cat /var/run/kubernetes.io/dra-device-attributes/*/*/*/*-metadata.json"


def cel(expression: str) -> Json:
    return {"selectors": [{"cel": {"expression": expression}}]}


FIRMWARE = f'device.attributes["{DRIVER}"].firmware'
MEMORY = f'device.capacity["{DRIVER}"].memory'


async def test_the_second_alternative_is_taken_where_the_first_cannot_be(bed: Bed) -> None:
    alternatives = [
        {"name": "huge", "deviceClassName": CLASS, **cel(f'{MEMORY}.compareTo(quantity("500Gi")) >= 0')},
        {"name": "two", "deviceClassName": CLASS, "count": 2},
    ]
    await pod_with(bed, "flexible", {"name": "one", "firstAvailable": alternatives})
    await running(bed, "flexible")
    found = await allocated(bed, "flexible")
    assert [request for request, _ in found] == ["one/two", "one/two"]
    assert sorted(await bed.devices("flexible")) == sorted(device for _, device in found)


async def test_all_devices_of_a_node_and_then_none_is_left(bed: Bed) -> None:
    await pod_with(bed, "greedy", w.request(allocationMode="All"))
    await running(bed, "greedy")
    assert sorted(await bed.devices("greedy")) == ["full", "null", "random", "zero"]
    await pod_with(bed, "late")
    await event(bed, "late", "FailedScheduling")
    await deleted(bed, "greedy")
    await bed.api.delete(CLAIMS, "greedy", namespace=NAMESPACE)
    await running(bed, "late")


async def test_selectors_compare_versions_and_quantities(bed: Bed) -> None:
    """1.10.2 is greater than 1.9.0 as a version, and less as text."""
    newer = f'{FIRMWARE}.isGreaterThan(semver("1.9.0"))'
    await pod_with(bed, "picky", w.request(**cel(f'{newer} && {MEMORY}.compareTo(quantity("8Gi")) >= 0')))
    await running(bed, "picky")
    assert await bed.devices("picky") == ["random"]
    await pod_with(bed, "never", w.request(**cel(f'{FIRMWARE}.isGreaterThan(semver("2.0.0"))')))
    await event(bed, "never", "FailedScheduling")
    assert await phase(bed, "never") == "Pending"


async def test_several_requests_of_a_claim_go_to_several_containers(bed: Bed) -> None:
    await bed.api.create(CLAIMS, w.claim("pair", w.request("left"), w.request("right", count=2)), namespace=NAMESPACE)
    containers = [
        w.container(bed.image, {"claims": [{"name": "device", "request": name}]}, name=name)
        for name in ("left", "right")
    ]
    spec = w.spec_of(bed.node, *containers, resourceClaims=[{"name": "device", "resourceClaimName": "pair"}])
    await bed.api.create(PODS, w.pod("pair", spec), namespace=NAMESPACE)
    await running(bed, "pair")
    found = await allocated(bed, "pair")
    assert [request for request, _ in found] == ["left", "right", "right"]
    assert sorted(await bed.devices("pair")) == sorted(device for _, device in found)


async def test_a_claim_is_shared_by_containers_and_by_pods(bed: Bed) -> None:
    name = f"{w.SHARED}-by-four"
    await bed.api.create(CLAIMS, w.claim(name), namespace=NAMESPACE)
    for pod in ("a", "b"):
        containers = [
            w.container(bed.image, {"claims": [{"name": "device"}]}, name=n, mode="-s") for n in ("main", "other")
        ]
        spec = w.spec_of(bed.node, *containers, resourceClaims=[{"name": "device", "resourceClaimName": name}])
        await bed.api.create(PODS, w.pod(pod, spec), namespace=NAMESPACE)
    await running(bed, "a", "b")
    ((_, device),) = await allocated(bed, name)
    assert set(await bed.devices("a")) == set(await bed.devices("b")) == {device}
    await deleted(bed, "a")
    await pod_with(bed, "c", w.request(count=3))
    await running(bed, "b", "c")
    assert device not in await bed.devices("c"), "one pod of two has ended: the device is held"


async def test_admin_access_sees_every_device_and_takes_none(bed: Bed) -> None:
    await pod_with(bed, "worker")
    await running(bed, "worker")
    await pod_with(bed, f"{w.LOOKING}-at-all", w.request(allocationMode="All", adminAccess=True), mode=w.UNLOCKED)
    await running(bed, f"{w.LOOKING}-at-all")
    assert sorted(await bed.devices(f"{w.LOOKING}-at-all")) == ["full", "null", "random", "zero"]
    await pod_with(bed, "more", w.request(count=3))
    await running(bed, "worker", "more")
    await deleted(bed, f"{w.LOOKING}-at-all")
    await running(bed, "worker", "more")


@needs("consumable capacity")
async def test_claims_share_a_device_by_what_they_consume(bed: Bed) -> None:
    """8 GiB: one claim takes six, another the default of one; a third that wants two has to wait for the first.

    The second comes when the first has its part: while an allocation of the device is under way the scheduler of 1.36
    was seen to refuse another one, and it looks again after five minutes.
    """
    six = w.request(device_class=PARTS_CLASS, capacity={"requests": {"memory": "6Gi"}})
    two = w.request(device_class=PARTS_CLASS, capacity={"requests": {"memory": "2Gi"}})
    await pod_with(bed, f"{w.SHARED}-six", six, mode="-s")
    await running(bed, f"{w.SHARED}-six")
    await pod_with(bed, f"{w.SHARED}-one", w.request(device_class=PARTS_CLASS), mode="-s")
    await running(bed, f"{w.SHARED}-one")
    await pod_with(bed, f"{w.SHARED}-two", two, mode="-s")
    await event(bed, f"{w.SHARED}-two", "FailedScheduling")
    assert await bed.devices(f"{w.SHARED}-six") == await bed.devices(f"{w.SHARED}-one") == ["urandom"]
    await deleted(bed, f"{w.SHARED}-six")
    await bed.api.delete(CLAIMS, f"{w.SHARED}-six", namespace=NAMESPACE)
    await running(bed, f"{w.SHARED}-one", f"{w.SHARED}-two")


def parameters(**wanted: Any) -> tuple[Json, ...]:
    document = {"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig", **wanted}
    return ({"requests": ["one"], "opaque": {"driver": DRIVER, "parameters": document}},)


async def test_parameters_reach_the_container_and_what_is_not_allowed_harms_nobody_else(bed: Bed) -> None:
    await pod_with(
        bed, "tuned", config=parameters(profile="quiet", env={"MODE": "fast"}), then="echo MODE=$MODE VOLUME=$VOLUME"
    )
    await pod_with(bed, "bold", config=parameters(env={"LD_PRELOAD": "/evil.so"}))
    await running(bed, "tuned")
    await event(bed, "bold", "FailedPrepareDynamicResources", "LD_PRELOAD")
    assert await phase(bed, "bold") == "Pending"
    await pod_with(bed, "next")
    await running(bed, "tuned", "next")
    if (log := await bed.said("tuned")) is not None:
        assert "MODE=fast VOLUME=0" in log


@needs("device status")
async def test_a_claim_whose_parameters_another_client_spelt_has_its_status(bed: Bed) -> None:
    """The API server may let nobody PATCH it (dra/claim_encoding.py)."""
    await claim_by_pythons_client(bed, w.claim("spelt", config=parameters(env={"MODE": "<fast>"})))
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimName": "spelt"}, then="echo MODE=$MODE")
    await bed.api.create(PODS, w.pod("spelt", spec), namespace=NAMESPACE)
    await running(bed, "spelt")
    if (log := await bed.said("spelt")) is not None:
        assert "MODE=<fast>" in log

    async def ready() -> bool:
        devices = (await bed.api.get(CLAIMS, "spelt", namespace=NAMESPACE))["status"].get("devices", ())
        return any(one["type"] == "Ready" for entry in devices for one in entry["conditions"])

    await wait_for(bed, "the claim's status to have its device", ready)


async def test_a_container_reads_which_device_it_has(bed: Bed) -> None:
    await pod_with(bed, "reader", w.request(**cel(f'device.attributes["{DRIVER}"].minor == 7')), then=METADATA)
    await running(bed, "reader")
    assert await bed.devices("reader") == ["full"]
    if (text := await bed.said("reader")) is not None:
        document, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
        if [one["name"] for one in document["requests"]] != ["one"]:
            raise await failed(bed, f"not the request that was asked for: {document}")
        (device,) = document["requests"][0]["devices"]
        assert device["name"] == "full"
        assert device["attributes"]["minor"] == {"int": 7}
        assert device["attributes"]["resource"] == {"string": RESOURCE}
