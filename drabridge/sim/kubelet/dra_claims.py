"""Remember claims as the DRA manager does, without sockets.

Source: ``pkg/kubelet/cm/dra/claiminfo.go``, ``cm/dra/state``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from drabridge.sim.kubelet.checkpoint import CHECKSUM
from drabridge.sim.kubelet.pods import Container, PodSpec
from podresources.wire import v1_pb2 as podresources

FILE_NAME = "dra_manager_state"  # pkg/kubelet/cm/dra/manager.go, draManagerStateFileName


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a driver's answer to NodePrepareResources."""

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi: tuple[str, ...]
    share_id: str | None = None

    @classmethod
    def from_wire(cls, device: Any) -> PreparedDevice:
        """Read a Device of either version; they differ by share_id alone."""
        has_share = "share_id" in device.DESCRIPTOR.fields_by_name and device.HasField("share_id")
        requests, cdi = tuple(device.request_names), tuple(device.cdi_device_ids)
        return cls(device.pool_name, device.device_name, requests, cdi, device.share_id if has_share else None)

    def serves(self, request: str) -> bool:
        """Whether a container that names ``request`` (empty: the whole claim) gets it."""
        return not request or not self.requests or request in self.requests


@dataclass(slots=True)
class ClaimInfo:
    """A claim in use on this node.

    ``prepared`` is in memory only: a new kubelet calls the driver again for new pods.
    """

    namespace: str
    name: str
    uid: str
    pods: set[str] = field(default_factory=set)  # uids
    drivers: dict[str, list[PreparedDevice]] = field(default_factory=dict)
    prepared: bool = False


Key = tuple[str, str]  # namespace, name


def drivers_of(claim: Mapping[str, Any]) -> list[str]:
    """Return the drivers in ``status.allocation.devices.results``, each once, in order."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return list(dict.fromkeys(result["driver"] for result in results))


def is_reserved_for(claim: Mapping[str, Any], pod_uid: str) -> bool:
    return any(entry.get("uid") == pod_uid for entry in claim.get("status", {}).get("reservedFor", []))


def claim_refs(pod: PodSpec, container: Container) -> list[tuple[str, str, str]]:
    """(claim name, request or empty, label in the pod's status) of each claim that a container names."""
    names = {claim.name: claim.claim_name for claim in pod.resource_claims}
    return [
        (names[ref.name], ref.request, f"claim:{ref.name}/{ref.request}" if ref.request else f"claim:{ref.name}")
        for ref in container.claims
    ]


def container_refs(pod: PodSpec, container: Container) -> list[tuple[str, str]]:
    """Yield (claim name, request or empty) of each claim that a container uses, including its extended resources'."""
    refs = [(claim, request) for claim, request, _ in claim_refs(pod, container)]
    refs += [(pod.extended_claim, request) for name, _, request in pod.extended_requests if name == container.name]
    return refs


def container_devices(
    cache: Mapping[Key, ClaimInfo], pod: PodSpec, container: Container
) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return CDI ids without repetition, and (driver, pool, device), of the requests a container names.

    GetResources of the real one.
    """
    cdi: dict[str, None] = {}
    devices: dict[tuple[str, str, str], None] = {}
    for claim, request in container_refs(pod, container):
        info = cache.get((pod.namespace, claim))
        for driver, prepared in info.drivers.items() if info else ():
            for device in prepared:
                if device.serves(request):
                    cdi |= dict.fromkeys(device.cdi)
                    devices[driver, device.pool, device.device] = None
    return list(cdi), list(devices)


def dynamic_resources(
    cache: Mapping[Key, ClaimInfo], pod: PodSpec, container: Container, *, share_ids: bool
) -> list[podresources.DynamicResource]:
    """Return whole claims, whatever requests the container names (GetDynamicResources).

    Nothing if one claim is unknown.
    The n-th device of a driver in a claim also lists the CDI names of those before it (observed).
    """
    answer = []
    for claim in dict.fromkeys(ref[0] for ref in container_refs(pod, container)):
        info = cache.get((pod.namespace, claim))
        if info is None:
            return []
        resource = podresources.DynamicResource(claim_name=info.name, claim_namespace=info.namespace)
        for driver, devices in info.drivers.items():
            names: list[str] = []
            for device in devices:
                names += device.cdi
                entry = resource.claim_resources.add(
                    cdi_devices=[podresources.CDIDevice(name=name) for name in names],
                    driver_name=driver,
                    pool_name=device.pool,
                    device_name=device.device,
                )
                if share_ids and device.share_id is not None:
                    entry.share_id = device.share_id
        answer.append(resource)
    return answer


def encode(infos: Iterable[ClaimInfo], *, share_ids: bool) -> str:
    """Return the text of the state file: JSON inside JSON."""
    claims = [
        {
            "ClaimUID": info.uid,
            "ClaimName": info.name,
            "Namespace": info.namespace,
            "PodUIDs": {uid: {} for uid in sorted(info.pods)},
            "DriverState": {
                driver: {"Devices": [_device(d, share_ids=share_ids) for d in ds]}
                for driver, ds in info.drivers.items()
            },
        }
        for info in infos
    ]
    data = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "ClaimInfoStateList": claims}
    return json.dumps({"Data": json.dumps(data), "Checksum": CHECKSUM})


def _device(device: PreparedDevice, *, share_ids: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "PoolName": device.pool,
        "DeviceName": device.device,
        "RequestNames": list(device.requests),
        "CDIDeviceIDs": list(device.cdi),
    }
    return entry | ({"ShareID": device.share_id} if share_ids else {})


def decode(text: str) -> dict[Key, ClaimInfo]:
    """Parse the state file. Raises ValueError for a file that is no JSON: the real kubelet does not start with one."""
    infos = {}
    for claim in json.loads(json.loads(text)["Data"])["ClaimInfoStateList"]:
        info = ClaimInfo(claim["Namespace"], claim["ClaimName"], claim["ClaimUID"], set(claim["PodUIDs"]))
        for driver, state in claim["DriverState"].items():
            info.drivers[driver] = [
                PreparedDevice(
                    d["PoolName"], d["DeviceName"], tuple(d["RequestNames"]), tuple(d["CDIDeviceIDs"]), d.get("ShareID")
                )
                for d in state["Devices"]
            ]
        infos[info.namespace, info.name] = info
    return infos
