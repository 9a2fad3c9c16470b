"""Define the default DeviceClasses of well-known resources.

The classes are those that the vendors' own DRA drivers install: NVIDIA's (deployments/helm of k8s-dra-driver-gpu),
AMD's (k8s-gpu-dra-driver) and Intel's (intel-resource-drivers-for-kubernetes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from drabridge.migrate.convert.charts import GPU, speaks_of_gpus
from drabridge.migrate.convert.mentions import finder, plain_name
from drabridge.migrate.convert.settings import Device, Published

_NVIDIA = Published(
    "gpu.nvidia.com",
    texts=frozenset({"productName", "architecture"}),
    versions=frozenset({"cudaComputeCapability", "cudaDriverVersion", "driverVersion"}),
    capacity=frozenset({"memory"}),
)
_PLAIN = {
    "nvidia.com/gpu": Device("gpu.nvidia.com", _NVIDIA),
    "amd.com/gpu": Device("gpu.amd.com"),
    "gpu.intel.com/i915": Device("gpu.intel.com"),
    "gpu.intel.com/xe": Device("gpu.intel.com"),
}
# A whole device must not be given for a share of one: such a claim fits only devices that claims may share (KEP-5075).
_SHARED = ("device.allowMultipleAllocations",)
_MIG = re.compile(r"nvidia\.com/mig-([1-9]g\.[1-9][0-9]*gb(?:\.me)?)(\.shared)?")
WORDS = ("nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/")
"""A text that names one of these resources has one of these words."""


def default_device(resource: str) -> Device | None:
    """Return how a resource is claimed by default; None if no vendor has a class for it."""
    if (plain := _PLAIN.get(resource)) is not None:
        return plain
    if resource == "nvidia.com/gpu.shared":
        return Device("gpu.nvidia.com", claims_share=True, selectors=_SHARED)
    if (mig := _MIG.fullmatch(resource)) is not None:
        profile = mig[1].replace(".me", "+me")  # the device plugin writes + as a dot, since labels have no +
        found = 'device.attributes["gpu.nvidia.com"].profile'
        selector = f'has({found}) && {found} == "{profile}"'
        shared = mig[2] is not None
        return Device("mig.nvidia.com", claims_share=shared, selectors=(selector, *(_SHARED if shared else ())))
    return None


def default_devices(texts: Iterable[str]) -> dict[str, Device]:
    """Return resource -> default, for the resources with a default that the texts name, sorted by name."""
    names: set[str] = set()
    for text in texts:
        names |= _named([text], ()) if any(word in text for word in WORDS) else set()
        names |= {GPU} if speaks_of_gpus(text) else set()
    return {name: device for name in sorted(names) if (device := default_device(name)) is not None}


def _named(texts: Iterable[str], resources: Iterable[str]) -> set[str]:
    """Return the names of devices in texts: the vendors' ones, and all of the domains of ``resources``."""
    pattern = finder(resources)
    return {plain_name(match[0]) for text in texts for match in pattern.finditer(text)}


def of_classes(classes: Mapping[str, str], texts: Iterable[str]) -> tuple[dict[str, Device], list[str]]:
    """Return the texts' resources for which a cluster has a class, and those with a default for which it has none.

    ``classes``: DeviceClass -> its ``extendedResourceName``, or "". A class that names the resource comes first; then
    the vendor's default class, and the class whose name has the parts of the resource's name in reverse order.
    """
    named = {resource: name for name, resource in sorted(classes.items()) if resource}
    found: dict[str, Device] = {}
    without: list[str] = []
    for resource in sorted(_named(texts, named)):
        default = default_device(resource)
        domain, _, word = resource.partition("/")
        if resource in named:
            found[resource] = Device(named[resource])
        elif default is not None and default.device_class in classes:
            found[resource] = default
        elif default is None and f"{word}.{domain}" in classes:
            found[resource] = Device(f"{word}.{domain}")
        elif default is not None:
            without.append(resource)
    return found, without
