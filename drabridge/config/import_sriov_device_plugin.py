"""Convert a configuration of the SR-IOV network device plugin to ours, with a comment wherever the meaning differs.

Its keys are those of k8snetworkplumbingwg/sriov-network-device-plugin pkg/types/types.go (3.9);
pkg/resources/deviceSelectors.go there says how they select. A condition that has no counterpart here is an error:
without it more devices would be offered than were meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from drabridge.config import names
from drabridge.config.declaration import Model, OneOrMany
from drabridge.config.imported import Json, written
from drabridge.config.loader import read, text_in
from drabridge.config.problems import Problem, problems_of
from drabridge.config.schema import API_VERSION, KIND
from drabridge.config.yaml_tree import compose
from drabridge.yaml_reader import MappingNode, Scalar, node_at, target

DEFAULT_PREFIX = "intel.com"  # cmd/sriovdp/main.go, --resource-prefix
VFS_MAX = 65_536  # more than a card has (NumVFs is 16 bits wide)

_HEX_ID = Annotated[str, Meta(pattern="^[0-9a-fA-F]{4}$")]
_ADDRESS = Annotated[str, Meta(pattern=r"^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$")]
_PLAIN_NAME = re.compile(r"[\w.:@-]+", re.ASCII)
_NUMBERS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_CLASSES = {"netDevice": "0x02*", "accelerator": "0x12*"}
_LINK_TYPES = {"ether": "0x0200*", "infiniband": "0x0207*"}
_UIO = frozenset({"uio_pci_generic", "igb_uio"})
_NO_COUNTERPART: Mapping[str, str] = {
    "ddpProfiles": "a card's profile is not in sysfs: choose its functions by pfNames or pciAddresses",
    "vdpaType": "write a resource for the nodes: match: {subsystem: vhost-vdpa}",
    "auxTypes": "write a resource for subfunctions: match: {subsystem: auxiliary, sysname: '*.sf.*'}",
    "pKeys": "a partition key is the port's, not the function's: choose functions by pfNames or pciAddresses",
}


# --- their file -----------------------------------------------------------------------------------------------------


class _Selectors(Model, frozen=True):
    vendors: tuple[_HEX_ID, ...] = ()
    devices: tuple[_HEX_ID, ...] = ()
    drivers: tuple[str, ...] = ()
    pci_addresses: tuple[_ADDRESS, ...] = ()
    acpi_indexes: tuple[str, ...] = ()
    pf_names: tuple[str, ...] = ()
    root_devices: tuple[str, ...] = ()
    link_types: tuple[Literal["ether", "infiniband"], ...] = ()
    ddp_profiles: tuple[str, ...] = ()
    aux_types: tuple[str, ...] = ()
    p_keys: tuple[str, ...] = field(default=(), name="pKeys")
    vdpa_type: str = ""
    is_rdma: bool = False
    need_vhost_net: bool = False

    def _problems(self) -> Iterator[Problem]:
        given = {"ddpProfiles": self.ddp_profiles, "vdpaType": self.vdpa_type, "auxTypes": self.aux_types}
        for key, value in {**given, "pKeys": self.p_keys}.items():
            if value:
                yield Problem("a selector that has a counterpart here", _NO_COUNTERPART[key], (key,))
        for key, items in (("pfNames", self.pf_names), ("rootDevices", self.root_devices)):
            for index, item in enumerate(items):
                if item.count("#") > 1 or not item.partition("#")[0] or ("#" in item and not list(_ranges(item))):
                    yield Problem("NAME, or NAME#0-3,6 with numbers of functions", path=(key, index), found=item)


class _Resource(Model, frozen=True):
    resource_name: str
    resource_prefix: str = ""
    device_type: Literal["netDevice", "accelerator", "auxNetDevice"] = "netDevice"
    exclude_topology: bool = False
    additional_info: Mapping[str, Mapping[str, str]] = {}
    selectors: Annotated[tuple[_Selectors, ...], OneOrMany()] = ()

    @property
    def name(self) -> str:
        return f"{self.resource_prefix or DEFAULT_PREFIX}/{self.resource_name}"

    def _problems(self) -> Iterator[Problem]:
        if self.device_type == "auxNetDevice":
            yield Problem("netDevice or accelerator", _NO_COUNTERPART["auxTypes"], ("deviceType",))
        yield from problems_of(names.extended_resource_name, self.name, "resourceName")


class _File(Model, frozen=True):
    resource_list: Annotated[tuple[_Resource, ...], Meta(min_length=1)]


# --- our file -------------------------------------------------------------------------------------------------------


def convert(source: FilePath | str | bytes, *, name: str = "configuration of the SR-IOV device plugin") -> str:
    """Return our YAML for the plugin's ``config.json``, or for a ConfigMap that holds it and nothing else.

    Raises ConfigErrors with the places in that file when it is wrong, or when something has no counterpart here.
    """
    text, name = text_in(source, name=name)
    if (inside := _of_config_map(text)) is not None:
        text, name = inside, f"the data of {name}"
    file = read(_File, text, name=name, hint="the plugin's file begins with resourceList")
    head = [
        "# Made from a configuration of the SR-IOV network device plugin. What differs is said above each resource.",
        "# The ids are the plugin's, PCI addresses: running pods are recognised when the agent takes over a node.",
        f"apiVersion: {API_VERSION}",
        f"kind: {KIND}",
        "# driver: a domain of yours, for claims",
    ]
    return written(head, ((_converted(resource), list(_notes(resource))) for resource in file.resource_list), name)


def _of_config_map(text: str) -> str | None:
    root, _ = compose(text)  # whoever reads it says what is wrong
    kind, data = (node_at(root, (key,)) if root is not None else None for key in ("kind", "data"))
    if not (isinstance(kind, Scalar) and kind.text == "ConfigMap" and isinstance(data, MappingNode)):
        return None
    values = [target(value) for _, value in data.entries]
    return values[0].text if len(values) == 1 and isinstance(values[0], Scalar) else None


def _converted(resource: _Resource) -> Json:
    selectors = resource.selectors or (_Selectors(),)
    found: Json = {"name": resource.name, "match": [one for each in selectors for one in _matchers(resource, each)]}
    found |= {"id": ["{pci}"], "nodes": list(_nodes(selectors))}
    companions = list(dict.fromkeys(subsystem for each in selectors for subsystem in _companions(each)))
    if companions:
        found["group"] = {"with": "children", "match": [{"subsystem": companions}]}
    variable = re.sub(r"[^A-Z0-9]", "_", resource.name.upper())
    found["env"] = {f"PCIDEVICE_{variable}": "{pci}"}
    if resource.exclude_topology:
        found["numa"] = False
    return found


def _matchers(resource: _Resource, each: _Selectors) -> Iterator[Json]:
    """Yield a matcher for each combination of physical functions: their virtual ones have numbers of their own."""
    attributes: Json = {"class": _one(sorted(_LINK_TYPES[kind] for kind in each.link_types))}
    attributes["class"] = attributes["class"] or _CLASSES[resource.device_type]
    attributes |= {"vendor": _one([f"0x{one}" for one in each.vendors])} if each.vendors else {}
    attributes |= {"device": _one([f"0x{one}" for one in each.devices])} if each.devices else {}
    attributes |= {"acpi_index": _one(list(each.acpi_indexes))} if each.acpi_indexes else {}
    base: Json = {"subsystem": "pci"}
    if each.drivers:
        base["driver"] = _one(list(each.drivers))
    if each.pci_addresses:
        base["sysname"] = _one([one.lower() for one in each.pci_addresses])
    base["attr"] = attributes
    if not each.pci_addresses and not each.acpi_indexes:
        base["exists"] = ["link:physfn"]
    for pf in each.pf_names or ("",):
        for root in each.root_devices or ("",):
            matcher = deepcopy(base)  # YAML would name what two matchers share
            numbers = [_one(list(_ranges(item))) for item in (pf, root) if "#" in item]
            if pf or numbers:
                named = {"SRIOV_PF_NAME": _pattern(pf)} if pf else {}
                matcher["property"] = named | ({"SRIOV_VF": numbers[0]} if numbers else {})
            if root:
                matcher["link"] = {"physfn": _pattern(root.lower())}
            if len(numbers) == 2:  # both must hold
                matcher["not"] = {"not": {"property": {"SRIOV_VF": numbers[1]}}}
            yield matcher


def _nodes(selectors: tuple[_Selectors, ...]) -> Iterator[Json]:
    drivers = {driver for each in selectors for driver in each.drivers}
    open_to_any = any(not each.drivers for each in selectors)
    if "vfio-pci" in drivers or open_to_any:
        optional = {} if drivers == {"vfio-pci"} and not open_to_any else {"optional": True}
        yield {"path": "/dev/vfio/{iommu_group}", **optional}
        yield {"path": "/dev/vfio/vfio", **optional}
    if any(True for each in selectors for _ in _companions(each)):
        yield {"from": "group"}
    if any(each.is_rdma for each in selectors):
        yield {"path": "/dev/infiniband/rdma_cm"}
    if any(each.need_vhost_net for each in selectors):
        yield from ({"path": "/dev/vhost-net"}, {"path": "/dev/net/tun"})


def _companions(each: _Selectors) -> Iterator[str]:
    """Yield the subsystems whose nodes below a function the container gets."""
    if each.is_rdma:
        yield from ("infiniband_verbs", "infiniband_mad")
    if _UIO.intersection(each.drivers):
        yield "uio"


def _notes(resource: _Resource) -> Iterator[str]:
    selectors = resource.selectors or (_Selectors(),)
    if not resource.resource_prefix:
        yield f"resourcePrefix: {DEFAULT_PREFIX} is the plugin's default; its flag --resource-prefix may say another."
    if any(not each.pci_addresses and not each.acpi_indexes for each in selectors):
        yield "exists: only virtual functions. The plugin also offers cards that are unused: write their sysname."
    if any(not each.drivers for each in selectors):
        yield "drivers: any. A function on vfio-pci comes with its nodes, one with a network driver without any."
    if any(_PLAIN_NAME.fullmatch(item.partition("#")[0]) for each in selectors for item in each.pf_names):
        yield "pfNames: whole names. For the plugin they are regular expressions: ens1f0 is also ens1f0np0 there."
    if resource.additional_info:
        yield "additionalInfo: left out, as the variable PCIDEVICE_..._INFO. Write such values into env."
    if any(each.is_rdma for each in selectors):
        yield "isRdma: a function without RDMA is matched, and Unhealthy. The plugin leaves it out."


def _ranges(item: str) -> Iterator[str]:
    """Yield patterns for the numbers in ``NAME#0-3,6``: ``[0-3]``, ``6``; nothing for any other text."""
    found: list[str] = []
    for part in item.partition("#")[2].split(","):
        numbers = _NUMBERS.fullmatch(part)
        if numbers is None:
            return
        first = int(numbers[1])
        last = int(numbers[2] or first)
        if not first <= last < VFS_MAX:
            return
        for tens in range(first // 10, last // 10 + 1):
            low, high = max(first - tens * 10, 0), min(last - tens * 10, 9)
            found.append(f"{tens or ''}{low}" if low == high else f"{tens or ''}[{low}-{high}]")
    yield from found


def _pattern(item: str) -> Any:
    """Return the pattern for a name, or for the regular expression that stands in its place."""
    name = item.partition("#")[0]
    if _PLAIN_NAME.fullmatch(name):
        return name
    before, after = "" if name.startswith("^") else ".*", "" if name.endswith("$") else ".*"  # ours match it all
    return {"regex": f"{before}(?:{name.removeprefix('^').removesuffix('$')}){after}"}


def _one(items: list[str]) -> Any:
    return items[0] if len(items) == 1 else items
