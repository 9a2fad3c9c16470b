"""What differs between the releases of the API server: gates, kinds, field selectors, versions."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.releases import RELEASES, kubelet_of
from tests.support.api_client import Client, slice_body

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
    ("gate", "name", "error"),
    [
        ("DRAExtendedResource", "1.36", ""),
        ("DRAExtendedResource", "1.37", "locked to true"),
        ("DRADeviceTaintRules", "1.34", "unknown feature gates"),
        ("DRATypo", "1.37", "unknown feature gates"),
    ],
)
def test_a_gate_can_be_switched_off_until_it_is_locked(gate: str, name: str, error: str) -> None:
    if error:
        with pytest.raises(ValueError, match=error):
            SimApiServer(release=name, gates={gate: False})
    else:
        assert SimApiServer(release=name, gates={gate: False}).gates[gate] is False


@pytest.mark.parametrize("text", ["2.0", "1", "1.x", "", "one"])
def test_malformed_releases_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a text like"):
        kubelet_of(text)


@pytest.mark.parametrize(("text", "error"), [("1.25", "1.26 to 1"), ("1.99.0", "1.26 to 1"), ("v1.33", "of 1.34")])
def test_what_is_not_in_the_table_is_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SimApiServer(release=text)


def test_kubelets_before_1_34_are_one_row() -> None:
    rows = [kubelet_of(text) for text in ("1.26", "v1.33.7")]
    assert [row.version for row in rows] == ["v1.26.0", "v1.33.0"]
    assert rows[0].dra_services == rows[1].dra_services == ("v1beta1.DRAPlugin",)


@pytest.mark.parametrize("release", RELEASES)
async def test_slices_are_selected_by_pool_since_1_37(release: str) -> None:
    async with SimApiServer(release=release) as api:
        client = Client(api)
        for name, pool in (("a", "p"), ("b", "q")):
            body = slice_body(name, "d0", pool={"name": pool, "generation": 1, "resourceSliceCount": 1})
            assert (await client("POST", SLICES, body)).status == 201
        by_pool = await client("GET", f"{SLICES}?fieldSelector=spec.pool.name%3Dq")
        if "spec.pool.name" in api.release.slice_selectors:
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
