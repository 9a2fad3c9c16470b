"""Combine what the sources say of a device. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

MOST_CHARS = 128
"""Limit of a value that somebody else wrote. A UUID has 40 bytes, an attribute of a ResourceSlice at most 64."""

_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)

# Attribute names, without the driver's domain. NVIDIA: kubernetes-sigs/dra-driver-nvidia-gpu, deviceinfo.go in
# cmd/gpu-kubelet-plugin. AMD: ROCm/k8s-gpu-dra-driver, deviceinfo.go in cmd/gpu-kubeletplugin. Intel:
# intel/intel-resource-drivers-for-kubernetes, cmd/kubelet-gpu-plugin/node_state.go. The standard one is in
# k8s.io/dynamic-resource-allocation/deviceattribute.
_UUIDS = ("uuid",)
_PARENTS = ("parentUUID",)
_PCI_BUS_IDS = ("resource.kubernetes.io/pciBusID", "pciBusID", "pciAddr", "parentPciAddr", "pciAddress")
_MODELS = ("productName", "model")
_SERIAL_NUMBERS = ("serialNumber", "serial")


class DeviceFacts(Struct, frozen=True):
    """What one source says of a device; an empty text is what it does not know.

    ``gpu_uuid`` is set for a part (a MIG instance): the UUID of the whole device, by which exporters know it; and
    ``gpu_instance`` is the instance's number there. ``pci_bus_id`` is as the kernel writes it: ``0000:3b:00.0``.
    """

    uuid: str = ""
    pci_bus_id: str = ""
    gpu_uuid: str = ""
    gpu_instance: str = ""
    model: str = ""
    serial_number: str = ""

    def __bool__(self) -> bool:
        return self != NOTHING

    @property
    def is_instance(self) -> bool:
        """Whether it is a MIG instance, a part of a GPU."""
        return bool(self.gpu_uuid) or self.uuid.startswith("MIG-")


NOTHING = DeviceFacts()
_FIELDS = DeviceFacts.__struct_fields__
_IDENTITY = ("uuid", "pci_bus_id", "gpu_uuid", "gpu_instance")  # sources that differ here speak of different hardware


class Resolution(Struct, frozen=True):
    """What is known of one held device. ``source`` and ``pod_uid_source`` name who said so, ``,`` between several.

    ``share`` is kubelet's share id (claims), or the number of the replica (limits). ``conflicts`` are sentences.
    """

    facts: DeviceFacts = NOTHING
    source: str = ""
    pod_uid: str = ""
    pod_uid_source: str = ""
    share: str = ""
    conflicts: tuple[str, ...] = ()

    @property
    def exporter_uuid(self) -> str:
        """The UUID by which exporters know it: for a MIG instance that of its GPU (``UUID`` of dcgm-exporter).

        Empty for an instance whose GPU is not known.
        """
        return self.facts.gpu_uuid or ("" if self.facts.is_instance else self.facts.uuid)


def merge(said: Iterable[tuple[str, DeviceFacts]]) -> Resolution:
    """Take each field from the first source that knows it; name the sources used, and the conflicts."""
    values: dict[str, str] = {}
    by: dict[str, str] = {}
    conflicts = []
    for source, facts in said:
        for field in _FIELDS:
            value = getattr(facts, field)
            if not value:
                continue
            if field not in values:
                values[field], by[field] = value, source
            elif field in _IDENTITY and values[field].lower() != value.lower():
                conflicts.append(f"{field}: {by[field]} says {values[field]}, {source} says {value}")
    return Resolution(DeviceFacts(**values), ",".join(dict.fromkeys(by.values())), conflicts=tuple(conflicts))


def from_attributes(driver: str, attributes: Mapping[str, object]) -> DeviceFacts:
    """Read attributes, plain (``{"uuid": "..."}``) or in the API's form (``{"uuid": {"string": "..."}}``)."""
    plain = {name.removeprefix(f"{driver}/"): text(value) for name, value in attributes.items()}

    def first(names: Sequence[str]) -> str:
        return next((plain[name] for name in names if plain.get(name)), "")

    return DeviceFacts(
        uuid=first(_UUIDS),
        pci_bus_id=pci_bus_id(first(_PCI_BUS_IDS)),
        gpu_uuid=first(_PARENTS),
        model=first(_MODELS),
        serial_number=first(_SERIAL_NUMBERS),
    )


def text(value: object) -> str:
    """Return a text that can be a label's value; "" for anything else, and for what is too long or not printable."""
    if isinstance(value, Mapping):
        value = value.get("string")
    if not isinstance(value, str) or len(value) > MOST_CHARS:
        return ""
    value = value.strip()
    return value if value.isprintable() else ""


def pci_bus_id(value: str) -> str:
    """Return ``0000:3b:00.0`` for an address in any form (NVML's is ``00000000:3B:00.0``); "" for another text."""
    found = _PCI.fullmatch(value)
    if found is None:
        return ""
    domain, place = found.groups()
    return f"{int(domain or '0', 16):04x}:{place.lower()}"
