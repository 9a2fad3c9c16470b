"""Tell when a vendor's manager changes driver, MIG or partitions here: then no new holder may get its devices.

These managers first remove the vendor's own pods from the node, and mark the Node. This agent does the work of those
pods. So while the mark is there, it stops using NVML and gives out no device of that vendor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from drabridge.inventory.topology import pci_function
from drabridge.inventory.udev_device import UdevDevice
from drabridge.kube.node_labels import LabelsSeen

log = logging.getLogger(__name__)

NVIDIA, AMD = "10de", "1002"  # PCI vendor ids

# NVIDIA/k8s-driver-manager and NVIDIA/mig-parted (k8s-mig-manager) write paused-for-driver-upgrade or
# paused-for-mig-change. If the label was not "true", they keep its old value before that, with an underscore.
_DEPLOY, _PAUSED = "nvidia.com/gpu.deploy.", "paused-for-"
# NVIDIA/mig-parted, NVIDIA/vgpu-device-manager.
_STATES, _UNDER_WAY = ("nvidia.com/mig.config.state", "nvidia.com/vgpu.config.state"), ("pending", "rebooting")
_AMD_TAINT = "amd-dcm"  # ROCm/device-config-manager: amd-dcm=up:NoExecute, while GPUs are partitioned


def signs(seen: LabelsSeen) -> Iterator[tuple[str, str]]:
    """Yield each PCI vendor whose manager is at work on this Node, with the label or taint that says so. Pure."""
    for name, value in sorted(seen.labels.items()):
        if (name.startswith(_DEPLOY) and _PAUSED in value) or (name in _STATES and value in _UNDER_WAY):
            yield NVIDIA, f"the Node's label {name}={value}"
    if _AMD_TAINT in seen.taints:
        yield AMD, f"the Node's taint {_AMD_TAINT}"


class VendorManagers:
    """``at_work``: PCI vendor -> the sign of its manager on the Node. ``changed`` is called after each change."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.at_work: Mapping[str, str] = MappingProxyType({})
        self._changed = changed

    def take(self, seen: LabelsSeen | None) -> None:
        """Take the Node's labels and taints. None: they are no longer known; then nothing is paused."""
        found = dict(reversed(list(signs(seen)))) if seen is not None else {}
        if found == self.at_work:
            return
        for vendor in sorted(found.keys() - self.at_work.keys()):
            log.warning("paused for a vendor's manager", extra={"vendor": vendor, "reason": found[vendor]})
        for vendor in sorted(self.at_work.keys() - found.keys()):
            log.info("vendor's manager is done: its devices are offered again", extra={"vendor": vendor})
        self.at_work = found
        self._changed()

    def paused(self, names: Iterable[str], udev_device: Callable[[str], UdevDevice | None]) -> dict[str, str]:
        """Return device name -> sign, for the devices whose vendor's manager is at work."""
        if not self.at_work:
            return {}
        vendors = ((name, _vendor(udev_device(name))) for name in names)
        return {name: self.at_work[vendor] for name, vendor in vendors if vendor in self.at_work}

    @property
    def notes(self) -> list[str]:
        """Return sentences for people, one for each vendor."""
        return [
            f"devices of PCI vendor {vendor} are given to nobody new because of {sign}: their manager changes driver "
            "or partitions, and they are offered again when it is done"
            for vendor, sign in sorted(self.at_work.items())
        ]


def _vendor(device: UdevDevice | None) -> str:
    """Return the PCI vendor id of the device's function, ``10de``; empty for a device on no PCI bus."""
    function = pci_function(device) if device is not None else None
    if function is None:
        return ""
    known = function.properties.get("PCI_ID", "").partition(":")[0] or function.attributes.get("vendor", "")
    return known.lower().removeprefix("0x")
