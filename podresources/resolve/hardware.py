"""Find a device in ``/proc/driver/nvidia`` and sysfs: by its UUID, its node, or its PCI address."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from podresources.resolve.facts import NOTHING, DeviceFacts, pci_bus_id, text
from podresources.resolve.files import UnreadableFileError, names, read_kernel, read_line

_NVIDIA_NODE = re.compile(r"nvidia(\d+)")  # /dev/nvidia0, whose number is the driver's "Device Minor"
_DRM_NODE = re.compile(r"(?:card|renderD)\d+")
_INTEL_ID = re.compile(r"(card\d+)-\d+")  # intel-device-plugins-for-kubernetes, cmd/gpu_plugin: one id for each sharer
_OLD_MIG_ID = re.compile(r"MIG-(GPU-[0-9a-fA-F-]{8,})/(\d+)/\d+")
_GKE_ID = re.compile(r"nvidia(\d+)(?:/gi(\d+))?(?:/vgpu\d+)?")  # container-engine-accelerators, pkg/gpu/nvidia
_MIG_NODE = re.compile(r"/nvidia-caps/nvidia-cap(?![12]$)(\d+)$")  # 1 and 2: mig/config, mig/monitor
_INSTANCE = re.compile(r"gi(\d+)")
_CAPABILITY = {"DeviceFileMinor": "minor"}
_LABELS = {"GPU UUID": "uuid", "Model": "model", "Bus Location": "pci", "Device Minor": "minor"}


class Hardware:
    """The node's GPUs as its kernel shows them, below ``root``. Read again by ``refresh``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._by_uuid: dict[str, DeviceFacts] = {}
        self._by_pci: dict[str, DeviceFacts] = {}
        self._by_minor: dict[str, DeviceFacts] = {}
        self._instances: dict[str, str] = {}  # minor of /dev/nvidia-caps/nvidia-cap<minor> -> GPU instance

    def refresh(self) -> None:
        """Read what NVIDIA's driver says; nothing is there without it."""
        self._by_uuid, self._by_pci, self._by_minor = {}, {}, {}
        self._instances = dict(self._capabilities())
        folder = self._root / "proc/driver/nvidia/gpus"
        for name in names(folder):
            found = _fields(folder / name / "information", _LABELS)
            gpu = DeviceFacts(
                uuid=found.get("uuid", ""), pci_bus_id=pci_bus_id(name), model=text(found.get("model", ""))
            )
            self._by_pci[gpu.pci_bus_id] = gpu
            if gpu.uuid:
                self._by_uuid[gpu.uuid] = gpu
            if "minor" in found:
                self._by_minor[found["minor"]] = gpu

    def of_id(self, device_id: str) -> DeviceFacts:
        """Read kubelet's id of a device with limits: a UUID (NVIDIA), a PCI address (AMD), a DRM card (Intel).

        Also NVIDIA's ids of MIG instances by GPU, before driver 470, and GKE's: ``nvidia0/gi1``, ``nvidia0/vgpu2``.
        """
        if found := _OLD_MIG_ID.fullmatch(device_id):
            return DeviceFacts(uuid=text(device_id), gpu_uuid=text(found[1]), gpu_instance=found[2])
        if found := _GKE_ID.fullmatch(device_id):
            gpu = self._by_minor.get(found[1], NOTHING)
            return replace(gpu, uuid="", gpu_uuid=gpu.uuid, gpu_instance=found[2]) if gpu and found[2] else gpu
        if device_id.startswith(("GPU-", "MIG-")):
            return DeviceFacts(uuid=text(device_id))
        if address := pci_bus_id(device_id):
            return DeviceFacts(pci_bus_id=address)
        if found := _INTEL_ID.fullmatch(device_id):
            return self._of_link(self._root / "sys/class/drm" / found[1] / "device")
        return NOTHING

    def of_node(self, path: str, kind: str, major: int, minor: int) -> DeviceFacts:
        """Return the device behind a node under ``/dev``; nothing for a node that belongs to no one PCI device."""
        name = os.path.basename(path)
        if found := _NVIDIA_NODE.fullmatch(name):
            return self._by_minor.get(found[1], NOTHING)
        if _DRM_NODE.fullmatch(name):
            return self._of_link(self._root / "sys/class/drm" / name / "device")
        if not major:
            return NOTHING
        return self._of_link(self._root / f"sys/dev/{'block' if kind == 'b' else 'char'}/{major}:{minor}" / "device")

    def gpu_instance(self, path: str) -> str | None:
        """Return the number of the GPU instance that a capability's node belongs to; None if it belongs to none.

        The number is empty if the driver does not tell it. Even then the node shows that it is not a whole GPU.
        """
        found = _MIG_NODE.search(path)
        return None if found is None else self._instances.get(found[1], "")

    def _capabilities(self) -> Iterator[tuple[str, str]]:
        """Yield the minor of each GPU instance's node (NVIDIA's MIG User Guide, "Device Nodes and Capabilities")."""
        folder = self._root / "proc/driver/nvidia/capabilities"
        for gpu in names(folder):
            for instance in names(folder / gpu / "mig"):
                if number := _INSTANCE.fullmatch(instance):
                    here = folder / gpu / "mig" / instance
                    for path in (here / "access", *(here / name / "access" for name in names(here))):
                        if minor := _fields(path, _CAPABILITY).get("minor"):
                            yield minor, number[1]

    def complete(self, facts: DeviceFacts) -> DeviceFacts:
        """Return what else the kernel says of a device whose UUID or PCI address is known."""
        if not facts.uuid and not facts.pci_bus_id and not facts.gpu_uuid:
            return NOTHING
        gpu = self._by_uuid.get(facts.gpu_uuid or facts.uuid) or self._by_pci.get(facts.pci_bus_id, NOTHING)
        part = facts.is_instance
        address = gpu.pci_bus_id or facts.pci_bus_id
        return DeviceFacts(
            uuid="" if part else gpu.uuid,
            gpu_uuid=gpu.uuid if part else "",
            pci_bus_id=gpu.pci_bus_id,
            model=gpu.model or self._attribute(address, "product_name"),
            serial_number=self._attribute(address, "serial_number"),
        )

    def _attribute(self, address: str, name: str) -> str:
        """Return a file of the amdgpu driver: ``serial_number`` is the label that AMD's exporter always sets."""
        return text(read_line(self._root / "sys/bus/pci/devices" / address / name)) if address else ""

    def _of_link(self, link: Path) -> DeviceFacts:
        """Return the PCI device that a ``device`` link names; nothing for a USB device: only its controller is PCI."""
        try:
            address = pci_bus_id(os.path.basename(os.readlink(link)))
        except OSError:
            return NOTHING
        return self._by_pci.get(address) or DeviceFacts(pci_bus_id=address)


def _fields(path: Path, labels: Mapping[str, str]) -> dict[str, str]:
    """Read a file of NVIDIA's driver: lines of ``Label: value``, those in ``labels`` under the names that it gives."""
    try:
        lines = (read_kernel(path) or b"").decode("utf-8", "replace").splitlines()
    except UnreadableFileError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {labels[label.strip()]: text(value) for label, _, value in pairs if label.strip() in labels}
