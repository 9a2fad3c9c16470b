"""What a configuration makes the inventory look at: subsystems, attributes, links. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from drabridge.config.claims import Profile
from drabridge.config.matcher import any_of
from drabridge.config.pattern import Glob
from drabridge.config.predicate import All, Ancestor, Any, Exists, Not, Predicate, Source, Test
from drabridge.config.schema import Config, Resource
from drabridge.config.template import Field

_MAGIC = re.compile(r"[*?\[\\]")


class UdevScope(Struct, frozen=True):
    """What to look at. No subsystems means all of them, which costs tens of milliseconds per enumeration."""

    subsystems: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()


def distinct_configs(configs: Iterable[Config]) -> list[Config]:
    """Each configuration once, whichever are equal."""
    return list({id(config): config for config in configs}.values())


def union(parts: Iterable[UdevScope]) -> UdevScope:
    """Everything that any of them wants."""
    every = list(parts)
    subsystems = [part.subsystems for part in every]
    return UdevScope(
        frozenset().union(*subsystems) if all(subsystems) else frozenset(),
        frozenset().union(*(part.attributes for part in every)),
        frozenset().union(*(part.links for part in every)),
    )


def scope_of(config: Config) -> UdevScope:
    """Everything that matching, identity, nodes and attributes of this configuration may read."""
    subsystems: set[str] | None = set()
    for predicate in (part for resource in config.resources for part in enumerated(resource)):
        found = subsystems_of(predicate)
        subsystems = None if found is None or subsystems is None else subsystems | found
    leaves = [leaf for resource in config.resources for part in enumerated(resource) for leaf in leaves_of(part)]
    fields = [item for resource in config.resources for item in fields_of(resource)]
    return UdevScope(
        subsystems=frozenset(subsystems or ()),
        attributes=frozenset(
            [leaf.key for leaf in leaves if leaf.source is Source.ATTR]
            + [item.key for item in fields if item.source == "attr"]
            + [name for resource in config.resources for rule in resource.health for name in rule.sysfs_attributes()]
        ),
        links=frozenset(
            [leaf.key for leaf in leaves if leaf.source is Source.LINK]
            + [item.key for item in fields if item.source == "link"]
            + [item for resource in config.resources if (item := partition_link(resource))]
        ),
    )


def enumerated(resource: Resource) -> Iterator[Predicate]:
    """The predicates whose devices must be among the records: the devices themselves and their companions."""
    yield any_of(resource.match)
    if resource.group is not None and resource.group.scope != "parent":  # ancestors come with every record
        yield any_of(resource.group.match)


def partition_link(resource: Resource) -> str:
    """The sysfs link from a part to its whole, or empty."""
    by = resource.partition.by if resource.partition else ""
    return by.removeprefix("link:") if by.startswith("link:") else ""


def subsystems_of(predicate: Predicate) -> set[str] | None:
    """The subsystems that a matching device can be in; None when it may be in any."""
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


def leaves_of(predicate: Predicate) -> Iterator[Test | Exists]:
    """All tests in a predicate, however deep."""
    match predicate:
        case All(parts=parts) | Any(parts=parts):
            for part in parts:
                yield from leaves_of(part)
        case Not(part=part) | Ancestor(part=part):
            yield from leaves_of(part)
        case Test() | Exists():
            yield predicate


def fields_of(resource: Resource) -> Iterator[Field]:
    """All fields in all templates of a resource, those of its claims' profiles included."""
    givers: list[Resource | Profile] = [resource, *resource.claim_config.profiles.values()]
    templates = [
        *resource.id,
        *(item for node in resource.nodes for item in (node.path, node.alias)),
        *(item for giver in givers for mount in giver.mounts for item in (mount.host_path, mount.container_path)),
        *(template for giver in givers for template in giver.env.values()),
        *(template for rule in resource.health for template, _ in rule.file_templates()),
    ]
    for template in templates:
        if template is not None:
            yield from template.fields
    values = (item.source for table in (resource.attributes, resource.capacity) for item in table.values())
    yield from (source for source in values if source is not None)


_KERNEL_PROPERTIES = frozenset({
    "DEVPATH", "SUBSYSTEM", "DEVTYPE", "DEVNAME", "DRIVER", "MAJOR", "MINOR", "MODALIAS", "PRODUCT", "INTERFACE",
    "IFINDEX", "PCI_ID", "PCI_CLASS", "PCI_SLOT_NAME", "PCI_SUBSYS_ID", "BUSNUM", "DEVNUM", "TYPE", "DISKSEQ",
})  # fmt: skip
_FROM_UDEVD = frozenset({Source.DEVLINK, Source.TAG})


def needs_database(resource: Resource) -> bool:
    """Whether this resource reads what only udevd knows: ID_* properties, links under /dev, tags.

    Such a device must not be named before udevd has finished with it: without ID_SERIAL_SHORT it would fall through
    to another identity, and change it a moment later.
    """
    leaves: Iterable[Test | Exists] = (leaf for part in enumerated(resource) for leaf in leaves_of(part))
    if any(leaf.source in _FROM_UDEVD for leaf in leaves):
        return True
    keys = [leaf.key for part in enumerated(resource) for leaf in leaves_of(part) if leaf.source is Source.PROPERTY]
    keys += [item.key for item in fields_of(resource) if item.source == "property"]
    return any(key not in _KERNEL_PROPERTIES for key in keys)


def needs_nvidia(config: Config) -> bool:
    """Whether any template asks for what NVIDIA's driver says."""
    return any(item.source.startswith("nvidia.") for resource in config.resources for item in fields_of(resource))
