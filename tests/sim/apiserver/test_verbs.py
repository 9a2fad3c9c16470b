"""The verbs over HTTP: concurrency, selectors, pages, versions, identities, faults, garbage collection, size."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
import yaml

from drabridge.sim.apiserver.server import SimApiServer
from tests.support.api_client import MERGE, SLICES, Client, claim_body, slice_body
from tests.support.servers import hangs_up
from tests.support.waiting import until

NODES, PODS, CONFIGMAPS = "/api/v1/nodes", "/api/v1/namespaces/default/pods", "/api/v1/namespaces/default/configmaps"


async def test_update_that_changes_nothing_keeps_the_revision(client: Client) -> None:
    created = await client("POST", SLICES, slice_body("s", {"name": "d0", "capacity": {"m": {"value": "65536Mi"}}}))
    body = slice_body("s", {"name": "d0", "capacity": {"m": {"value": "64Gi"}}})
    again = await client("PUT", f"{SLICES}/s", body)
    assert again.body["metadata"] == created.body["metadata"]


async def test_patch_of_a_stale_revision_conflicts(client: Client) -> None:
    created = await client("POST", SLICES, slice_body("s", "d0"))
    patch = {
        "metadata": {"resourceVersion": created.body["metadata"]["resourceVersion"]},
        "spec": {"pool": {"generation": 2}},
    }
    assert (await client("PATCH", f"{SLICES}/s", patch, MERGE)).status == 200
    assert (await client("PATCH", f"{SLICES}/s", patch, MERGE)).status == 409


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("a=1", "x"),
        ("a!=1", "yz"),
        ("a=1,b=2", ""),
        ("a==2", "y"),
    ],
)
async def test_label_selectors(client: Client, selector: str, expected: str) -> None:
    for name, labels in (("x", {"a": "1"}), ("y", {"a": "2"}), ("z", {})):
        await client("POST", CONFIGMAPS, {"metadata": {"name": name, "labels": labels}})
    found = await client("GET", f"{CONFIGMAPS}?labelSelector={quote(selector)}")
    assert "".join(one["metadata"]["name"] for one in found.body["items"]) == expected


async def test_pages_are_of_one_moment(api: SimApiServer, client: Client) -> None:
    for name in "abcde":
        await client("POST", SLICES, slice_body(name, "d0"))
    first = (await client("GET", f"{SLICES}?limit=2")).body
    await client("DELETE", f"{SLICES}/c")
    await client("POST", SLICES, slice_body("bb", "d0"))
    second = (await client("GET", f"{SLICES}?limit=2&continue={first['metadata']['continue']}")).body
    assert [one["metadata"]["name"] for one in second["items"]] == ["c", "d"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_finalizer_holds_a_deleted_object(client: Client) -> None:
    body = slice_body("s", "d0")
    body["metadata"]["finalizers"] = ["x.example.com/hold"]
    await client("POST", SLICES, body)
    marked = await client("DELETE", f"{SLICES}/s")
    assert "deletionTimestamp" in marked.body["metadata"]
    await client("PATCH", f"{SLICES}/s", {"metadata": {"finalizers": None}}, MERGE)
    assert (await client("GET", f"{SLICES}/s")).status == 404


async def test_slices_follow_their_node_and_not_a_stranger(api: SimApiServer, client: Client) -> None:
    node = (await client("POST", NODES, {"metadata": {"name": "node-a"}})).body
    owned, stale = slice_body("owned", "d0"), slice_body("stale", "d0")
    for body, uid in ((owned, node["metadata"]["uid"]), (stale, "00000000-0000-0000-0000-000000000000")):
        body["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid}]
        await client("POST", SLICES, body)

    async def left(*names: str) -> bool:
        return [one["metadata"]["name"] for one in (await client("GET", SLICES)).body["items"]] == list(names)

    await until(lambda: left("owned"))
    await client("DELETE", f"{NODES}/node-a")
    await until(left)


# -- versions


async def test_only_the_chosen_versions_are_served() -> None:
    async with SimApiServer(versions=("v1beta1",)) as api:
        client = Client(api)
        group = (await client("GET", "/apis/resource.k8s.io")).body
        assert [one["version"] for one in group["versions"]] == ["v1beta1"]
        missing = await client("GET", SLICES)
        assert (missing.status, missing.body["message"]) == (404, "the server could not find the requested resource")
        old = SLICES.replace("/v1/", "/v1beta1/")
        body = slice_body("s", driver="d.example.com") | {"apiVersion": "resource.k8s.io/v1beta1"}
        body["spec"]["devices"] = [{"name": "d0", "basic": {"attributes": {"a": {"version": "1.2.3"}}}}]
        created = await client("POST", old, body)
        assert created.body["spec"]["devices"] == body["spec"]["devices"]
        assert api.objects.get("resourceslices", "s")["spec"]["devices"][0]["attributes"] == {"a": {"version": "1.2.3"}}


async def test_claims_in_v1beta1_have_their_request_inline(api: SimApiServer, client: Client) -> None:
    api.versions = ("v1", "v1beta1")
    old = "/apis/resource.k8s.io/v1beta1/namespaces/default/resourceclaims"
    body = claim_body("c") | {"apiVersion": "resource.k8s.io/v1beta1"}
    body["spec"]["devices"]["requests"] = [{"name": "gpu", "deviceClassName": "gpu", "count": 2}]
    created = await client("POST", old, body)
    (request,) = created.body["spec"]["devices"]["requests"]
    assert request == {"name": "gpu", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}
    stored = api.objects.get("resourceclaims", "c", "default")["spec"]["devices"]["requests"][0]
    assert stored == {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}}


# -- identities


async def test_tokens_and_own_node(api: SimApiServer, tmp_path: Path) -> None:
    anonymous = await Client(api, token="nonsense")("GET", SLICES)
    assert (anonymous.status, anonymous.body["reason"]) == (401, "Unauthorized")
    token = api.token("node-a")
    agent = Client(api, token=token)
    assert (await agent("POST", SLICES, slice_body("mine", "d0"))).status == 201
    refused = await agent("POST", SLICES, slice_body("other", "d0", node="node-b"))
    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")
    config = yaml.safe_load(api.kubeconfig(tmp_path / "config", token=token).read_text())
    assert config["users"][0]["user"]["token"] == token
    assert config["clusters"][0]["cluster"]["server"] == api.url
    api.revoke(token)
    assert (await agent("GET", SLICES)).status == 401


# -- faults and the log


async def test_error_after_the_write_took_effect(api: SimApiServer, client: Client) -> None:
    api.faults.fail(1, 500, verb="create", after_commit=True)
    assert (await client("POST", SLICES, slice_body("s", "d0"))).status == 500
    assert (await client("GET", f"{SLICES}/s")).status == 200


async def test_server_restarts_on_its_port_with_its_objects(api: SimApiServer, client: Client) -> None:
    await client("POST", SLICES, slice_body("s", "d0"))
    url = api.url
    await api.stop()
    with pytest.raises(OSError, match="Connect"):
        await client("GET", SLICES)
    await api.start()
    assert api.url == url
    assert (await client("GET", f"{SLICES}/s")).status == 200


@pytest.mark.parametrize("turns", range(6))
async def test_a_stopped_server_has_hung_up_on_everybody(turns: int) -> None:
    async with SimApiServer() as api:
        assert await hangs_up(("127.0.0.1", int(api.url.rsplit(":", 1)[1])), turns, api.stop)


async def test_dry_run_answers_and_writes_nothing(api: SimApiServer, client: Client) -> None:
    stored = (await client("POST", SLICES, slice_body("kept", "d0"))).body
    revision = api.objects.store.revision
    created = await client("POST", f"{SLICES}?dryRun=All", slice_body("s", {"name": "d0", "taints": []}))
    assert (created.status, created.body["spec"]["devices"]) == (201, [{"name": "d0"}])
    assert (await client("POST", f"{SLICES}?dryRun=All", slice_body("kept", "d0"))).status == 409
    assert (await client("POST", f"{SLICES}?dryRun=All", slice_body("s", "UPPER"))).status == 422
    patched = await client("PATCH", f"{SLICES}/kept?dryRun=All", {"spec": {"pool": {"generation": 9}}}, MERGE)
    assert patched.body["spec"]["pool"]["generation"] == 9
    assert (await client("DELETE", f"{SLICES}/kept?dryRun=All")).status == 200
    assert (await client("GET", SLICES)).body["items"][0]["spec"] == stored["spec"]
    assert api.objects.store.revision == revision
