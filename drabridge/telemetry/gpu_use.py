"""Report how much of a GPU each container uses, if NVML reports it by process, and where that is unknown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from drabridge.inventory.devices import Device
from drabridge.inventory.gpu_use import OTHER, GpuUse
from drabridge.ledger.entries import Ledger
from drabridge.telemetry.metrics import Sample

NamesOf = Callable[[str, str], tuple[str, str, str]]
"""Takes a pod's UID and a container's id; returns namespace, pod and container, each "" if unknown."""

_MIG = "MIG-"


def samples(
    devices: Iterable[Device], ledger: Ledger, use: GpuUse | None, problem: str | None, names_of: NamesOf
) -> Iterator[Sample]:
    """Yield what each container uses of each of NVIDIA's devices. ``problem``: why NVML does not answer."""
    told = use.told if use is not None else {}
    for device in devices:
        uuid = device.attributes.get("uuid", device.id)
        mig = isinstance(uuid, str) and uuid.startswith(_MIG)
        key = str(uuid) if mig else device.pci_bus_id
        if key not in told and not (mig or str(uuid).startswith("GPU-")):
            continue
        memory, time = told.get(key, (False, False))
        reason = "mig" if mig else "driver"
        if key not in told:
            reason = "hostpid" if problem == "" and use is None else "nvml"
        for what, known in (("memory", memory), ("time", time)):
            if not known:
                yield "device_use_unknown", (device.name, device.resource, what, reason), 1
        uses: dict[tuple[str, ...], tuple[int, int]] = {}  # containers with unknown names share their labels
        for (at, (uid, container)), (used_bytes, percent) in use.uses.items() if use is not None else ():
            if at == key:
                labels = (device.name, device.resource, *_names(ledger, device, uid, container, names_of))
                before = uses.get(labels, (0, 0))
                uses[labels] = before[0] + used_bytes, before[1] + percent
        for labels, (used_bytes, percent) in uses.items():
            if memory:
                yield "device_used_memory_bytes", labels, used_bytes
            if time:
                yield "device_used_time_ratio", labels, percent / 100


def _names(ledger: Ledger, device: Device, uid: str, container: str, names_of: NamesOf) -> tuple[str, ...]:
    """Return namespace, pod, container and UID: by the API server, else by kubelet for pods with limits."""
    if uid in ("", OTHER):
        return "", uid, "", ""
    namespace, name, of_pod = names_of(uid, container)
    entry = ledger.entries.get(device.name)
    shown = [pod for pod in (entry.hold.pods if entry and entry.hold else ()) if pod.uid == uid]
    if shown and not name:
        namespace, name = shown[0].namespace, shown[0].name
    if len(shown) == 1 and not of_pod:
        of_pod = shown[0].container
    return namespace, name, of_pod, uid
