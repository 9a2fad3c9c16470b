"""Tell what a configuration reads from udev: subsystems, attributes, links. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from drabridge.config import resource_names
from drabridge.config.claims import Profile
from drabridge.config.container import CdiFallback
from drabridge.config.matcher import any_of
from drabridge.config.pattern import Glob
from drabridge.config.predicate import All, Ancestor, Any, Exists, Not, Predicate, Source, Test
from drabridge.config.schema import DEFAULT_ID, Config, Resource
from drabridge.config.template import Field, variable_name
from drabridge.inventory import amdgpu

MIG = "nvidia-mig"
"""The subsystem of NVIDIA's MIG instances. The kernel has no such devices; ``mig.py`` makes them."""

VFIO_CDEV = "vfio-dev"
"""The subsystem of the node that a function bound to vfio-pci has: ``/dev/vfio/devices/vfio3`` (Linux 6.6)."""

_MAGIC = re.compile(r"[*?\[\\]")


class UdevScope(Struct, frozen=True):
    """What to read from udev. No subsystems means all of them: tens of milliseconds per enumeration."""

    subsystems: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()


def distinct_configs(configs: Iterable[Config]) -> list[Config]:
    """Return each configuration object once; equal but different objects stay."""
    return list({id(config): config for config in configs}.values())


def union(parts: Iterable[UdevScope]) -> UdevScope:
    """Return the scope that covers all these scopes."""
    every = list(parts)
    subsystems = [part.subsystems for part in every]
    return UdevScope(
        frozenset().union(*subsystems) if all(subsystems) else frozenset(),
        frozenset().union(*(part.attributes for part in every)),
        frozenset().union(*(part.links for part in every)),
    )


def scope_of_all(configs: Iterable[Config]) -> UdevScope:
    """Return what any of these configurations may read; one whose templates give no resource name yet reads nothing."""
    return union(scope_of(config) for config in configs if config.resources)


def scope_of(config: Config) -> UdevScope:
    """Return what matching, identity, nodes, attributes and health of this configuration may read."""
    rules = [rule for resource in config.resources for rule in enumerated(resource)]
    tests = [test for resource in config.resources for rule in _looked_at(resource) for test in tests_of(rule)]
    fields = [*(field for resource in config.resources for field in fields_of(resource)), *label_fields(config)]
    subsystems = [subsystems_of(rule) for rule in rules]
    if any(resource.vfio is not None for resource in config.resources):
        subsystems.append({VFIO_CDEV})
    return UdevScope(
        subsystems=frozenset() if None in subsystems else _in_sysfs(frozenset().union(*filter(None, subsystems))),
        attributes=frozenset(
            [test.key for test in tests if test.source is Source.ATTR]
            + [field.key for field in fields if field.source == "attr"]
            + [name for resource in config.resources for rule in resource.health for name in rule.sysfs_attributes()]
            + ["serial" for resource in config.resources if resource.evict_holders is not None]
        ),
        links=frozenset(
            [test.key for test in tests if test.source is Source.LINK]
            + [field.key for field in fields if field.source == "link"]
            + [link for resource in config.resources if (link := partition_link(resource))]
        ),
    )


def _in_sysfs(subsystems: frozenset[str]) -> frozenset[str]:
    """Return the subsystems that udev must enumerate: GPUs in place of their MIG instances (``mig.py``)."""
    return (subsystems - {MIG}) | {"pci"} if MIG in subsystems else subsystems


def enumerated(resource: Resource) -> Iterator[Predicate]:
    """Yield the predicates of all devices that must be enumerated: the resource's devices and their companions."""
    yield any_of(resource.match)
    if resource.group is not None and resource.group.scope != "parent":  # ancestors are read with every device
        yield any_of(resource.group.match)


def _looked_at(resource: Resource) -> Iterator[Predicate]:
    """Yield the predicates of :func:`enumerated`, and those of ``replicas`` for some of its devices."""
    yield from enumerated(resource)
    yield from (any_of(other.match) for other in resource.replicas.other_counts)


def partition_link(resource: Resource) -> str:
    """Return the sysfs link from a part to its whole, or empty."""
    by = resource.partition.by if resource.partition else ""
    return by.removeprefix("link:") if by.startswith("link:") else ""


def subsystems_of(predicate: Predicate) -> set[str] | None:
    """Return the subsystems that a matching device can be in; None when it may be in any."""
    match predicate:
        case Test(source=Source.SUBSYSTEM, patterns=patterns):
            words = [word for item in patterns.items if isinstance(item, Glob) for word in item.text.split("|")]
            plain = all(isinstance(item, Glob) for item in patterns.items)
            return set(words) if plain and all(word and not _MAGIC.search(word) for word in words) else None
        case All(parts=parts):
            known = [found for part in parts if (found := subsystems_of(part)) is not None]
            return min(known, key=len) if known else None
        case Any(parts=parts):
            all_known = [subsystems_of(part) for part in parts]
            return set().union(*(found for found in all_known if found)) if None not in all_known and parts else None
        case _:
            return None


def tests_of(predicate: Predicate) -> Iterator[Test | Exists]:
    """Yield all tests in a predicate, at any depth."""
    match predicate:
        case All(parts=parts) | Any(parts=parts):
            for part in parts:
                yield from tests_of(part)
        case Not(part=part) | Ancestor(part=part):
            yield from tests_of(part)
        case Test() | Exists():
            yield predicate


def fields_of(resource: Resource) -> Iterator[Field]:
    """Yield all fields in all templates of a resource, including the profiles of its claims."""
    givers: list[Resource | Profile | CdiFallback] = [resource, *resource.claim_config.profiles.values()]
    if resource.cdi_fallback is not None:
        givers.append(resource.cdi_fallback)
    templates = [
        *resource.identity,
        *resource.cdi_devices,
        *(item for node in resource.all_nodes for item in (node.path, node.alias)),
        *(item for giver in givers for mount in giver.mounts for item in (mount.host_path, mount.container_path)),
        *(
            template
            for giver in givers
            for name, value in giver.env.items()
            for template in (variable_name(name), value)
        ),
        *(template for rule in resource.health for template in rule.templates()),
    ]
    for template in templates:
        if template is not None:
            yield from template.fields
    if (named_by := resource_names.field_of(resource.name)) is not None:
        yield named_by
    if resource.uniform is not None:
        yield resource.uniform
    values = (item.source for table in (resource.attributes, resource.capacity) for item in table.values())
    yield from (source for source in values if source is not None)


def label_fields(config: Config) -> Iterator[Field]:
    """Yield all fields in the templates of the Node's labels."""
    for rule in config.label_rules:
        if rule.value is not None:
            yield from rule.value.fields


_KERNEL_PROPERTIES = frozenset({
    "DEVPATH", "SUBSYSTEM", "DEVTYPE", "DEVNAME", "DRIVER", "MAJOR", "MINOR", "MODALIAS", "PRODUCT", "INTERFACE",
    "IFINDEX", "PCI_ID", "PCI_CLASS", "PCI_SLOT_NAME", "PCI_SUBSYS_ID", "BUSNUM", "DEVNUM", "TYPE", "DISKSEQ",
})  # fmt: skip
_FROM_UDEVD = frozenset({Source.DEVLINK, Source.TAG})


def needs_database(resource: Resource) -> bool:
    """Whether this resource reads what only udevd knows: ID_* properties, links under /dev, tags.

    Its devices must not be named before udevd has finished with them: without ID_SERIAL_SHORT a device would take its
    next identity, and change it a moment later.
    """
    return next(database_reads(resource), None) is not None


def database_reads(resource: Resource) -> Iterator[str]:
    """Yield what this resource reads that only udevd knows, as the configuration writes it: ``property:ID_PATH``."""
    for test in (test for rule in _looked_at(resource) for test in tests_of(rule)):
        if test.source in _FROM_UDEVD or (test.source is Source.PROPERTY and _is_udevds(test.key)):
            yield test.label.replace(".", ":", 1)
    for field in fields_of(resource):
        if field.source == "property" and _is_udevds(field.key):
            yield str(field)


def why_database(config: Config) -> Iterator[str]:
    """Yield a sentence for each resource that reads what only udevd knows; for nodes without udevd's database.

    Fields of the default identity do not count: it falls back to what the kernel knows, by design.
    """
    for resource in config.resources:
        usual = set(map(str, resource.id)) if resource.identity == DEFAULT_ID else set()
        reads = [one for one in dict.fromkeys(database_reads(resource)) if f"{{{one}}}" not in usual]
        if reads:
            yield (
                f"{resource.name}: there is no udev database here, so nothing has {', '.join(reads)}: where udevd runs "
                "on the node, mount its /run/udev"
            )


def _is_udevds(key: str) -> bool:
    return key not in _KERNEL_PROPERTIES and not key.startswith(amdgpu.PREFIX)


def cdi_kinds(configs: Iterable[Config]) -> frozenset[str]:
    """Return the kinds (``vendor/class``) of the CDI devices that these configurations name."""
    return frozenset(
        str(template).partition("=")[0]
        for config in configs
        for resource in config.resources
        for template in resource.cdi_devices
    )


def wholes_of_mig(config: Config) -> frozenset[str]:
    """Return the resources whose GPUs, once in MIG mode, are offered as MIG instances by another resource."""
    return frozenset(
        resource.partition.of
        for resource in config.resources
        if resource.partition is not None and MIG in (subsystems_of(any_of(resource.match)) or ())
    )


def needs_nvidia(config: Config) -> bool:
    """Whether a template or health rule reads what NVIDIA's driver says, or a match rule is about MIG instances."""
    fields = [*(field for resource in config.resources for field in fields_of(resource)), *label_fields(config)]
    return any(field.source.startswith("nvidia.") for field in fields) or any(
        MIG in (subsystems_of(any_of(resource.match)) or ()) or any(rule.nvml is not None for rule in resource.health)
        for resource in config.resources
    )
