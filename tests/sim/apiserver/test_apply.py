"""Server-side apply and ownership of fields, over HTTP."""

from __future__ import annotations

from typing import Any

from drabridge.sim.apiserver.server import SimApiServer
from tests.support.api_client import APPLY, CLAIMS, MERGE, SLICES, Client, claim_body, slice_body

NOW = "2026-11-21T00:00:00Z"


def allocate(api: SimApiServer, *devices: tuple[str, str]) -> str:
    """A claim ``c`` that holds (driver, device) pairs; returns its uid."""
    api.objects.create(claim_body("c"))
    results = [{"request": "gpu", "driver": driver, "pool": "node-a", "device": name} for driver, name in devices]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
    allocation = {"devices": {"results": results}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    status = {"allocation": allocation}
    done = api.objects.modify(
        "resourceclaims", "c", lambda one: one.update(status=status), namespace="default", subresource="status"
    )
    return str(done["metadata"]["uid"])


def entry(driver: str, device: str, status: str = "True", **more: Any) -> Any:
    condition = {"type": "Ready", "status": status, "reason": "R", "message": "", "lastTransitionTime": NOW}
    return {"driver": driver, "pool": "node-a", "device": device, "conditions": [condition], **more}


async def apply_status(client: Client, manager: str, *entries: Any, force: bool = True, uid: str = "") -> Any:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", **({"uid": uid} if uid else {})},
        "status": {"devices": list(entries)},
    }
    path = f"{CLAIMS}/c/status?fieldManager={manager}&force={'true' if force else 'false'}"
    return await client("PATCH", path, body, APPLY)


def shown(response: Any) -> list[tuple[str, str, str]]:
    return [
        (one["driver"], one["device"], condition["status"])
        for one in response.body["status"].get("devices", [])
        for condition in one["conditions"]
    ]


async def test_each_driver_owns_its_entries_only(api: SimApiServer, client: Client) -> None:
    allocate(api, ("a", "gpu-0"), ("b", "nic-0"))
    assert (await apply_status(client, "a", entry("a", "gpu-0"))).status == 200
    both = await apply_status(client, "b", entry("b", "nic-0", data={"mtu": 9000}))
    assert shown(both) == [("a", "gpu-0", "True"), ("b", "nic-0", "True")]
    (own,) = [one for one in both.body["metadata"]["managedFields"] if one["manager"] == "b"]
    key = 'k:{"device":"nic-0","driver":"b","pool":"node-a"}'
    assert own["subresource"] == "status"
    assert own["fieldsV1"]["f:status"]["f:devices"][key]["."] == {}
    without = await apply_status(client, "a")
    assert shown(without) == [("b", "nic-0", "True")]
    assert without.body["status"]["allocation"]["devices"]["results"][1]["device"] == "nic-0"


async def test_the_same_again_writes_nothing(api: SimApiServer, client: Client) -> None:
    allocate(api, ("a", "gpu-0"))
    first = await apply_status(client, "a", entry("a", "gpu-0"))
    again = await apply_status(client, "a", entry("a", "gpu-0"))
    assert again.body == first.body
    changed = await apply_status(client, "a", entry("a", "gpu-0", "False"))
    assert shown(changed) == [("a", "gpu-0", "False")]
    assert int(changed.body["metadata"]["resourceVersion"]) > int(first.body["metadata"]["resourceVersion"])


async def test_a_condition_of_another_manager_conflicts_until_forced(api: SimApiServer, client: Client) -> None:
    allocate(api, ("a", "gpu-0"))
    await apply_status(client, "one", entry("a", "gpu-0"))
    refused = await apply_status(client, "two", entry("a", "gpu-0", "False"), force=False)
    assert refused.status == 409
    path = '.status.devices[device="gpu-0",driver="a",pool="node-a"].conditions[type="Ready"].status'
    assert refused.body["message"] == f'Apply failed with 1 conflict: conflict with "one": {path}'
    assert refused.body["details"]["causes"][0]["field"] == path
    forced = await apply_status(client, "two", entry("a", "gpu-0", "False"))
    assert shown(forced) == [("a", "gpu-0", "False")]
    # The loser kept the fields on which both agree; applying nothing gives them up without touching the winner's.
    assert shown(await apply_status(client, "one")) == [("a", "gpu-0", "False")]


async def test_conditions_of_one_device_by_two_managers(api: SimApiServer, client: Client) -> None:
    allocate(api, ("a", "gpu-0"))
    other = entry("a", "gpu-0")
    other["conditions"][0]["type"] = "Bound"
    await apply_status(client, "one", entry("a", "gpu-0"))
    both = await apply_status(client, "two", other, force=False)
    assert both.status == 200
    assert [one["type"] for one in both.body["status"]["devices"][0]["conditions"]] == ["Ready", "Bound"]


async def test_uid_guards_against_a_claim_of_the_same_name(api: SimApiServer, client: Client) -> None:
    uid = allocate(api, ("a", "gpu-0"))
    assert (await apply_status(client, "a", entry("a", "gpu-0"), uid=uid)).status == 200
    wrong = await apply_status(client, "a", entry("a", "gpu-0"), uid="00000000-0000-0000-0000-000000000000")
    assert (wrong.status, wrong.body["reason"]) == (409, "Conflict")
    assert f"UID in object meta: {uid}" in wrong.body["message"]


async def test_deallocation_removes_the_entries(api: SimApiServer, client: Client) -> None:
    allocate(api, ("a", "gpu-0"))
    await apply_status(client, "a", entry("a", "gpu-0"))
    done = api.objects.modify(
        "resourceclaims", "c", lambda one: one["status"].pop("allocation"), namespace="default", subresource="status"
    )
    assert done["status"] == {}


async def test_allocation_cannot_be_changed_through_status(api: SimApiServer, client: Client) -> None:
    allocate(api, ("a", "gpu-0"))
    patch: Any = {"status": {"allocation": {"devices": {"results": []}}}}
    refused = await client("PATCH", f"{CLAIMS}/c/status", patch, MERGE)
    assert refused.status == 422
    assert refused.body["details"]["causes"][0]["field"] == "status.allocation"


async def test_granular_authorization_by_driver_and_node(api: SimApiServer) -> None:
    allocate(api, ("a", "gpu-0"), ("b", "nic-0"))
    mine = Client(api, token=api.token("node-a", drivers=frozenset({"a"})))
    assert (await apply_status(mine, "a", entry("a", "gpu-0"))).status == 200
    foreign = await apply_status(mine, "a", entry("a", "gpu-0"), entry("b", "nic-0"))
    assert (foreign.status, foreign.body["reason"]) == (403, "Forbidden")
    elsewhere = Client(api, token=api.token("node-b", drivers=frozenset({"a"})))
    assert (await apply_status(elsewhere, "a", entry("a", "gpu-0", "False"))).status == 403


async def test_applied_slice_gives_up_what_it_no_longer_says(client: Client) -> None:
    path = f"{SLICES}/s?fieldManager=agent&force=true"
    body = slice_body("s", "d0")
    body["metadata"]["labels"] = {"a": "1", "b": "2"}
    assert (await client("PATCH", path, body, APPLY)).status == 201
    await client("PATCH", f"{SLICES}/s", {"metadata": {"labels": {"other": "3"}}}, MERGE)
    body["metadata"]["labels"] = {"a": "1"}
    done = await client("PATCH", path, body, APPLY)
    assert done.status == 200
    assert done.body["metadata"]["labels"] == {"a": "1", "other": "3"}
    assert [one["operation"] for one in done.body["metadata"]["managedFields"]] == ["Apply", "Update"]
