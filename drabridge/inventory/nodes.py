"""Which device nodes belong to a device right now, and what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from drabridge.config.container import NodeRule
from drabridge.config.template import Lookup
from drabridge.inventory.fields import lookup
from drabridge.inventory.host import Host
from drabridge.inventory.model import COMPANION, DeviceNode
from drabridge.inventory.udev_device import UdevDevice

VFIO = "/dev/vfio/"


class MatchedDevice(Struct, frozen=True):
    """A device together with what its templates may refer to."""

    record: UdevDevice
    companions: tuple[UdevDevice, ...] = ()
    nvidia: Mapping[str, str] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)  # id, name, resource; empty before there is one

    def lookup(self, host: Host, **more: str) -> Lookup:
        """Values of template fields of this device."""
        return lookup(self.record, host, self.nvidia, **self.identity, **more)


class Nodes(Struct, frozen=True):
    """The nodes that are there, and a sentence for each one that should be and is not."""

    found: tuple[DeviceNode, ...]
    missing: tuple[str, ...]
    places: frozenset[str] = frozenset()  # see :func:`places_of`; not of a path that is every device's of the resource


class _Place(Struct, frozen=True):
    """Where a node should be; ``number`` is what the kernel says it must be, as far as it says."""

    path: str
    number: tuple[int, int] | None
    alias: str | None


def resolve(specs: Iterable[NodeRule], subject: MatchedDevice, host: Host) -> Nodes:
    """The nodes of a device as stat(2) shows them; nothing is opened. A path appears once in the container."""
    found: dict[str, DeviceNode] = {}
    missing = []
    places: set[str] = set()
    for spec in specs:
        shared = spec.path is not None and not spec.path.fields
        for place in _places(spec, subject, host):
            if isinstance(place, str):
                problem = place
            else:
                try:
                    node = _node(spec, place, host)
                    found.setdefault(node.container_path, node)
                    if not shared:
                        places.update(places_of(node, companion=spec.source == "group"))
                    continue
                except OSError as error:
                    problem = str(error)
            if not spec.optional:
                missing.append(problem)
    return Nodes(tuple(found.values()), tuple(missing), frozenset(places))


def places_of(node: DeviceNode, *, companion: bool = False) -> tuple[str, ...]:
    """What a node is to whoever has it, as a place of hardware: ``c188:0``, or ``+c188:0`` of a companion.

    A number is used again as soon as its device is unplugged, while a container may have the node yet. Who opens the
    node of an IOMMU group has every device in it (Documentation/driver-api/vfio.rst): ``/dev/vfio/12`` is one, too.
    """
    number = f"{COMPANION if companion else ''}{node.kind}{node.major}:{node.minor}"
    return (number, node.path) if node.path.startswith(VFIO) else (number,)


def _node(spec: NodeRule, place: _Place, host: Host) -> DeviceNode:
    actual = host.node(place.path)
    if place.number is not None and place.number != (actual.major, actual.minor):
        raise OSError(
            f"{place.path} has the number {actual.major}:{actual.minor}, "
            f"but the kernel says {place.number[0]}:{place.number[1]}"
        )
    return DeviceNode(
        path=actual.path,
        container_path=place.alias or place.path,
        permissions=spec.permissions,
        kind=actual.kind,
        major=actual.major,
        minor=actual.minor,
    )


def _places(spec: NodeRule, subject: MatchedDevice, host: Host) -> Iterator[_Place | str]:
    """Every place that a node of the configuration stands for, or why there is none."""
    if spec.path is not None:
        path = spec.path.render_path(subject.lookup(host))
        if path is None:
            yield f"{spec.path} cannot be filled in: {_empty_fields(spec, subject, host)}"
            return
        yield from _with_alias(spec, path, None, subject, host)
    elif spec.source == "devnode":
        if not subject.record.devnode:
            yield "it has no device node"
            return
        yield from _with_alias(spec, subject.record.devnode, subject.record.devnum, subject, host)
    else:
        nodes = [record for record in subject.companions if record.devnode]
        if not nodes:
            yield "no companion with a device node was found"
        for record in nodes:
            yield from _with_alias(spec, record.devnode, record.devnum, subject, host)


def _with_alias(
    spec: NodeRule, path: str, number: tuple[int, int] | None, subject: MatchedDevice, host: Host
) -> Iterator[_Place | str]:
    if spec.alias is None:
        yield _Place(path, number, None)
        return
    alias = spec.alias.render_path(subject.lookup(host, devname=os.path.basename(path)))
    yield _Place(path, number, alias) if alias else f"the alias {spec.alias} cannot be filled in"


def _empty_fields(spec: NodeRule, subject: MatchedDevice, host: Host) -> str:
    assert spec.path is not None
    values = subject.lookup(host)
    empty = [f"{{{part}}}" for part in spec.path.fields if not values(part)]
    return f"{', '.join(empty)} has no value" if empty else "a value would leave the directory"
