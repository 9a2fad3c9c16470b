"""Build devices from udev devices: match them, name them, add nodes, attributes and health.

Reads only what udev said, what NVIDIA's driver said and, through :class:`~drabridge.inventory.host.Host`, the nodes and
files that the configuration names. A device that several resources match belongs to the first of them in the file: one
piece of hardware is never counted twice.

A held device stays what it was, even if a changed configuration names it otherwise or no longer matches it. Until its
release it keeps the resource, the id and the nodes of the configuration that named it. It is recognised by its
identity under that configuration, not by its place: another stick in the same port is another device, and the same
stick in another port is the same device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from itertools import chain
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.health_rules import HealthRule
from drabridge.config.matcher import any_of
from drabridge.config.predicate import Predicate
from drabridge.config.schema import Config, Resource
from drabridge.config.template import Lookup
from drabridge.inventory import health_rules, mig, topology, vfio
from drabridge.inventory.attribute_values import LastKnown
from drabridge.inventory.cdi_names import NO_NAMES, CdiNames
from drabridge.inventory.container_edits import (
    Resolved,
    choose_cdi,
    render_env,
    resolve_fallback,
    resolve_mounts,
    resolve_nodes,
)
from drabridge.inventory.devices import Collision, Device, NvidiaFiles, Presence
from drabridge.inventory.host import Host
from drabridge.inventory.identity import Candidate, Key, assign, id_of, name_of
from drabridge.inventory.match import holds, matches
from drabridge.inventory.nvidia import NvidiaFacts, uuid_hint
from drabridge.inventory.overlap import DeviceTree, FormerDevices, handed_out, resource_of, separate
from drabridge.inventory.template_values import MatchedDevice, serial_of
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import MIG, distinct_configs, needs_database, partition_link, wholes_of_mig

IN_INSTANCES = "MIG mode is on: it is offered in instances, by the resource that is a partition of this one"
NO_INSTANCES = "MIG mode is on, and it has no instance: make some, or switch MIG mode off"

RunChecks = Callable[[Sequence[HealthRule], Lookup], tuple[str, ...]]


class BuildResult(Struct, frozen=True):
    """``collisions``: devices that cannot be told apart; ``waiting``: syspaths that udevd still works on.

    ``away``: why present hardware is not among the devices, by resource and syspath.
    """

    devices: tuple[Device, ...]
    collisions: tuple[Collision, ...]
    waiting: tuple[str, ...]
    away: Mapping[Key, str] = MappingProxyType({})

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for people about hardware that is not offered as a device."""
        away = [(*key, why) for key, why in sorted(self.away.items()) if why == NO_INSTANCES]
        return tuple(f"{resource}: {os.path.basename(syspath)}: {why}" for resource, syspath, why in away)


class _Match(Struct, frozen=True):
    """A udev device with the resource that matches it, and what follows from these two alone."""

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
    """Build the devices of one configuration. Unchanged devices are not built again.

    ``named_by``: device id -> the configuration that named the device; it is kept up to date. ``file``: the
    configuration as the file has it, if its resource names have templates. ``run_checks`` returns the last failures
    that programs of health rules reported for a device. ``last``: what was last published of each device.
    """

    def __init__(
        self,
        config: Config,
        host: Host,
        named_by: Mapping[str, Config] | None = None,
        file: Config | None = None,
        run_checks: RunChecks = lambda rules, lookup: (),
        last: LastKnown | None = None,
    ) -> None:
        self.config = config
        self.last = last or LastKnown({})
        self.named_by = dict(named_by or {})
        self.former_names: frozenset[str] = frozenset()  # names of devices that an earlier configuration named
        self.driver: NvidiaFiles | None = None  # None until the files of NVIDIA's driver have been looked for
        self._host = host
        self._vfio = vfio.wants_twins((config, *self.named_by.values()))
        self._divisible = wholes_of_mig(file or config)
        self._run_checks = run_checks
        self._rules = {id(each): _rules(each) for each in distinct_configs((config, *self.named_by.values()))}
        # id() of the configuration -> syspath -> what a match was made of, and the match
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
        cdi: CdiNames = NO_NAMES,
    ) -> BuildResult:
        """Build all devices. ``ready``: whether udevd has finished with a device.

        ``known_ids``: ids of earlier rounds, by resource and syspath. ``held``: whether a device, by name, has a
        holder. ``fresh``: look at every node again. ``cdi``: the CDI devices of other programs.
        """
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
        ids, collisions = assign((match.candidate for match in finished), known_ids, held)
        former_ids = {match.candidate.key: match.candidate.values[0] for match in former.values()}
        last_ids = {**known_ids, **former_ids, **ids}
        named = {
            match.udev.syspath: _Named(match, name_of(last_ids[match.candidate.key]))
            for match in (*finished, *waiting)  # waiting and colliding devices keep their last names
            if match.candidate.key in last_ids
        }
        tree = DeviceTree(udev_devices)
        functions = cache(lambda: _by_function(named))  # computed only if there are virtual functions
        in_group = vfio.by_group(_parts(each.match, tree) for each in named.values()) if self._vfio else {}
        former_devices = FormerDevices()
        for match in (each.match for each in named.values()):
            if match.config is not self.config:
                former_devices.add(match.config, _parts(match, tree))
        named_by = {device_id: config for device_id, config in self.named_by.items() if held(name_of(device_id))}
        built, sources, devices = {}, {}, []
        for match in finished:
            key = match.candidate.key
            if (device_id := ids.get(key)) is None:
                continue
            name = name_of(device_id)
            source = MatchedDevice(
                match.udev,
                tuple(tree.companions(match.resource, match.udev)),
                match.nvidia,
                {"id": device_id, "name": name, "resource": match.resource.name},
                nvidia.failures.get(match.nvidia.get("uuid", ""), ()),
            )
            if any(rule.exec_check for rule in match.resource.health):
                said = self._run_checks(match.resource.health, source.lookup(self._host))
                source = replace(source, exec_failures=said)
            root = _root(match, named, functions, bool(former_devices))
            parts = handed_out(match.resource, match.udev, source.companions)
            also_at = {part.syspath for part in parts[1:]}
            if match.config is self.config:
                also_at |= former_devices.same_as(parts)
            if match.resource.vfio is not None:
                also_at |= vfio.places_beside(match.udev, in_group)
            chosen = choose_cdi(match.resource.cdi_devices, source, self._host, cdi)
            made_of = (
                *(match.udev, *source.companions, source.nvidia, source.nvml_failures),
                *(source.exec_failures, device_id, root, frozenset(also_at), chosen, self.driver),
            )
            device = self._unchanged(key, made_of) if not fresh else None
            if device is None:
                device = self._device(match, source, device_id, root, also_at, chosen)
            if match.udev.syspath in former or device_id not in named_by:  # otherwise a device that is away has this id
                named_by[device_id] = match.config
            built[key] = (made_of, device)
            sources[name] = (match.resource, source)
            devices.append(device)
        self._built, self._sources, self.named_by = built, sources, named_by
        self.last.keep({*known_ids.values(), *named_by})
        devices = separate({name for name, (resource, _) in sources.items() if resource.partition}, devices)
        devices = self._with_uniformity(devices)
        with_instances = {one.gpu for one in nvidia.mig}
        divided = {
            match.candidate.key: IN_INSTANCES if match.udev.sysname in with_instances else NO_INSTANCES
            for match in finished
            if self._is_divided(match)
        }
        devices = [device for device in devices if (device.resource, device.syspath) not in divided]
        self.former_names = frozenset(device.name for device in devices if device.former)
        return BuildResult(tuple(devices), collisions, tuple(match.udev.syspath for match in waiting), divided)

    def source(self, name: str) -> tuple[Resource, MatchedDevice] | None:
        """Return the resource and the match that this device was last built from; None if it is not there."""
        return self._sources.get(name)

    # --- matching -----------------------------------------------------------------------------------------------------

    def _match(
        self, config: Config, udev_devices: Mapping[str, UdevDevice], nvidia: NvidiaFacts, fresh: bool
    ) -> dict[str, _Match]:
        """Return the udev devices that a resource matches, by syspath; unchanged ones are not matched again."""
        before, matches = self._matches.get(id(config), {}), {}
        for syspath, device in udev_devices.items():
            known = before.get(syspath)
            same = known is not None and (known[0] is device or known[0] == device)
            if known is None or not same or (known[2] and (fresh or known[1] is not nvidia)):
                known = (device, nvidia, self._match_one(config, device, nvidia))
            matches[syspath] = known
        self._matches[id(config)] = matches
        return {syspath: match for syspath, (_, _, match) in matches.items() if match is not None}

    def _match_one(self, config: Config, device: UdevDevice, nvidia: NvidiaFacts) -> _Match | None:
        twin = vfio.is_twin(device)
        for resource, rule, database in self._rules[id(config)]:
            if (resource.vfio is not None) is twin and holds(rule, device):
                gpu = mig.fields_of(nvidia, device)
                values = MatchedDevice(device, nvidia=gpu).lookup(self._host)
                ids = tuple(template.render(values) or "" for template in resource.identity)
                hint = mig.identity_hint(device) or uuid_hint(gpu)
                place = topology.place_template(device)
                place = "" if place in map(str, resource.identity) else place
                candidate = Candidate(resource.name, vfio.place_of(device), ids, hint, place)
                return _Match(device, config, resource, database, gpu, candidate)
        return None

    def _is_divided(self, match: _Match) -> bool:
        """Whether the match is a GPU in MIG mode whose instances another resource offers."""
        return match.resource.name in self._divisible and mig.is_in_instances(match.nvidia)

    def _former_matches(
        self,
        udev_devices: Mapping[str, UdevDevice],
        matches: Mapping[str, _Match],
        nvidia: NvidiaFacts,
        known_ids: Mapping[Key, str],
        held: Callable[[str], bool],
        fresh: bool,
    ) -> tuple[dict[str, _Match], dict[str, Config]]:
        """Return the held devices that an earlier configuration named: those found by syspath, and the others by id.

        Each is looked for at its last place, then everywhere. If several devices may be the held one, they collide.
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

    def _with_uniformity(self, devices: list[Device]) -> list[Device]:
        """Return the devices; if a resource must be uniform (``uniform``) and is not, all of its devices are faulty."""
        found: dict[str, dict[str, str]] = {}  # resource -> device -> value
        for device in devices:
            resource, source = self._sources[device.name]
            if resource.uniform is not None and not device.former:
                value = source.lookup(self._host)(resource.uniform) or "nothing"
                found.setdefault(resource.name, {})[device.name] = value
        faults: dict[str, str] = {}
        for values in found.values():
            if len(different := sorted(set(values.values()))) > 1:
                why = f"its resource must be uniform, and its devices have {', '.join(different)}"
                faults |= dict.fromkeys(values, why)
        if not faults:
            return devices
        return [_with_fault(device, faults[device.name]) if device.name in faults else device for device in devices]

    # --- one device ---------------------------------------------------------------------------------------------------

    def _unchanged(self, key: Key, made_of: tuple[object, ...]) -> Device | None:
        """Return the last round's device if nothing that it is made of has changed; None for a faulty one."""
        known = self._built.get(key)
        if known is None or known[0] != made_of or known[1].presence is not Presence.PRESENT:
            return None
        return known[1]

    def _device(
        self,
        match: _Match,
        source: MatchedDevice,
        device_id: str,
        root: str,
        also_at: set[str],
        cdi: Resolved[tuple[str, ...]],
    ) -> Device:
        resource, udev, values = match.resource, match.udev, source.lookup(self._host)
        counts = resource.replicas
        published = self.last.of(device_id, resource, values)
        nodes = resolve_nodes(resource.nodes, source, self._host)
        mounts = resolve_mounts(resource.mounts, source, self._host)
        instead = resolve_fallback(resource.cdi_fallback, source, self._host, self.driver)
        falls_back = bool(cdi.missing) and instead.found is not None
        missing_cdi = cdi.missing
        if falls_back:
            missing_cdi = cdi.missing + instead.missing if instead.missing else ()
        failures = health_rules.failures(
            resource.health,
            source,
            self._host,
            missing_nodes=nodes.missing,
            missing_mounts=mounts.missing,
            missing_cdi=missing_cdi,
        )
        device = Device(
            name=name_of(device_id),
            id=device_id,
            resource=resource.name,
            syspath=vfio.place_of(udev),
            nodes=nodes.found,
            env=MappingProxyType(render_env(resource.env, values)),
            mounts=mounts.found,
            cdi_devices=() if falls_back else cdi.found,
            fallback=instead.found,
            cdi_missing="; ".join(cdi.missing) if falls_back else "",
            numa_nodes=topology.numa_nodes(udev) if resource.numa else (),
            near_numa_nodes=topology.near_numa_nodes(udev, self._host.first_line) if resource.numa else (),
            root=root,
            also_at=tuple(sorted(also_at | nodes.places | instead.places | cdi.places)),
            standard=MappingProxyType(topology.standard_attributes(udev)),
            attributes=MappingProxyType(dict(published.attributes)),
            capacity=MappingProxyType(dict(published.capacity)),
            replicas=next((one.count for one in counts.other_counts if matches(udev, one.match)), counts.count),
            serial=serial_of(udev) if resource.evict_holders is not None else "",
            presence=Presence.FAULTY if failures else Presence.PRESENT,
            reason="; ".join(failures),
            fault=health_rules.fault(resource.health, source),
            former=match.config is not self.config,
        )
        return device if resource.vfio is None else vfio.as_handed_out(device, resource, udev)


def _rules(config: Config) -> list[tuple[Resource, Predicate, bool]]:
    return [(resource, any_of(resource.match), needs_database(resource)) for resource in config.resources]


def _with_fault(device: Device, why: str) -> Device:
    return replace(device, presence=Presence.FAULTY, reason="; ".join(filter(None, (device.reason, why))))


def _as_held(former: _Match, match: _Match | None, device_id: str) -> _Match:
    """Return the match under the id that its holder knows, by the present configuration if that gives the same id."""
    if match and match.resource.name == former.resource.name and device_id in match.ids:
        former = match
    return replace(former, candidate=replace(former.candidate, values=(device_id,), hint="", place=""))


def _without(away: Mapping[str, Config], found: Mapping[str, _Match]) -> dict[str, Config]:
    here = {match.candidate.values[0] for match in found.values()}
    return {device_id: config for device_id, config in away.items() if device_id not in here}


# --- parts and wholes -------------------------------------------------------------------------------------------------


def _parts(match: _Match, tree: DeviceTree) -> tuple[UdevDevice, ...]:
    """Return what a device hands out: itself, then the companions whose nodes it brings."""
    return handed_out(match.resource, match.udev, tree.companions(match.resource, match.udev))


def _root(
    part: _Match, named: Mapping[str, _Named], functions: Callable[[], Mapping[str, str]], any_former: bool
) -> str:
    """Return the name of the whole device of a part; "" if it is no part.

    The configuration may name the whole (``partition``). If it does not, the whole is the GPU of a MIG instance, the
    physical function of a VF, or the device below that function (a GPU is matched by its card).

    It is found by place, not by resource: a held device may have the resource of an earlier configuration
    (``any_former``: there are such devices). One device is a part of the other if the configuration of either says so.
    """
    udev, declared = part.udev, part.resource.partition is not None
    if declared or any_former:
        for place in chain((node.syspath for node in udev.ancestors()), udev.links.values()):
            whole = named.get(place)
            if whole and any(_is_part(config, part, whole.match) for config in (part.config, whole.match.config)):
                return whole.name
    if udev.subsystem == MIG and udev.above is not None:  # whether or not the configuration declares a whole
        target = udev.above.syspath
    else:
        target = next((node.links["physfn"] for node in udev.lineage() if "physfn" in node.links and not declared), "")
    if not target:
        return ""
    return named[target].name if target in named else functions().get(target) or name_of(os.path.basename(target))


def _is_part(config: Config, part: _Match, whole: _Match) -> bool:
    lower, upper = _resource(config, part), _resource(config, whole)
    if lower is None or upper is None or lower.partition is None or lower.partition.of != upper.name:
        return False
    if link := partition_link(lower):
        return part.udev.links.get(link) == whole.udev.syspath
    return any(node.syspath == whole.udev.syspath for node in part.udev.ancestors())


def _resource(config: Config, match: _Match) -> Resource | None:
    """Return the resource that this configuration gives the device, which another configuration may have named."""
    return match.resource if match.config is config else resource_of(config, match.udev)


def _by_function(named: Mapping[str, _Named]) -> dict[str, str]:
    """Return PCI function -> name of the device below it, the first of several by place."""
    found: dict[str, str] = {}
    for place in sorted(named):
        udev = named[place].match.udev
        if udev.subsystem != MIG and (function := topology.pci_function(udev)):
            found.setdefault(function.syspath, named[place].name)
    return found
