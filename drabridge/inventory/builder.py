"""Make devices out of udev devices: match them, name them, add nodes, attributes and health.

Reads only what udev said, what NVIDIA's driver said and, through :class:`~drabridge.inventory.host.Host`, the nodes and
files that the configuration names. A device that several resources match belongs to the first of them in the file: one
piece of hardware is never counted twice.

A held device stays what it was when a changed configuration would name it otherwise, or not at all. Until it is
released it has the resource, the id and the nodes of the configuration that named it. That configuration's identity
tells that it is the same hardware, not its place: another stick in the same port is another device, and the same stick
in another port is the same device.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.health_rules import HealthRule
from drabridge.config.matcher import any_of
from drabridge.config.predicate import Predicate
from drabridge.config.schema import Config, Resource
from drabridge.config.template import Lookup
from drabridge.inventory import health_rules, topology
from drabridge.inventory.attribute_values import attributes_of, capacity_of
from drabridge.inventory.container_edits import render_env, resolve_mounts, resolve_nodes
from drabridge.inventory.host import Host
from drabridge.inventory.identity import Candidate, DeviceIdentity, Key, assign, id_of, name_of
from drabridge.inventory.match import holds
from drabridge.inventory.model import Collision, Device, Presence
from drabridge.inventory.nvidia import NvidiaFacts, uuid_hint
from drabridge.inventory.overlap import FormerDevices, handed_out, resource_of, separate
from drabridge.inventory.template_values import MatchedDevice
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import distinct_configs, needs_database, partition_link

RunChecks = Callable[[Sequence[HealthRule], Lookup], tuple[str, ...]]


class BuildResult(Struct, frozen=True):
    """The devices, those that cannot be told apart, and the syspaths of those that udevd has not finished with."""

    devices: tuple[Device, ...]
    collisions: tuple[Collision, ...]
    waiting: tuple[str, ...]


class _Match(Struct, frozen=True):
    """A udev device that a resource matches, and what follows from the two alone."""

    udev: UdevDevice
    config: Config
    resource: Resource
    needs_database: bool
    nvidia: Mapping[str, str]
    candidate: Candidate

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(map(id_of, self.candidate.values))


class _Named(Struct, frozen=True):
    """A match and the name that its device has now, or had last."""

    match: _Match
    name: str


class DeviceBuilder:
    """Build the devices of one configuration. What did not change since the last time is not made again.

    ``named_by``: device id -> the configuration that named the device; it is kept up to date. ``run_checks``: what the
    programs of health rules said last of a device.
    """

    def __init__(
        self,
        config: Config,
        host: Host,
        named_by: Mapping[str, Config] | None = None,
        run_checks: RunChecks = lambda rules, lookup: (),
    ) -> None:
        self.config = config
        self.named_by = dict(named_by or {})
        self.former_names: frozenset[str] = frozenset()  # that only an earlier configuration gives
        self._host = host
        self._run_checks = run_checks
        self._rules = {id(each): _rules(each) for each in distinct_configs((config, *self.named_by.values()))}
        # by configuration, by syspath: what a match was made of, and the match
        self._matches: dict[int, dict[str, tuple[UdevDevice, NvidiaFacts, _Match | None]]] = {}
        self._built: dict[Key, tuple[tuple[object, ...], Device]] = {}  # what a device was made of, and the device
        self._sources: dict[str, tuple[Resource, MatchedDevice]] = {}  # by device name

    def build(
        self,
        udev_devices: Mapping[str, UdevDevice],
        nvidia: NvidiaFacts,
        *,
        known_ids: Mapping[Key, str],
        held: Callable[[str], bool],
        ready: Callable[[UdevDevice], bool] = lambda device: True,
        fresh: bool = True,
    ) -> BuildResult:
        """All devices. ``ready``: udevd has finished with a device. ``fresh``: every node is looked at again."""
        matches = self._match(self.config, udev_devices, nvidia, fresh)
        former, away = self._former_matches(udev_devices, matches, nvidia, known_ids, held, fresh)
        unsure = any(
            needs_database(resource) for each in distinct_configs(away.values()) for resource in each.resources
        )
        finished: list[_Match] = []
        waiting: list[_Match] = []
        for match in (matches | former).values():
            waits = (match.needs_database or unsure) and not ready(match.udev)  # unsure: it may be one that is away
            (waiting if waits else finished).append(match)
        identities, collisions = assign((match.candidate for match in finished), known_ids, held)
        last_ids = {**known_ids, **{match.candidate.key: match.candidate.values[0] for match in former.values()}}
        named = {
            match.udev.syspath: _Named(match, identities[key].name if key in identities else name_of(last_ids[key]))
            for match in (*finished, *waiting)  # one that waits, or collides, has the name that it had last
            if (key := match.candidate.key) in identities or key in last_ids
        }
        tree = _Tree(udev_devices)
        former_devices = FormerDevices()
        for match in (each.match for each in named.values()):
            if match.config is not self.config:
                companions = tree.companions(match.resource, match.udev)
                former_devices.add(match.config, handed_out(match.resource, match.udev, companions))
        named_by = {device_id: config for device_id, config in self.named_by.items() if held(name_of(device_id))}
        built, sources, devices = {}, {}, []
        for match in finished:
            key = match.candidate.key
            if (identity := identities.get(key)) is None:
                continue
            source = MatchedDevice(
                match.udev,
                tuple(tree.companions(match.resource, match.udev)),
                match.nvidia,
                {"id": identity.id, "name": identity.name, "resource": match.resource.name},
                nvidia.failures.get(match.nvidia.get("uuid", ""), ()),
            )
            if any(rule.exec_check for rule in match.resource.health):
                said = self._run_checks(match.resource.health, source.lookup(self._host))
                source = replace(source, exec_failures=said)
            root = _root(match, named, bool(former_devices))
            parts = handed_out(match.resource, match.udev, source.companions)
            also_at = {part.syspath for part in parts[1:]}
            if match.config is self.config:
                also_at |= former_devices.same_as(parts)
            made_of = (
                *(match.udev, *source.companions, source.nvidia, source.nvml_failures),
                *(source.exec_failures, identity, root, frozenset(also_at)),
            )
            device = self._unchanged(key, made_of) if not fresh else None
            if device is None:
                device = self._device(match, source, identity, root, also_at)
            if match.udev.syspath in former or identity.id not in named_by:  # else one that is away has this id
                named_by[identity.id] = match.config
            built[key] = (made_of, device)
            sources[identity.name] = (match.resource, source)
            devices.append(device)
        self._built, self._sources, self.named_by = built, sources, named_by
        devices = separate({name for name, (resource, _) in sources.items() if resource.partition}, devices)
        self.former_names = frozenset(device.name for device in devices if device.former)
        return BuildResult(tuple(devices), collisions, tuple(match.udev.syspath for match in waiting))

    def source(self, name: str) -> tuple[Resource, MatchedDevice] | None:
        """What the device of that name was last made of; None when it is not there."""
        return self._sources.get(name)

    # --- matching -----------------------------------------------------------------------------------------------------

    def _match(
        self, config: Config, udev_devices: Mapping[str, UdevDevice], nvidia: NvidiaFacts, fresh: bool
    ) -> dict[str, _Match]:
        """Every udev device that a resource matches, by syspath; an unchanged one is not matched again."""
        before, matches = self._matches.get(id(config), {}), {}
        for syspath, device in udev_devices.items():
            known = before.get(syspath)
            if known is None or known[0] is not device or (known[2] and (fresh or known[1] is not nvidia)):
                known = (device, nvidia, self._match_one(config, device, nvidia))
            matches[syspath] = known
        self._matches[id(config)] = matches
        return {syspath: match for syspath, (_, _, match) in matches.items() if match is not None}

    def _match_one(self, config: Config, device: UdevDevice, nvidia: NvidiaFacts) -> _Match | None:
        for resource, rule, database in self._rules[id(config)]:
            if holds(rule, device):
                gpu = nvidia.of(topology.pci_bus_id(device)) if nvidia.gpus else {}
                values = MatchedDevice(device, nvidia=gpu).lookup(self._host)
                ids = tuple(template.render(values) or "" for template in resource.id)
                candidate = Candidate(resource.name, device.syspath, ids, uuid_hint(gpu))
                return _Match(device, config, resource, database, gpu, candidate)
        return None

    def _former_matches(
        self,
        udev_devices: Mapping[str, UdevDevice],
        matches: Mapping[str, _Match],
        nvidia: NvidiaFacts,
        known_ids: Mapping[Key, str],
        held: Callable[[str], bool],
        fresh: bool,
    ) -> tuple[dict[str, _Match], dict[str, Config]]:
        """The held devices that an earlier configuration named: those found here, by syspath; then those not found.

        Each is looked for where it was, then everywhere: several that may be it collide.
        """
        away = {i: config for i, config in self.named_by.items() if config is not self.config and held(name_of(i))}
        found: dict[str, _Match] = {}

        def look(path: str, former: _Match | None, ids: Collection[str]) -> None:
            if former and (device_id := next((i for i in former.ids if i in ids), None)):
                found[path] = _as_held(former, matches.get(path), device_id)

        for (_, path), device_id in known_ids.items():
            if device_id in away and path in udev_devices:
                look(path, self._match_one(away[device_id], udev_devices[path], nvidia), {device_id})
        away = _without(away, found)
        for config in distinct_configs(away.values()):
            ids = {device_id for device_id, other in away.items() if other is config}
            for path, former in self._match(config, udev_devices, nvidia, fresh).items():
                if path not in found:
                    look(path, former, ids)
        return found, _without(away, found)

    # --- one device ---------------------------------------------------------------------------------------------------

    def _unchanged(self, key: Key, made_of: tuple[object, ...]) -> Device | None:
        """The device of the last time, when nothing it is made of changed. A faulty one is always looked at again."""
        known = self._built.get(key)
        if known is None or known[0] != made_of or known[1].presence is not Presence.PRESENT:
            return None
        return known[1]

    def _device(
        self, match: _Match, source: MatchedDevice, identity: DeviceIdentity, root: str, also_at: set[str]
    ) -> Device:
        resource, udev, values = match.resource, match.udev, source.lookup(self._host)
        nodes = resolve_nodes(resource.nodes, source, self._host)
        mounts, missing_mounts = resolve_mounts(resource.mounts, source, self._host)
        failures = health_rules.failures(
            resource.health, source, self._host, missing_nodes=nodes.missing, missing_mounts=missing_mounts
        )
        return Device(
            name=identity.name,
            id=identity.id,
            resource=resource.name,
            syspath=udev.syspath,
            nodes=nodes.found,
            env=MappingProxyType(render_env(resource.env, values)),
            mounts=mounts,
            numa_nodes=topology.numa_nodes(udev),
            pci_bus_id=topology.pci_bus_id(udev),
            pcie_root=topology.pcie_root(udev),
            root=root,
            also_at=tuple(sorted(also_at | nodes.places)),
            attributes=MappingProxyType(attributes_of(resource, values)),
            capacity=MappingProxyType(capacity_of(resource, values)),
            replicas=resource.replicas.count,
            presence=Presence.FAULTY if failures else Presence.PRESENT,
            reason="; ".join(failures),
            fault=health_rules.fault(resource.health, source),
            former=match.config is not self.config,
        )


def _rules(config: Config) -> list[tuple[Resource, Predicate, bool]]:
    return [(resource, any_of(resource.match), needs_database(resource)) for resource in config.resources]


def _as_held(former: _Match, match: _Match | None, device_id: str) -> _Match:
    """The device as its holder knows it; by the present configuration where that names it alike."""
    if match and match.resource.name == former.resource.name and device_id in match.ids:
        former = match
    return replace(former, candidate=Candidate(former.resource.name, former.udev.syspath, (device_id,)))


def _without(away: Mapping[str, Config], found: Mapping[str, _Match]) -> dict[str, Config]:
    here = {match.candidate.values[0] for match in found.values()}
    return {device_id: config for device_id, config in away.items() if device_id not in here}


# --- parts and wholes -------------------------------------------------------------------------------------------------


def _root(part: _Match, named: Mapping[str, _Named], any_former: bool) -> str:
    """The name of the whole device behind a part: as the configuration says, else the physical function of a VF.

    Found by place, not by resource: a held device is listed as what an earlier configuration called it (``any_former``:
    there are such devices). One is a part of the other if the configuration of either says so.
    """
    udev, declared = part.udev, part.resource.partition is not None
    if declared or any_former:
        for place in chain((node.syspath for node in udev.ancestors()), udev.links.values()):
            whole = named.get(place)
            if whole and any(_is_part(config, part, whole.match) for config in (part.config, whole.match.config)):
                return whole.name
    target = next((node.links["physfn"] for node in udev.lineage() if "physfn" in node.links), "")
    if declared or not target:
        return ""
    return named[target].name if target in named else name_of(os.path.basename(target))


def _is_part(config: Config, part: _Match, whole: _Match) -> bool:
    lower, upper = _resource(config, part), _resource(config, whole)
    if lower is None or upper is None or lower.partition is None or lower.partition.of != upper.name:
        return False
    if link := partition_link(lower):
        return part.udev.links.get(link) == whole.udev.syspath
    return part.udev.syspath.startswith(f"{whole.udev.syspath}/")


def _resource(config: Config, match: _Match) -> Resource | None:
    """The resource that a configuration takes the device for, which another configuration may have named."""
    return match.resource if match.config is config else resource_of(config, match.udev)


class _Tree:
    """The udev devices by place: what is below, beside and above a device, and in its IOMMU group."""

    def __init__(self, udev_devices: Mapping[str, UdevDevice]) -> None:
        self._devices = udev_devices
        self._sorted: list[str] | None = None
        self._groups: dict[str, list[UdevDevice]] | None = None

    def companions(self, resource: Resource, device: UdevDevice) -> Iterator[UdevDevice]:
        """The companions of a device, in the order of syspaths."""
        group = resource.group
        if group is None:
            return
        rule = any_of(group.match) if group.match else None
        for other in self._in_scope(group.scope, device):
            if other.syspath != device.syspath and (holds(rule, other) if rule else other.devnode):
                yield other

    def _in_scope(self, scope: str, device: UdevDevice) -> Iterator[UdevDevice]:
        if scope == "children":
            yield from self._below(device.syspath)
        elif scope == "siblings" and device.above is not None:
            yield from self._below(device.above.syspath)
        elif scope == "parent":
            yield from device.ancestors()
        elif scope == "iommuGroup" and (group := topology.iommu_group(device)):
            yield from self._iommu_groups().get(group, ())

    def _below(self, syspath: str) -> Iterator[UdevDevice]:
        if self._sorted is None:
            self._sorted = sorted(self._devices)
        prefix = syspath + "/"
        for index in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            if not self._sorted[index].startswith(prefix):
                return
            yield self._devices[self._sorted[index]]

    def _iommu_groups(self) -> Mapping[str, list[UdevDevice]]:
        if self._groups is None:
            self._groups = {}
            for device in self._devices.values():
                if device.links.get("iommu_group"):
                    self._groups.setdefault(topology.iommu_group(device), []).append(device)
        return self._groups
