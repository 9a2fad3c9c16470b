"""From udev records to devices: matched, named, with their nodes, attributes and health.

Reads nothing but the records, NVIDIA's facts and, through :class:`~drabridge.inventory.host.Host`, the nodes and files
that the configuration names. A device that several resources match belongs to the first of them in the file: one piece
of hardware is never counted twice.

A device that somebody holds stays what it was when a changed configuration would call it otherwise, or not at all: with
the resource, the id and the nodes of the configuration that named it, until it is let go. That it is the same hardware
is told by that configuration's identity, not by the place: another stick in the same port is another device, and the
same one in another port is the same.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.matcher import any_of
from drabridge.config.pattern import is_hex_id
from drabridge.config.predicate import Predicate
from drabridge.config.schema import Config, Resource
from drabridge.config.template import parse
from drabridge.inventory import attribute_values, nodes, topology
from drabridge.inventory.fields import driver
from drabridge.inventory.host import Host
from drabridge.inventory.identity import Candidate, DeviceIdentity, Key, assign, id_of, name_of
from drabridge.inventory.match import holds
from drabridge.inventory.model import Attribute, Collision, Device, Mount, Presence
from drabridge.inventory.nodes import MatchedDevice
from drabridge.inventory.nvidia import NvidiaFacts, without_uuid
from drabridge.inventory.overlap import FormerDevices, handed_out, resource_of, separate
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import distinct, needs_database, partition_link


class BuildResult(Struct, frozen=True):
    """The devices that exist, those that nobody can tell apart, and the syspaths that udevd has yet to finish."""

    devices: tuple[Device, ...]
    collisions: tuple[Collision, ...]
    waiting: tuple[str, ...]


class _Seen(Struct, frozen=True):
    """What follows from one matched record alone; kept as long as the record is the same object."""

    record: UdevDevice
    config: Config
    resource: Resource
    needs_database: bool
    nvidia: Mapping[str, str]
    candidate: Candidate

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(map(id_of, self.candidate.values))


class Builder:
    """Builds devices for one configuration, and remembers those whose records have not changed.

    ``named_by`` says which configuration named a device, by its id; it is kept up to date.
    """

    def __init__(self, config: Config, host: Host, named_by: Mapping[str, Config] | None = None) -> None:
        self.config = config
        self.named_by = dict(named_by or {})
        self.kept: frozenset[str] = frozenset()  # names that an earlier configuration gave and this one would not
        self._host = host
        self._rules = {id(each): _rules(each) for each in distinct((config, *self.named_by.values()))}
        self._matched: dict[
            int, dict[str, tuple[UdevDevice, NvidiaFacts, _Seen | None]]
        ] = {}  # by configuration, by syspath
        self._made: dict[Key, tuple[tuple[object, ...], Device]] = {}
        self._subjects: dict[str, tuple[Resource, MatchedDevice]] = {}  # device name -> what it was made of

    def build(
        self,
        records: Mapping[str, UdevDevice],
        facts: NvidiaFacts,
        *,
        given: Mapping[Key, str],
        held: Callable[[str], bool],
        ready: Callable[[UdevDevice], bool] = lambda record: True,
        fresh: bool = True,
    ) -> BuildResult:
        """All devices. ``ready`` says whether udevd is done with a record; ``fresh`` looks at every node again."""
        world = _World(records)
        chosen: list[_Seen] = []
        waiting: list[_Seen] = []
        matched = self._match(self.config, records, facts, fresh)
        held_as, away = self._held_otherwise(records, matched, facts, given, held, fresh)
        unsure = any(needs_database(resource) for config in distinct(away.values()) for resource in config.resources)
        for seen in (matched | held_as).values():
            if (seen.needs_database or unsure) and not ready(seen.record):  # unsure: it may be one that is away
                waiting.append(seen)
            else:
                chosen.append(seen)
        identities, collisions = assign((seen.candidate for seen in chosen), given, held)
        last = {**given, **{seen.candidate.key: seen.candidate.values[0] for seen in held_as.values()}}
        there = {
            seen.record.syspath: (seen, identities[key].name if key in identities else name_of(last[key]))
            for seen in (*chosen, *waiting)  # one that is waited for, or collides, is what it was called last
            if (key := seen.candidate.key) in identities or key in last
        }
        former = FormerDevices()
        for seen, _ in there.values():
            if seen.config is not self.config:
                companions = world.companions(seen.resource, seen.record)
                former.add(seen.config, handed_out(seen.resource, seen.record, companions))
        named_by = {device_id: config for device_id, config in self.named_by.items() if held(name_of(device_id))}
        made, subjects, devices = {}, {}, []
        for seen in chosen:
            key = seen.candidate.key
            if (identity := identities.get(key)) is None:
                continue
            record, resource = seen.record, seen.resource
            subject = MatchedDevice(
                record,
                tuple(world.companions(resource, record)),
                seen.nvidia,
                {"id": identity.id, "name": identity.name, "resource": resource.name},
            )
            root = _root(seen, there, bool(former))
            parts = handed_out(resource, record, subject.companions)
            also_at = {part.syspath for part in parts[1:]}
            if seen.config is self.config:
                also_at |= former.same_as(parts)
            basis = (record, *subject.companions, subject.nvidia, identity, root, frozenset(also_at))
            device = self._remembered(key, basis) if not fresh else None
            if device is None:
                device, places = self._device(resource, subject, identity, root)
                also_at |= places
                device = replace(device, also_at=tuple(sorted(also_at)), former=seen.config is not self.config)
            if record.syspath in held_as or identity.id not in named_by:  # else it has the id of one that is away
                named_by[identity.id] = seen.config
            made[key] = (basis, device)
            subjects[identity.name] = (resource, subject)
            devices.append(device)
        self._made, self._subjects, self.named_by = made, subjects, named_by
        devices = separate({name for name, (resource, _) in subjects.items() if resource.partition}, devices)
        self.kept = frozenset(device.name for device in devices if device.former)
        return BuildResult(tuple(devices), collisions, tuple(seen.record.syspath for seen in waiting))

    def subject(self, name: str) -> tuple[Resource, MatchedDevice] | None:
        """What the device of that name was last made of; None when it is not there."""
        return self._subjects.get(name)

    def _match(
        self, config: Config, records: Mapping[str, UdevDevice], facts: NvidiaFacts, fresh: bool
    ) -> dict[str, _Seen]:
        """Every record that a resource matches; what is known of an unchanged one is not worked out again."""
        before, matched = self._matched.get(id(config), {}), {}
        for syspath, record in records.items():
            known = before.get(syspath)
            if known is None or known[0] is not record or (known[2] and (fresh or known[1] is not facts)):
                known = (record, facts, self._see(config, record, facts))
            matched[syspath] = known
        self._matched[id(config)] = matched
        return {syspath: seen for syspath, (_, _, seen) in matched.items() if seen is not None}

    def _held_otherwise(
        self,
        records: Mapping[str, UdevDevice],
        matched: Mapping[str, _Seen],
        facts: NvidiaFacts,
        given: Mapping[Key, str],
        held: Callable[[str], bool],
        fresh: bool,
    ) -> tuple[dict[str, _Seen], dict[str, Config]]:
        """The hardware that is held under a name of an earlier configuration, by place; then those that are not here.

        It is looked for where it was, then everywhere: several that may be it collide.
        """
        away = {i: config for i, config in self.named_by.items() if config is not self.config and held(name_of(i))}
        found: dict[str, _Seen] = {}

        def look(path: str, former: _Seen | None, names: Collection[str]) -> None:
            if former and (device_id := next((i for i in former.ids if i in names), None)):
                found[path] = _as_held(former, matched.get(path), device_id)

        for (_, path), device_id in given.items():
            if device_id in away and path in records:
                look(path, self._see(away[device_id], records[path], facts), {device_id})
        away = _without(away, found)
        for config in distinct(away.values()):
            names = {device_id for device_id, other in away.items() if other is config}
            for path, former in self._match(config, records, facts, fresh).items():
                if path not in found:
                    look(path, former, names)
        return found, _without(away, found)

    def _see(self, config: Config, record: UdevDevice, facts: NvidiaFacts) -> _Seen | None:
        for resource, rule, database in self._rules[id(config)]:
            if holds(rule, record):
                return self._described(config, resource, database, record, facts)
        return None

    def _described(
        self, config: Config, resource: Resource, database: bool, record: UdevDevice, facts: NvidiaFacts
    ) -> _Seen:
        nvidia = facts.of(topology.pci_bus_id(record)) if facts.gpus else {}
        values = MatchedDevice(record, nvidia=nvidia).lookup(self._host)
        ids = tuple(template.render(values) or "" for template in resource.id)
        candidate = Candidate(resource.name, record.syspath, ids, without_uuid(nvidia))
        return _Seen(record, config, resource, database, nvidia, candidate)

    def _remembered(self, key: Key, basis: tuple[object, ...]) -> Device | None:
        """The device as it was made, when nothing it is made of changed. A faulty one is always looked at again."""
        known = self._made.get(key)
        if known is None or known[0] != basis or known[1].presence is not Presence.PRESENT:
            return None
        return known[1]

    def _device(
        self, resource: Resource, subject: MatchedDevice, identity: DeviceIdentity, root: str
    ) -> tuple[Device, frozenset[str]]:
        """The device, and the places that are its nodes."""
        record = subject.record
        found = nodes.resolve(resource.nodes, subject, self._host)
        mounts, unmounted = self._mounts(resource, subject)
        required = any(rule.node_exists is False for rule in resource.health)
        faults = [*(() if required else found.missing), *unmounted, *self._ill(resource, subject)]
        device = Device(
            name=identity.name,
            id=identity.id,
            resource=resource.name,
            syspath=record.syspath,
            nodes=found.found,
            env=MappingProxyType(self._env(resource, subject)),
            mounts=mounts,
            numa_nodes=topology.numa_nodes(record),
            pci_bus_id=topology.pci_bus_id(record),
            pcie_root=topology.pcie_root(record),
            root=root,
            attributes=MappingProxyType(self._attributes(resource, subject)),
            capacity=MappingProxyType(self._capacity(resource, subject)),
            replicas=resource.replicas.count,
            presence=Presence.FAULTY if faults else Presence.PRESENT,
            reason="; ".join(faults),
        )
        return device, found.places

    def _env(self, resource: Resource, subject: MatchedDevice) -> dict[str, str]:
        values = subject.lookup(self._host)
        rendered = {name: template.render(values) for name, template in resource.env.items()}
        return {name: value for name, value in rendered.items() if value is not None}

    def _mounts(self, resource: Resource, subject: MatchedDevice) -> tuple[tuple[Mount, ...], list[str]]:
        values = subject.lookup(self._host)
        found, missing = [], []
        for spec in resource.mounts:
            source = spec.host_path.render_path(values)
            target = source if spec.container_path is None else spec.container_path.render_path(values)
            if source and target and self._host.exists(source):
                found.append(Mount(source, target, spec.read_only))
            elif not spec.optional:
                missing.append(f"{source or spec.host_path} cannot be mounted: it does not exist")
        return tuple(found), missing

    def _attributes(self, resource: Resource, subject: MatchedDevice) -> dict[str, Attribute]:
        values = subject.lookup(self._host)
        found: dict[str, Attribute] = {}
        for name, spec in resource.attributes.items():
            text = values(spec.source) if spec.source is not None else None
            if spec.value is not None and spec.kind != "version":
                found[name] = spec.value
            elif (value := attribute_values.attribute(text or str(spec.value or ""), spec.kind)) is not None:
                found[name] = value
        return found

    def _capacity(self, resource: Resource, subject: MatchedDevice) -> dict[str, int]:
        values = subject.lookup(self._host)
        found = {}
        for name, spec in resource.capacity.items():
            text = str(spec.value) if spec.source is None else values(spec.source)
            if text and (value := attribute_values.amount(text, spec.unit)) is not None:
                found[name] = value
        return found

    def _ill(self, resource: Resource, subject: MatchedDevice) -> Iterator[str]:
        """Why the device is not healthy, one sentence for each rule that fails."""
        if subject.nvidia.get("excluded") == "true":
            yield "NVIDIA's driver excludes this GPU"
        for rule in resource.health:
            if rule.driver_bound is not None and not rule.driver_bound.matches(bound := driver(subject.record)):
                yield f"the driver {bound or 'none'} is bound, expected {rule.driver_bound}"
            for name, patterns in rule.attrs.items():
                value = subject.record.attributes.get(name)
                if not patterns.matches(value or "", hex_id=is_hex_id("attr", name)):
                    yield f"the attribute {name} is {_quoted(value)}, expected {patterns}"
            for path, patterns in rule.files.items():
                where = parse(path).render_path(subject.lookup(self._host))
                line = self._host.first_line(where) if where else None
                if line is None or not patterns.matches(line):
                    yield f"{where or path} says {_quoted(line)}, expected {patterns}"


def _rules(config: Config) -> list[tuple[Resource, Predicate, bool]]:
    return [(resource, any_of(resource.match), needs_database(resource)) for resource in config.resources]


def _as_held(former: _Seen, seen: _Seen | None, device_id: str) -> _Seen:
    """The device as its holder knows it; by the configuration of now where that says the same."""
    if seen and seen.resource.name == former.resource.name and device_id in seen.ids:
        former = seen
    return replace(former, candidate=Candidate(former.resource.name, former.record.syspath, (device_id,)))


def _without(away: Mapping[str, Config], found: Mapping[str, _Seen]) -> dict[str, Config]:
    here = {seen.candidate.values[0] for seen in found.values()}
    return {device_id: config for device_id, config in away.items() if device_id not in here}


def _quoted(value: str | None) -> str:
    return "nothing" if value is None else f'"{value[:64]}"'


def _root(part: _Seen, there: Mapping[str, tuple[_Seen, str]], former: bool) -> str:
    """The name of the whole device behind a part: as the configuration says, else the physical function of a VF.

    By place, not by resource: a held device is listed as what an earlier configuration called it (``former``: there are
    such devices), and one is a part of the other if the configuration of either says so.
    """
    record, declared = part.record, part.resource.partition is not None
    if declared or former:
        for place in chain((node.syspath for node in record.ancestors()), record.links.values()):
            whole, name = there.get(place, (None, ""))
            if whole and (_is_part(part.config, part, whole) or _is_part(whole.config, part, whole)):
                return name
    target = next((node.links["physfn"] for node in record.lineage() if "physfn" in node.links), "")
    if declared or not target:
        return ""
    return there[target][1] if target in there else name_of(os.path.basename(target))


def _is_part(config: Config, part: _Seen, whole: _Seen) -> bool:
    lower, upper = _resource(config, part), _resource(config, whole)
    if lower is None or upper is None or lower.partition is None or lower.partition.of != upper.name:
        return False
    if link := partition_link(lower):
        return part.record.links.get(link) == whole.record.syspath
    return part.record.syspath.startswith(f"{whole.record.syspath}/")


def _resource(config: Config, seen: _Seen) -> Resource | None:
    """What a configuration takes the device for, which another one may have named."""
    return seen.resource if seen.config is config else resource_of(config, seen.record)


class _World:
    """The records by place: what is below, beside and above a device, and in its IOMMU group."""

    def __init__(self, records: Mapping[str, UdevDevice]) -> None:
        self._records = records
        self._sorted: list[str] | None = None
        self._groups: dict[str, list[UdevDevice]] | None = None

    def companions(self, resource: Resource, record: UdevDevice) -> Iterator[UdevDevice]:
        """The companions of a device, in the order of syspaths."""
        group = resource.group
        if group is None:
            return
        test = any_of(group.match) if group.match else None
        for other in self._scope(group.scope, record):
            if other.syspath != record.syspath and (holds(test, other) if test else other.devnode):
                yield other

    def _scope(self, scope: str, record: UdevDevice) -> Iterator[UdevDevice]:
        if scope == "children":
            yield from self._below(record.syspath)
        elif scope == "siblings" and record.above is not None:
            yield from self._below(record.above.syspath)
        elif scope == "parent":
            yield from record.ancestors()
        elif scope == "iommuGroup" and (group := topology.iommu_group(record)):
            yield from self._iommu_groups().get(group, ())

    def _below(self, syspath: str) -> Iterator[UdevDevice]:
        if self._sorted is None:
            self._sorted = sorted(self._records)
        prefix = syspath + "/"
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[index].startswith(prefix):
                return
            yield self._records[self._sorted[index]]

    def _iommu_groups(self) -> Mapping[str, list[UdevDevice]]:
        if self._groups is None:
            self._groups = {}
            for record in self._records.values():
                if record.links.get("iommu_group"):
                    self._groups.setdefault(topology.iommu_group(record), []).append(record)
        return self._groups
