"""What differs between the releases of the API server: gates, kinds, field selectors, versions."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.sim.apiserver.gates import merged_gates
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.api_client import Client, slice_body

RELEASES = ("1.34", "1.35", "1.36", "1.37")
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
RULES = "/apis/resource.k8s.io/v1/devicetaintrules"
RULE = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceTaintRule",
    "metadata": {"name": "repair"},
    "spec": {
        "deviceSelector": {"driver": "d.example.com"},
        "taint": {"key": "example.com/repair", "effect": "NoExecute"},
    },
}


@pytest.mark.parametrize(
    ("gate", "on"),
    [
        ("DRAAdminAccess", (True, True, True, True)),
        ("DRAConsumableCapacity", (False, False, True, True)),
        ("DRADeviceBindingConditions", (False, False, True, True)),
        ("DRADeviceTaintRules", (False, False, False, True)),
        ("DRADeviceTaints", (False, False, True, True)),
        ("DRAExtendedResource", (False, False, True, True)),
        ("DRAPartitionableDevices", (False, False, True, True)),
        ("DRAPrioritizedList", (True, True, True, True)),
        ("DRAResourceClaimDeviceStatus", (True, True, True, True)),
        ("DRAResourceClaimGranularStatusAuthorization", (False, False, True, True)),
    ],
)
def test_gates_are_on_by_default_since_their_beta(gate: str, on: tuple[bool, ...]) -> None:
    assert tuple(merged_gates(None, release)[gate] for release in RELEASES) == on


@pytest.mark.parametrize(
    ("gate", "release", "error"),
    [
        ("DRAExtendedResource", "1.36", ""),
        ("DRAExtendedResource", "1.37", "locked to true"),
        ("DRAResourceClaimDeviceStatus", "1.37", "locked to true"),
        ("DRADeviceTaints", "1.37", ""),  # GA, and locked in 1.38
        ("DRADeviceTaints", "1.38", "locked to true"),
        ("DRADeviceTaintRules", "1.34", "unknown feature gates"),
    ],
)
def test_a_gate_can_be_switched_off_until_it_is_locked(gate: str, release: str, error: str) -> None:
    if error:
        with pytest.raises(ValueError, match=error):
            merged_gates({gate: False}, release)
    else:
        assert merged_gates({gate: False}, release)[gate] is False


@pytest.mark.parametrize("release", RELEASES)
async def test_slices_are_selected_by_pool_since_1_37(release: str) -> None:
    async with SimApiServer(release=release) as api:
        client = Client(api)
        for name, pool in (("a", "p"), ("b", "q")):
            body = slice_body(name, "d0", pool={"name": pool, "generation": 1, "resourceSliceCount": 1})
            assert (await client("POST", SLICES, body)).status == 201
        by_pool = await client("GET", f"{SLICES}?fieldSelector=spec.pool.name%3Dq")
        if release == "1.37":
            assert [item["metadata"]["name"] for item in by_pool.body["items"]] == ["b"]
        else:
            assert by_pool.status == 400
            words = "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.pool.name"
            assert by_pool.body["message"] == words
        by_node = await client("GET", f"{SLICES}?fieldSelector=spec.nodeName%3Dnode-a")
        assert len(by_node.body["items"]) == 2


@pytest.mark.parametrize(("release", "gates"), [("1.36", {}), ("1.37", {"DRADeviceTaintRules": False}), ("1.37", {})])
async def test_rules_that_taint_devices_are_a_kind_since_1_37(release: str, gates: dict[str, bool]) -> None:
    async with SimApiServer(release=release, gates=gates) as api:
        client = Client(api)
        listed = await client("GET", "/apis/resource.k8s.io/v1")
        served = release == "1.37" and not gates
        assert ("devicetaintrules" in [one["name"] for one in listed.body["resources"]]) is served
        older = await client("GET", "/apis/resource.k8s.io/v1beta2")
        assert "devicetaintrules" not in [one["name"] for one in older.body["resources"]]
        created = await client("POST", RULES, RULE)
        assert created.status == (201 if served else 404)
        if served:
            assert created.body["spec"]["taint"]["timeAdded"]
            wrong: Any = {**RULE, "metadata": {"name": "w"}, "spec": {"taint": {"key": "k", "effect": "Never"}}}
            refused = await client("POST", RULES, wrong)
            assert (refused.status, refused.body["details"]["causes"][0]["field"]) == (422, "spec.taint.effect")


@pytest.mark.parametrize("release", RELEASES)
async def test_the_server_says_which_release_it_is(release: str) -> None:
    async with SimApiServer(release=release) as api:
        answer = await Client(api)("GET", "/version")
        assert f"{answer.body['major']}.{answer.body['minor']}" == release
