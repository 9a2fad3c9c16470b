"""Plan everything that must be done to prepare a claim, before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.claims import ClaimConfig, Profile
from drabridge.config.container import Hook
from drabridge.config.fabric import WORD, FabricDevice, fabric_resource, is_fabric_pool
from drabridge.config.schema import Config
from drabridge.config.template import Lookup, Template
from drabridge.containers.cdi_spec import FALLBACK, CdiDevice, ContainerEdits, claim_device_name, entries_of
from drabridge.containers.together import joined_env, one_path_for_two, placed
from drabridge.dra.allocation import AllocationResult, ClaimAllocation
from drabridge.dra.metadata import DeviceFacts
from drabridge.dra.params import Choice, resolve
from drabridge.dra.records import PreparedDevice
from drabridge.errors import ConfigError, HostError, PeerError
from drabridge.inventory.container_edits import render_env, render_mount
from drabridge.inventory.devices import Device, Presence, Snapshot
from drabridge.inventory.fabric import fabric_device
from drabridge.offers.attributes import describe

LookupOf = Callable[[Device], Lookup]
_NO_RULES = ClaimConfig()


class NotReadyError(HostError):
    """The device is not there yet: udev may be late, or the device is being reset. A short wait may help."""


class DevicePlan(Struct, frozen=True):
    """What must be done to prepare one device of a claim."""

    prepared: PreparedDevice  # what is recorded: what the claim chose, without CDI ids
    device: Device  # the inventory's present record
    cdi: tuple[CdiDevice, ...]  # first what the claim always gets, then the device's fallback
    hook: Hook | None = None  # runs before the container gets the device

    @property
    def given(self) -> ContainerEdits:
        """What a container gets with the device now."""
        own, *fallback = (entry.edits for entry in self.cdi)
        return fallback[0] | own if self.device.cdi_missing and fallback else own


class Planner:
    """Plans the devices of claims.

    ``config`` may be replaced by a later one with the same driver and pool.
    """

    def __init__(self, config: Config, pool: str, lookup: LookupOf) -> None:
        """``lookup`` gives the value of template fields for a device."""
        self.config = config
        self.pool = pool
        self._lookup = lookup

    def plan(self, allocation: ClaimAllocation, snapshot: Snapshot) -> tuple[DevicePlan, ...]:
        """Plan a claim. Does nothing else. Raises NotReadyError, PeerError or ConfigError."""
        devices = {(one.pool, one.device): self._device(one, snapshot) for one in allocation.results}

        def rules_of(result: AllocationResult) -> ClaimConfig:
            return self._rules(devices[result.pool, result.device])

        def type_of(result: AllocationResult) -> str:
            return str(describe(devices[result.pool, result.device])[0].get("type", {}).get("string", ""))

        choices = resolve(allocation.config, allocation.results, rules_of, self.config.driver, type_of)
        prepared = [
            self._prepared(result, choice, rules_of(result))
            for result, choice in zip(allocation.results, choices, strict=True)
        ]
        plans = tuple(
            self._planned(allocation.claim.uid, one, devices[one.pool, one.device], prepared) for one in prepared
        )
        for request, several in _by_request(plans).items():
            if problem := one_path_for_two([(plan.device.name, plan.given) for plan in several]):
                raise ConfigError(f"request {request}: {problem}")
        return plans

    def again(
        self, uid: str, prepared: PreparedDevice, snapshot: Snapshot, all_of_claim: Sequence[PreparedDevice]
    ) -> DevicePlan:
        """Plan a recorded device as it is now: its nodes may have other numbers.

        Raises NotReadyError, ConfigError, HostError.
        """
        device = self._find(prepared.pool, prepared.device, snapshot)
        if device is None and is_fabric_pool(prepared.pool):
            # Not NotReadyError: its container may run on, and its file stays as it is.
            raise HostError(_not_listed(prepared.pool, prepared.device), hint=_LIST_IT)
        if device is None:
            raise NotReadyError(f"device {prepared.device}, which this claim was given, is gone", hint=_GONE)
        return self._planned(uid, prepared, device, all_of_claim)

    def _device(self, result: AllocationResult, snapshot: Snapshot) -> Device:
        device = self._find(result.pool, result.device, snapshot)
        if device is None and is_fabric_pool(result.pool):  # the ConfigMap may be on its way to this node
            raise NotReadyError(_not_listed(result.pool, result.device), hint=_LIST_IT)
        if result.pool != self.pool and not is_fabric_pool(result.pool):
            raise PeerError(f"device {result.device} is in the pool {result.pool!r}; this node's pool is {self.pool!r}")
        if device is None:
            raise NotReadyError(f"there is no device {result.device} on this node", hint=_GONE)
        if device.presence is not Presence.PRESENT:
            raise NotReadyError(
                f"device {device.name} is {device.presence}: {device.reason or 'no reason is known'}", hint=_GONE
            )
        return device

    def _fabric_entry(self, name: str) -> FabricDevice | None:
        return next((entry for entry in self.config.fabric if entry.name == name), None)

    def _find(self, pool: str, name: str, snapshot: Snapshot) -> Device | None:
        if not is_fabric_pool(pool):
            return snapshot.by_name().get(name)
        entry, driver = self._fabric_entry(name), self.config.driver
        return fabric_device(entry, driver) if entry is not None and entry.pool_name(driver) == pool else None

    def _rules(self, device: Device) -> ClaimConfig:
        if self.config.fabric and device.resource == fabric_resource(self.config.driver):
            entry = self._fabric_entry(device.name)
            return entry.claim_config if entry is not None else _NO_RULES
        try:
            return self.config.resource(device.resource).claim_config
        except KeyError:
            return _NO_RULES

    def _prepared(self, result: AllocationResult, choice: Choice, rules: ClaimConfig) -> PreparedDevice:
        profile = rules.profiles.get(choice.profile)
        return PreparedDevice(
            result.request,
            result.pool,
            result.device,
            result.share_id,
            result.admin,
            choice.profile,
            choice.env,
            unprepare=None if profile is None or result.admin else _encoded(profile.unprepare),
            consumed=result.consumed,
        )

    def _planned(
        self, uid: str, prepared: PreparedDevice, device: Device, all_of_claim: Sequence[PreparedDevice]
    ) -> DevicePlan:
        profile = self._rules(device).profiles.get(prepared.profile)  # the profile may be gone from the file
        edits = ContainerEdits.of(device)
        if profile is not None:
            try:
                edits = _with_profile(edits, profile, prepared.profile, self._lookup(device))
            except ConfigError as error:
                if device.presence is Presence.PRESENT:
                    raise
                raise NotReadyError(
                    f"device {device.name} is {device.presence}: {error.message}", hint=_GONE
                ) from error
        # A fabric device gets ".fabric" at the end. No node's device has a dot in its name, so the end of a CDI name
        # tells whether it is a fabric device's, a node's or a fallback's.
        shown = f"{device.name}.{WORD}" if is_fabric_pool(prepared.pool) else device.name
        name = claim_device_name(uid, prepared.base_request, shown, prepared.share_id, admin=prepared.admin)
        # Admin access looks at a device that somebody else may be using: it must not reset it.
        hook = None if profile is None or prepared.admin else profile.prepare
        request = prepared.base_request
        # Devices that are away are counted, too, so that a restart does not renumber the others.
        places = dict.fromkeys((one.pool, one.device) for one in all_of_claim if one.base_request == request)
        index = [*places].index((prepared.pool, prepared.device))
        own, *rest = (replace(one, edits=placed(one.edits, index, request)) for one in entries_of(name, device, edits))
        own = replace(own, edits=own.edits | ContainerEdits(env=prepared.env))  # the claim's own text is no template
        return DevicePlan(prepared, device, (own, *rest), hook)


def _encoded(hook: Hook | None) -> dict[str, Any] | None:
    """Encode a hook for a claim's record: clean-up runs as it was configured at prepare."""
    return None if hook is None else {"command": list(hook.command), "timeoutSeconds": hook.timeout_seconds}


def _not_listed(pool: str, device: str) -> str:
    return f"device {device} of the pool {pool} is not in this node's configuration (fabric)"


_LIST_IT = "Give all nodes and the coordinator the same configuration; kubelet tries again"
_GONE = "Plug it in or repair it; delete the pod if another device will do"


def _with_profile(edits: ContainerEdits, profile: Profile, name: str, lookup: Lookup) -> ContainerEdits:
    nodes = edits.nodes
    if profile.permissions is not None:
        nodes = tuple(replace(node, permissions=profile.permissions) for node in nodes)

    mounts = []
    for rule in profile.mounts:
        mount = render_mount(rule, lookup)
        if isinstance(mount, Template):
            if not (rule.optional and mount is rule.host_path):
                raise _unfilled(mount, name)
        elif not rule.optional or Path(mount.host_path).exists():
            mounts.append(mount)
    env = dict(render_env(profile.env, lookup))
    if without := next((template for template in profile.env.values() if template.render(lookup) is None), None):
        raise _unfilled(without, name)
    return replace(edits, nodes=nodes) | ContainerEdits(env=env, mounts=tuple(mounts))


def _unfilled(template: Template, profile: str) -> ConfigError:
    return ConfigError(
        f"profile {profile}: {template} has no value for this device",
        hint="Correct the profile in the node's configuration",
    )


def cdi_devices(plans: Iterable[DevicePlan]) -> list[CdiDevice]:
    """Return the entries of the claim's CDI file; each name once.

    A container gets all devices of a request, in an order that we do not choose, so each device sets the variables of
    all. A device that is away has no entry: another device may have its number by now, and a container that starts
    meanwhile must not get that device.
    """
    here = [plan for plan in plans if plan.device.presence is not Presence.GONE]
    entries = {entry.name: entry for plan in here for entry in plan.cdi}
    for several in _by_request(here).values():
        for fallback in (False, True):
            names = dict.fromkeys(e.name for plan in several for e in plan.cdi if e.name.endswith(FALLBACK) is fallback)
            env = joined_env(entries[name].edits.env for name in names)
            for name in names:
                if entries[name].edits:
                    entries[name] = replace(entries[name], edits=replace(entries[name].edits, env=env))
    return list(entries.values())


def _by_request(plans: Iterable[DevicePlan]) -> dict[str, list[DevicePlan]]:
    found: dict[str, list[DevicePlan]] = {}
    for plan in plans:
        found.setdefault(plan.prepared.base_request, []).append(plan)
    return found


def metadata_facts(plans: Iterable[DevicePlan]) -> list[DeviceFacts]:
    """Return what a container is told about its devices."""
    return [
        DeviceFacts(plan.prepared.request, plan.prepared.pool, plan.device.name, describe(plan.device)[0])
        for plan in plans
    ]


def device_lookup(device: Device) -> Lookup:
    """Return a lookup of the template fields that the inventory's device answers, for a device that is away."""
    node = device.nodes[0] if device.nodes else None
    plain: Mapping[str, str] = {
        "id": device.id,
        "name": device.name,
        "resource": device.resource,
        "sysname": Path(device.syspath).name,
        "devnode": node.path if node else "",
        "devname": Path(node.path).name if node else "",
        "major": str(node.major) if node else "",
        "minor": str(node.minor) if node else "",
        "pci": device.pci_bus_id,
        "pcie_root": device.pcie_root,
        "numa": str(device.numa_nodes[0]) if len(device.numa_nodes) == 1 else "",
        "nvidia.uuid": str(device.attributes.get("uuid", "")),
        "nvidia.model": str(device.attributes.get("productName", "")),
    }

    return lambda field: plain.get(field.source) or None
