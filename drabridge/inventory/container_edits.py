"""Resolve the device nodes, mounts and environment that one device brings into a container, and what is missing.

A configuration key that reaches the container passes through four files: its rule is in ``config/container.py``, its
value for one device is computed here, its field is in ``inventory/devices.py``, and ``containers/cdi_spec.py`` writes
it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.container import CdiFallback, MountRule, NodeRule
from drabridge.config.names import is_cdi_name
from drabridge.config.schema import Resource
from drabridge.config.template import CONTAINER_FIELDS, Lookup, Template, variable_name
from drabridge.errors import HostError
from drabridge.inventory.cdi_names import CdiNames
from drabridge.inventory.devices import CDI_PLACE, COMPANION, Device, DeviceNode, Fallback, Mount, NvidiaFiles
from drabridge.inventory.host import Host
from drabridge.inventory.template_values import MatchedDevice
from drabridge.inventory.vfio import VFIO

NOT_LOOKED = "the files of NVIDIA's driver could not be looked for yet: the host's disk does not answer"
_NOT_IN_NAMES = re.compile(rf"\{{({'|'.join(CONTAINER_FIELDS)})\}}|[^A-Za-z0-9_]")  # keeps the container's fields


T = TypeVar("T")


class Resolved(Struct, Generic[T], frozen=True):
    """``found``: what a device has of one kind. ``missing``: one sentence for each missing thing.

    ``places``: where the hardware is, in the form of :attr:`Device.also_at`. A path or name without template fields is
    no place: all devices of the resource share it.
    """

    found: T
    missing: tuple[str, ...] = ()
    places: frozenset[str] = frozenset()


class _ExpectedNode(Struct, frozen=True):
    """Where a node should be. ``number``: major and minor by the kernel; None if the kernel names no node."""

    path: str
    number: tuple[int, int] | None
    alias: str | None


def resolve_nodes(rules: Iterable[NodeRule], device: MatchedDevice, host: Host) -> Resolved[tuple[DeviceNode, ...]]:
    """Find the device's nodes with stat(2); nothing is opened. A path appears once in the container."""
    found: dict[str, DeviceNode] = {}
    missing = []
    places: set[str] = set()
    for rule in rules:
        same_for_all = rule.path is not None and not rule.path.fields
        for expected in _expected_nodes(rule, device, host):
            if isinstance(expected, str):
                problem = expected
            else:
                try:
                    node, behind = _node(rule, expected, host)
                    found.setdefault(node.container_path, node)
                    if not same_for_all:
                        places.update(places_of(node, behind, companion=rule.source == "group"))
                    continue
                except OSError as error:
                    problem = str(error)
            if not rule.optional:
                missing.append(problem)
    return Resolved(tuple(found.values()), tuple(missing), frozenset(places))


def places_of(node: DeviceNode, behind: Sequence[str] = (), *, companion: bool = False) -> tuple[str, ...]:
    """Return the places of hardware that a node gives access to: ``c188:0``, or ``+c188:0`` of a companion.

    ``behind``: other places that the node gives access to (behind.py).

    Numbers are places because the kernel reuses them after an unplug, while a container may still have the old node.
    ``/dev/vfio/12`` is a place because a process that opens the node of an IOMMU group has every device in the group
    (Documentation/driver-api/vfio.rst).
    """
    numbers = (f"{node.kind}{node.major}:{node.minor}", *behind)
    if companion:  # an IOMMU group is not marked, because it has only one owner
        numbers = tuple(place if place.startswith(("/", COMPANION)) else COMPANION + place for place in numbers)
    return (*numbers, node.path) if node.path.startswith(VFIO) else numbers


def resolve_mounts(rules: Iterable[MountRule], device: MatchedDevice, host: Host) -> Resolved[tuple[Mount, ...]]:
    """Find the mounts whose host path exists; the others are missing unless they are optional."""
    values = device.lookup(host)
    found, missing = [], []
    for rule in rules:
        mount = render_mount(rule, values)
        if isinstance(mount, Mount) and host.exists(mount.host_path):
            found.append(mount)
        elif not rule.optional:
            missing.append(
                f"{mount.host_path} cannot be mounted: it does not exist"
                if isinstance(mount, Mount)
                else f"{mount} cannot be filled in: {_why_empty(mount, values)}"
            )
    return Resolved(tuple(found), tuple(missing))


def render_mount(rule: MountRule, values: Lookup) -> Mount | Template:
    """Return the mount of one device, or the template that has no value for this device."""
    host_path = rule.host_path.render_path(values)
    if host_path is None:
        return rule.host_path
    if rule.container_path is None:
        return Mount(host_path, host_path, rule.read_only)
    container_path = rule.container_path.render_path(values)
    return rule.container_path if container_path is None else Mount(host_path, container_path, rule.read_only)


def render_env(templates: Mapping[str, Template], values: Lookup) -> dict[str, str]:
    """Return the environment variables of one device; those without a value are left out.

    Names may have fields; what cannot be in a name becomes ``_``.
    """
    rendered = ((variable_name(name).render(values), value.render(values)) for name, value in templates.items())
    return {
        _NOT_IN_NAMES.sub(lambda found: found[0] if found[1] else "_", name): value
        for name, value in rendered
        if name is not None and value is not None
    }


def resolve_fallback(
    rules: CdiFallback | None, device: MatchedDevice, host: Host, driver: NvidiaFiles | None = None
) -> Resolved[Fallback | None]:
    """Return what ``cdiFallback`` gives for one device, whether or not it is in use. ``driver``: NVIDIA's files."""
    if rules is None:
        return Resolved(None)
    nodes = resolve_nodes(rules.nodes, device, host)
    mounts = resolve_mounts(rules.mounts, device, host)
    missing = nodes.missing + mounts.missing
    env = MappingProxyType(render_env(rules.env, device.lookup(host)))
    fallback = Fallback(nodes.found, env, mounts.found)
    if rules.driver_files is not None:
        no_driver = NOT_LOOKED if driver is None else driver.problem
        missing += (no_driver,) if no_driver else ()
        if driver is not None:
            given = {mount.container_path: mount for mount in (*driver.mounts, *mounts.found)}
            fallback = replace(fallback, mounts=tuple(given.values()), hook=driver.hook)
        fallback = replace(fallback, no_driver=no_driver)
    return Resolved(fallback, missing, nodes.places)


def choose_cdi(
    templates: Sequence[Template], device: MatchedDevice, host: Host, known: CdiNames
) -> Resolved[tuple[str, ...]]:
    """Return the qualified names that ``cdiDevices`` gives for one device. ``known``: the CDI devices that exist."""
    values = device.lookup(host)
    names: list[str] = []
    missing: list[str] = []
    places: set[str] = set()
    for template in templates:
        name = template.render(values)
        if name is None:
            missing.append(f"the CDI device {template} cannot be filled in: {_why_empty(template, values)}")
        elif not is_cdi_name(name.partition("=")[2]):
            missing.append(f"{name!r} cannot be a CDI device: letters, digits and any of '_-.:' inside were expected")
        else:
            names.append(name)
            missing += filter(None, [known.missing(name)])
            if template.fields:
                places.add(CDI_PLACE + name)
    return Resolved(tuple(names), tuple(missing), frozenset(places))


def resolve_again(device: Device, resource: Resource, source: MatchedDevice, host: Host, known: CdiNames) -> Device:
    """Return the device with its nodes and CDI devices as they are now. Raises HostError if one of them is missing."""
    if resource.vfio is not None:  # binding creates the nodes, before the container starts
        return device
    nodes = resolve_nodes(resource.nodes, source, host)
    cdi = choose_cdi(resource.cdi_devices, source, host, known)
    missing, names, fallback = nodes.missing, cdi.found, device.fallback
    if cdi.missing and resource.cdi_fallback is not None and fallback is not None:
        instead = resolve_nodes(resource.cdi_fallback.nodes, source, host)
        fallback = replace(fallback, nodes=instead.found)
        missing, names = missing + instead.missing, ()
    else:
        missing += cdi.missing
    if missing:
        raise HostError(f"{device.name}: {'; '.join(missing)}", hint="Check the device and its driver.")
    why = "; ".join(cdi.missing)
    return replace(device, nodes=nodes.found, cdi_devices=names, fallback=fallback, cdi_missing=why)


def _node(rule: NodeRule, expected: _ExpectedNode, host: Host) -> tuple[DeviceNode, tuple[str, ...]]:
    """Return the node as it is, and the places behind it. Raises OSError."""
    actual = host.node(expected.path)
    if expected.number is not None and expected.number != (actual.major, actual.minor):
        raise OSError(
            f"{expected.path} has the number {actual.major}:{actual.minor}, "
            f"but the kernel says {expected.number[0]}:{expected.number[1]}"
        )
    inside = expected.alias or expected.path
    mode = actual.mode if rule.file_mode == "host" else int(rule.file_mode, 8) if rule.file_mode else None
    uid = actual.uid if isinstance(rule.uid, str) else rule.uid
    gid = actual.gid if isinstance(rule.gid, str) else rule.gid
    joined = (actual.gid if gid is None else gid) if rule.join_group else None
    number = actual.kind, actual.major, actual.minor
    return DeviceNode(actual.path, inside, rule.permissions, *number, mode, uid, gid, joined), actual.behind


def _expected_nodes(rule: NodeRule, device: MatchedDevice, host: Host) -> Iterator[_ExpectedNode | str]:
    """Yield every node that a rule stands for; for a missing node, a sentence that says why."""
    values = device.lookup(host)
    nodes: list[tuple[str, tuple[int, int] | None]]
    if rule.path is not None:
        path = rule.path.render_path(values)
        if path is None:
            yield f"{rule.path} cannot be filled in: {_why_empty(rule.path, values)}"
            return
        nodes = [(path, None)]
    elif rule.source == "devnode":
        if not device.udev.devnode:
            yield "it has no device node"
            return
        nodes = [(device.udev.devnode, device.udev.devnum)]
    else:
        nodes = [(companion.devnode, companion.devnum) for companion in device.companions if companion.devnode]
        if not nodes:
            yield "no companion with a device node was found"
    for path, number in nodes:
        if rule.alias is None:
            yield _ExpectedNode(path, number, None)
        elif alias := rule.alias.render_path(device.lookup(host, devname=os.path.basename(path))):
            yield _ExpectedNode(path, number, alias)
        else:
            yield f"the alias {rule.alias} cannot be filled in"


def _why_empty(template: Template, values: Lookup) -> str:
    empty = [f"{{{field}}}" for field in template.fields if not values(field)]
    return f"{', '.join(empty)} has no value" if empty else "a value would leave the directory"
