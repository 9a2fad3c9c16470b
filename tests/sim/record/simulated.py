"""See on the simulated cluster what was recorded from a real one."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from drabridge.sim.cluster import ClusterTimings, SimCluster
from drabridge.sim.releases import release_of
from tests.sim.record.api import Api, Json
from tests.sim.record.scenario import Place, record
from tests.sim.record.scrub import scrub
from tests.support.waiting import PATIENCE, short_directory

POD_METADATA = ("name", "namespace", "uid", "generation", "ownerReferences", "finalizers")
POD_STATUS = (
    "phase",
    "reason",
    "message",
    "nominatedNodeName",
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
)
CONTAINER_STATUS = ("name", "ready", "restartCount", "allocatedResourcesStatus")
NODE_STATUS = ("y.example.com/gpu",)
NOT_SENT = ("list by pool",)
"""Requests that no client of ours sends; the simulation answers in its own way."""


async def simulate(release: str) -> dict[str, Json]:
    """Return the recording of a simulated release, scrubbed."""
    with short_directory() as root:
        async with SimCluster(root, release=release, timings=ClusterTimings.fast()) as cluster:
            api = Api(cluster.api.kubeconfig(root / "kubeconfig"))
            said = {name: {"enabled": cluster.api.gates[name]} for name in cluster.api.release.gates}
            place = Place(api, root / "node-a", root / "node-a", patience_seconds=10.0 * PATIENCE)
            try:
                found = await record(place, {"apiserver": said, "kubelet": said})
            finally:
                api.close()
            return scrub(found, str(root / "node-a"))


def imitated(name: str, document: Json, simulated: Json) -> Json:
    """Return the part of a document that the simulation imitates: all of it, but for what is named here."""
    if name == "gates":
        return {program: _gates(gates, simulated[program]) for program, gates in document.items()}
    if name == "discovery":
        return _discovery(document, simulated)
    if name == "http-exchanges":
        return {one["name"]: _exchange(one) for one in document if one["name"] not in NOT_SENT}
    if name == "node":
        status = document["status"]
        amounts = {key: {one: status[key].get(one) for one in NODE_STATUS} for key in ("capacity", "allocatable")}
        return amounts | {"kubeletVersion": status["nodeInfo"]["kubeletVersion"]}
    return _pod(document) if name.startswith("pod-") else document


def _exchange(one: Json) -> Json:
    """A request with its answer; of a refused object only that it is refused. Every release has other words for why."""
    response = one["response"]
    if response["status"] == HTTPStatus.UNPROCESSABLE_ENTITY:
        return one | {"response": {"status": response["status"], "reason": response["body"]["reason"]}}
    body = copy.deepcopy(response["body"])
    if isinstance(body, list):
        body = [event for event in body if event["type"] != "BOOKMARK"]
    else:
        body.get("metadata", {}).pop("remainingItemCount", None)
    return one | {"response": response | {"body": body}}


def _gates(gates: Json, looked_at: Json) -> Json:
    return {name: gates[name]["enabled"] for name in looked_at if name in gates}


def _discovery(document: Json, simulated: Json) -> Json:
    """Of what the simulation serves. The group resource.k8s.io is imitated, but for hashes of stored versions."""
    shown = dict(document)
    own = dict(shown["/apis/resource.k8s.io/v1"])
    own["resources"] = [
        {name: value for name, value in one.items() if name != "storageVersionHash"} for one in own["resources"]
    ]
    shown["/apis/resource.k8s.io/v1"] = own
    for path in ("/api/v1", "/apis"):
        for field, key in (("resources", "name"), ("groups", "name")):
            if field in document[path]:
                known = {one[key] for one in simulated[path][field]}
                shown[path] = {field: {one[key]: _entry(one) for one in document[path][field] if one[key] in known}}
    return shown


def _entry(one: Json) -> Json:
    """A group or a resource without its short names, categories and other versions."""
    kept = {name: one[name] for name in ("name", "kind", "namespaced", "singularName") if name in one}
    return kept | ({"version": one["preferredVersion"]["version"]} if "preferredVersion" in one else {})


def _pod(pod: Json) -> Json:
    spec, status = pod["spec"], pod["status"]
    scheduled = [one for one in status.get("conditions", ()) if one["type"] == "PodScheduled"]
    return {
        "metadata": {name: pod["metadata"].get(name) for name in POD_METADATA},
        "nodeName": spec.get("nodeName"),
        "resourceClaims": spec.get("resourceClaims"),
        "resources": {one["name"]: one.get("resources", {}).get("claims") for one in spec["containers"]},
        "status": {name: status.get(name) for name in POD_STATUS},
        "containers": [_container(one) for one in status.get("containerStatuses", ())],
        "scheduled": [[one.get(name) for name in ("status", "reason")] for one in scheduled],
    }


def _container(status: Json) -> Json:
    return {name: status.get(name) for name in CONTAINER_STATUS} | {"state": sorted(status["state"])}


def differences(recorded: Mapping[str, Any], simulated: Mapping[str, Any], name: str) -> list[str]:
    """Return one line for each value of a document that is not the same."""
    there, here = (
        dict(flat(imitated(name, one[name], simulated[name]))) if name in one else {} for one in (recorded, simulated)
    )
    return [
        f"{path}: recorded {there.get(path, 'nothing')}, simulated {here.get(path, 'nothing')}"
        for path in sorted(there.keys() | here.keys())
        if there.get(path) != here.get(path)
    ]


def flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf by its path. Empty lists and objects are leaves: they are not the same as nothing.

    Without ``.``, which says of a field of structs that a manager owns it as a whole: nobody reads that.
    """
    if isinstance(value, dict) and value:
        for name, item in value.items():
            if name != ".":
                yield from flat(item, f"{path}/{name}")
    elif isinstance(value, list | tuple) and value:
        for index, item in enumerate(value):
            yield from flat(item, f"{path}/{index}")
    else:
        yield path, repr(value)


def simulated_release(folder: str) -> str:
    """Return ``1.36`` for the folder ``kubernetes-1.36.3``. Raises ValueError for a release without a row."""
    return f"1.{release_of(folder.removeprefix('kubernetes-')).minor}"
