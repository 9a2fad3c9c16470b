"""The model of the configuration: the only source of the file, its documentation and its JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta

from drabridge.config.claims import ClaimConfig, DeviceClass, Partition, Sharing
from drabridge.config.container import CdiFallback, Group, MountRule, NodeRule, PreStart, duplicate_targets
from drabridge.config.declaration import Model
from drabridge.config.fabric import DEVICES_MAX, FabricDevice, fabric_problems, fabric_resource, is_fabric_pool
from drabridge.config.field_types import (
    AttributeName,
    CdiDeviceTemplate,
    ContainerTemplate,
    DriverName,
    FieldText,
    IdTemplate,
    PoolName,
    ResourceNames,
    VariableName,
)
from drabridge.config.health_rules import HealthRule
from drabridge.config.lanes import Lanes
from drabridge.config.matcher import Match, Matcher
from drabridge.config.node_labels import LabelRule, NodeLabels, label_rules
from drabridge.config.nvidia import Nvidia
from drabridge.config.problems import Problem
from drabridge.config.published import Attribute, Capacity, published_problems
from drabridge.config.template import parse as parse_template
from drabridge.config.together import variables_of_two
from drabridge.config.vfio import VFIO_ID, Vfio, problems_beside_vfio
from drabridge.system import safety_defaults as defaults

API_VERSION = "drabridge/v1alpha1"
KIND = "AgentConfig"
DRIVER_PLACEHOLDER = "drabridge.example.com"
REPLICAS_MAX = 50_000  # ids of one device; so many in a whole list reach kubelet's message limit of 4 MiB
RESOURCES_MAX = 256

DEFAULT_ID = tuple(
    map(parse_template, ("{property:ID_SERIAL_SHORT}", "{attr:serial}", "{property:ID_PATH}", "{sysname}"))
)
Inject = Literal["cdi", "devices"]
TaintEffect = Literal["None", "NoSchedule", "NoExecute"]


class OtherCount(Model, frozen=True):
    """Another number of ids for some of the devices."""

    match: Annotated[Match, Meta(min_length=1)]
    """Which of the resource's devices: `{sysname: "0000:3b:*"}`, `{attr: {device: "0x2330"}}`."""
    count: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    """How many ids each of them has."""


class Replicas(Model, frozen=True):
    """One device counted several times by kubelet (`<id>::<n>`): plain overcommitment, without isolation."""

    count: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)]
    """How many ids each device has. When it is lowered, a removed id stays with its pod until the pod ends; no other
    pod gets it."""
    policy: Literal["distributed", "packed"] = "distributed"
    """Which device the next pod gets: the least used, or the most used that still has room."""
    max_per_request: Annotated[int, Meta(ge=1, le=REPLICAS_MAX)] | None = None
    """A container that asks for more replicas than this is refused. 1: what NVIDIA calls failRequestsGreaterThanOne."""
    other_counts: tuple[OtherCount, ...] = ()
    """Other numbers for some of the devices, for example for GPUs of different sizes. The first whose `match` fits
    counts; the other devices have `count`."""

    @property
    def most(self) -> int:
        """The highest number that a device may have."""
        return max(self.count, *(other.count for other in self.other_counts), 1)


class LegacySettings(Model, frozen=True):
    """Defaults of the DevicePlugin side."""

    inject: Inject = "cdi"
    """How a device enters a container: `cdi`, or `devices` for runtimes without CDI (containerd < 1.7)."""


class NvmlTaints(Model, frozen=True):
    """The taint's effects for faults that NVML reports. A fault without an effect here has that of `faulty`."""

    lost: TaintEffect | None = None
    """For a GPU that is lost."""
    reset: TaintEffect | None = None
    """For a GPU that needs a reset, or whose node needs a reboot."""
    xid: TaintEffect | None = None
    """For an XID."""
    ecc: TaintEffect | None = None
    """For uncorrectable errors of the memory."""
    thermal: TaintEffect | None = None
    """For a GPU that is too hot."""

    def of(self, fault: str) -> TaintEffect | None:
        """Return the effect for a fault (`xid-79`); None if the effect `faulty` applies."""
        effects = {"lost": self.lost, "reset": self.reset, "xid": self.xid, "ecc": self.ecc, "thermal": self.thermal}
        return effects.get(fault.partition("-")[0])


class Taints(Model, frozen=True):
    """The taints in ResourceSlices of devices that cannot be used."""

    faulty: TaintEffect = "NoSchedule"
    """The effect for devices whose health rules fail. `NoExecute` evicts their pods."""
    nvml: NvmlTaints = NvmlTaints()
    """The effects for faults that NVML reports. The taint's value names the fault: `xid-79`, `lost`."""
    gone: TaintEffect = "NoSchedule"
    """The effect for unplugged devices that somebody still holds."""
    gone_after_seconds: Annotated[int, Meta(ge=0, le=3600)] = 15
    """How long a device may be away before it counts as unplugged: USB devices re-enumerate."""


class EvictHolders(Model, frozen=True):
    """Evicts pods whose device is gone, or was exchanged, while they had it: by the eviction API, as a drain does."""

    after_seconds: Annotated[int, Meta(ge=0, le=86400)] = 30
    """How long a device must be away before its pods are evicted: USB devices re-enumerate. Another device in its
    place, or with another serial under its name, counts at once."""


class Leases(Model, frozen=True):
    """How the devices of `lanes.shared` are leased to claims."""

    schedulers: Annotated[tuple[str, ...], Meta(min_length=1)] = ("default-scheduler",)
    """Schedulers that wait for binding conditions (KEP-5007) before they bind a pod. Others' pods get no lease."""
    kubelet_seconds: Annotated[float, Meta(ge=1, le=300)] = 30.0
    """How long kubelet may take to give up a device. After that the claim is denied, and another device is chosen."""
    max_devices: Annotated[int, Meta(ge=0, le=1000)] = 64
    """At most so many devices of this node are shared, all resources together; the others stay in the legacy lane."""
    coordinator: Annotated[str, Meta(pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")] = ""
    """Namespace where `drabridge coordinator` runs, which then names the claims that wait for a lease: for clusters of
    more than some hundred nodes. Empty, or while no coordinator works: this agent watches pods."""


class DraSettings(Model, frozen=True):
    """The Dynamic Resource Allocation side."""

    enabled: bool | Literal["auto"] = "auto"
    """`auto`: where there is an API server (the agent is in a pod, or has `--kubeconfig`) the Node's annotation is
    followed, and claims are served as soon as this file, the annotation or `drabridge lanes set` wants a device in a
    dra lane, or claims still have one. `true`: from the start. `false`: no API server is talked to."""
    pool: PoolName | None = None
    """Name of the node's pool in ResourceSlices; the node's name when left out. Changed only while no claim has a
    device."""
    metadata: bool = True
    """Whether device metadata files (KEP-5304) are mounted into the containers of claims."""
    claim_status: bool = True
    """Whether conditions are written to the status of claims."""
    leases: Leases = Leases()
    """Devices that are offered through both APIs."""
    taints: Taints = Taints()
    """Taints of devices that cannot be used."""


class Safety(Model, frozen=True):
    """How long the agent waits when it is in doubt, in seconds. If it is proven that a pod has let go of its device,
    it does not wait. Times below the defaults are for test clusters."""

    min_hold_seconds: Annotated[float, Meta(ge=0, le=3600)] = defaults.MIN_HOLD_SECONDS
    """After Allocate a device stays held for this long, unless the end of its pod is proven."""
    unconfirmed_seconds: Annotated[float, Meta(ge=0, le=3600)] = defaults.UNCONFIRMED_SECONDS
    """How long a device stays held after Allocate although kubelet never showed its pod, which was rejected."""
    absent_seconds: Annotated[float, Meta(ge=0, le=3600)] = defaults.ABSENT_SECONDS
    """How long a pod whose end is not proven must be missing, in every source of evidence, before its device is
    released."""
    settle_seconds: Annotated[float, Meta(ge=0, le=3600)] = defaults.SETTLE_SECONDS
    """For this long after a start of kubelet, no device is released unless its pod's end is proven. The same holds
    after a start of the agent beside which another agent may still run."""
    quiesce_seconds: Annotated[float, Meta(ge=0, le=3600)] = defaults.QUIESCE_SECONDS
    """How long a device that left the slices waits before pods may have it: a scheduler may still remember it."""
    tombstone_seconds: Annotated[float, Meta(ge=5, le=3600)] = defaults.TOMBSTONE_SECONDS
    """How long the id of a gone device stays listed, Unhealthy: dropping it too early crashes kubelet."""


class Resource(Model, frozen=True):
    """Devices of one kind: which they are, what they are called, and what a container gets with them."""

    name: ResourceNames
    """Extended resource name, as pods write it under `limits`. With `{attr:NAME}` in it: one resource for each value
    that this attribute of the devices has; what cannot be in a name becomes a dot."""
    match: Annotated[Match, Meta(min_length=1)]
    """Which udev devices; one matcher of the list is enough."""
    id: Annotated[tuple[IdTemplate, ...], Meta(min_length=1)] = DEFAULT_ID
    """The device's identity: the first template whose fields all have a value and that is unique among the resource's
    devices. Choose what survives reboots and replugging. With `vfio` it is `vfio-{pci}` when left out."""
    nodes: tuple[NodeRule, ...] = (NodeRule(source="devnode", optional=True),)
    """Device nodes for the container."""
    group: Group | None = None
    """Companion devices, for logical devices of several nodes."""
    env: Mapping[VariableName, ContainerTemplate] = {}
    """Environment variables for the container, which gets the values of several devices with commas. A name may have
    fields, `VF_{index}`, and must where another resource has it as well; what cannot be in a name becomes `_`."""
    mounts: tuple[MountRule, ...] = ()
    """Bind mounts for the container."""
    cdi_devices: tuple[CdiDeviceTemplate, ...] = ()
    """CDI devices of other programs' files, which the container gets as well: `nvidia.com/gpu={nvidia.uuid}`. The
    device is unhealthy while one of them is in no file that the runtime reads (`--cdi-spec-dirs`), unless there is
    `cdiFallback`."""
    cdi_fallback: CdiFallback | None = None
    """What the container gets in place of all `cdiDevices` while one of them is in no file."""
    attributes: Mapping[AttributeName, Attribute] = {}
    """Attributes for the selectors of claims."""
    capacity: Mapping[AttributeName, Capacity] = {}
    """Amounts for the selectors of claims, or to be consumed by them."""
    replicas: Replicas = Replicas(count=1)
    """Counting one device several times in the legacy lane."""
    lanes: Lanes = Lanes()
    """Through which API free devices are offered."""
    numa: bool = True
    """Whether kubelet, slices and metadata are told the NUMA node. `false` for devices that work as well from any CPU:
    kubelet's Topology Manager does not refuse a pod for them, nor keep it on their node."""
    inject: Inject | None = None
    """Instead of `legacy.inject`."""
    pre_start: PreStart | None = None
    """A hook before every container start in the legacy lane."""
    health: tuple[HealthRule, ...] = (HealthRule(node_exists=True),)
    """All must hold for the device to be healthy."""
    evict_holders: EvictHolders | None = None
    """Evict the pods that have a device which is unplugged or exchanged; with `{}` after half a minute. When left out
    an Event tells of it, and the pods stay. The agent needs the right to evict pods: the chart grants it then."""
    offer_mounted: bool = False
    """Whether a disk is offered although the host uses a file system or swap on it, or on its partitions: for pods that
    only read its state, as smartctl does. Otherwise such a disk is faulty until the host has unmounted it. A pod that
    holds a disk may mount it."""
    probe_open: bool = False
    """A device is released only when no process has its nodes open either. Not for devices that a daemon keeps
    open; needs `hostPID` and the capability `SYS_PTRACE`."""
    sharing: Sharing = Sharing()
    """Whether several claims may hold one device."""
    vfio: Vfio | None = None
    """Give out PCI functions bound to vfio-pci, for virtual machines. For containers, the same function may also be a
    device of another resource: give both resources the same lanes. Only one of the two is given out at a time."""
    partition: Partition | None = None
    """These devices are parts of others."""
    uniform: FieldText | None = None
    """A field that must have the same value in all devices of this resource: `attr:profile`. While values differ, a pod
    could not know which kind it gets, and all devices are faulty: NVIDIA's MIG strategy `single`."""
    claim_config: ClaimConfig = ClaimConfig()
    """What claims and classes may ask for in their parameters."""
    device_class: DeviceClass | None = None
    """The DeviceClass for this resource."""

    def _problems(self) -> Iterator[Problem]:
        yield from duplicate_targets(self.nodes, self.mounts)
        shared = self.sharing.allow_multiple_allocations
        yield from published_problems(self.attributes, self.capacity, shared=shared)
        yield from self._cdi_problems()
        yield from problems_beside_vfio(self)
        if any(node.source == "group" for node in self.all_nodes) and self.group is None:
            yield Problem("group: beside from: group", "say which companions: group: {with: children}", ("nodes",))
        if self.lanes.uses_dra and not self.claimable:
            yield Problem(
                "replicas in the legacy lane only, or sharing for the dra lane",
                "a claim would take the whole device: set sharing.allowMultipleAllocations: true, or lanes.dra: 0",
                ("lanes", "dra"),
            )
        if (limit := self.replicas.max_per_request) is not None and limit > self.replicas.most:
            yield Problem(f"at most count ({self.replicas.most})", path=("replicas", "maxPerRequest"))
        if "{" in self.name and self.device_class is not None and self.device_class.selector is None:
            hint = "one class for several resources: select them by an attribute"
            yield Problem("a selector", hint, ("deviceClass", "selector"))
        if self.partition is not None and self.partition.of == self.name:
            yield Problem("another resource", "a device is not a part of itself", ("partition", "of"))

    def of_subsystem(self, name: str) -> bool:
        """Whether a matcher names this subsystem, without wildcards."""
        named = (item for matcher in self.match if matcher.subsystem is not None for item in matcher.subsystem.items)
        return any(item.text == name for item in named)

    def _cdi_problems(self) -> Iterator[Problem]:
        if not self.cdi_devices:
            if self.cdi_fallback is not None:
                yield Problem("cdiDevices beside cdiFallback", "it is given in their place", ("cdiFallback",))
            return
        if self.inject == "devices":
            yield Problem(
                "inject: cdi with cdiDevices",
                "only a runtime with CDI knows what those names stand for; else write nodes and mounts",
                ("inject",),
            )
        named = list(map(str, self.cdi_devices))
        for index, name in enumerate(named):
            if name in named[:index]:
                yield Problem("each CDI device once", path=("cdiDevices", index))
        for name, profile in self.claim_config.profiles.items():
            if profile.permissions is not None:
                yield Problem(
                    "no permissions in a profile of a resource with cdiDevices",
                    "the permissions of their nodes are what their file says",
                    ("claimConfig", "profiles", name, "permissions"),
                )

    @property
    def all_nodes(self) -> tuple[NodeRule, ...]:
        """The rules of all nodes that a container may get, including those of the fallback."""
        return (*self.nodes, *(self.cdi_fallback.nodes if self.cdi_fallback is not None else ()))

    @property
    def identity(self) -> tuple[IdTemplate, ...]:
        """The templates of its devices' ids. A function that is also a device for containers has another id there."""
        return VFIO_ID if self.vfio is not None and self.id == DEFAULT_ID else self.id

    @property
    def claimable(self) -> bool:
        """Whether claims may have its devices. With replicas they may not: only kubelet counts these."""
        return self.replicas.most == 1 or self.sharing.allow_multiple_allocations


class Config(Model, frozen=True, kw_only=True):
    """The whole file."""

    raw_keys = Matcher.raw_keys | HealthRule.raw_keys | Attribute.raw_keys

    api_version: Literal["drabridge/v1alpha1"]
    """`drabridge/v1alpha1`."""
    kind: Literal["AgentConfig"]
    """`AgentConfig`."""
    driver: DriverName = DRIVER_PLACEHOLDER
    """DRA driver name, vendor of CDI names, prefix of annotations. A domain of yours, or in place of a vendor's
    software the vendor's: nothing is then served beside that. Changing it means draining."""
    udev_events: Literal["auto", "udev", "kernel"] = "auto"
    """Where events come from: udevd, the kernel, or whichever is detected to reach the agent."""
    resync_seconds: Annotated[int, Meta(ge=5, le=3600)] = 60
    """How often everything is enumerated again, in case an event was lost."""
    legacy: LegacySettings = LegacySettings()
    """Defaults of the DevicePlugin side."""
    dra: DraSettings = DraSettings()
    """The DRA side."""
    safety: Safety = Safety()
    """How long the agent waits when it is in doubt."""
    node_labels: NodeLabels | None = None
    """Labels of the Node that are made of its devices. Empty (`{}`) removes what the agent wrote before."""
    nvidia: Nvidia = Nvidia()
    """NVIDIA's management library."""
    resources: Annotated[tuple[Resource, ...], Meta(min_length=1, max_length=RESOURCES_MAX)]
    """What this node offers."""
    fabric: Annotated[tuple[FabricDevice, ...], Meta(max_length=DEVICES_MAX)] = ()
    """Devices that several nodes reach over a network, for claims. `drabridge coordinator --config` publishes them, the
    agent of the pod's node gives them."""

    def _problems(self) -> Iterator[Problem]:
        known = {resource.name for resource in self.resources}
        for index, resource in enumerate(self.resources):
            if resource.partition is not None and resource.partition.of not in known:
                yield Problem(
                    "the name of another resource of this file",
                    f"known: {', '.join(sorted(known))}",
                    ("resources", index, "partition", "of"),
                )
            if resource.cdi_devices and resource.inject is None and self.legacy.inject == "devices":
                yield Problem(
                    "legacy.inject: cdi with cdiDevices",
                    "only a runtime with CDI knows what those names stand for; else write nodes and mounts",
                    ("resources", index, "cdiDevices"),
                )
            needing = next((number for number, node in enumerate(resource.nodes) if node.needs_cdi), None)
            if needing is not None and (resource.inject or self.legacy.inject) == "devices":
                yield Problem(
                    "inject: cdi with fileMode, uid, gid or joinGroup",
                    "kubelet's own way to name a node to the runtime has none of them",
                    ("resources", index, "nodes", needing),
                )
            if self.fabric and resource.name == fabric_resource(self.driver):
                yield Problem("another name", "it is that of the fabric devices", ("resources", index, "name"))
            for number, name in enumerate(resource.cdi_devices):
                if str(name).startswith(f"{self.driver}/"):
                    hint = f"files of {self.driver} are this agent's own, and change without notice"
                    yield Problem("a CDI device of somebody else", hint, ("resources", index, "cdiDevices", number))
            if self.dra.enabled is False and resource.lanes.uses_dra:
                yield Problem(
                    "no dra lane while dra.enabled is false",
                    "remove the lane or enable DRA",
                    ("resources", index, "lanes", "dra"),
                )

        yield from variables_of_two(self.resources)
        if self.fabric and self.dra.enabled is False:
            yield Problem("no fabric while dra.enabled is false", "only claims can have such devices", ("fabric",))
        if self.dra.pool is not None and is_fabric_pool(self.dra.pool):
            yield Problem("a name without /fabric", "such pools are those of fabric devices", ("dra", "pool"))
        if self.node_labels is not None:
            yield from (problem.under("nodeLabels") for problem in self.node_labels.problems(sorted(known)))
            if self.dra.enabled is False:
                hint = "remove nodeLabels or enable DRA: labels are written through the API server"
                yield Problem("no nodeLabels while dra.enabled is false", hint, ("nodeLabels",))

    @classmethod
    def whole_file_problems(cls, data: object) -> Iterator[Problem]:
        """Yield the resources and fabric devices that repeat a name."""
        yield from fabric_problems(data.get("fabric") if isinstance(data, dict) else None)
        resources = data.get("resources") if isinstance(data, dict) else None
        first: dict[str, int] = {}
        for index, resource in enumerate(resources if isinstance(resources, list) else ()):
            name = resource.get("name") if isinstance(resource, dict) else None
            if isinstance(name, str) and first.setdefault(name, index) != index:
                hint = f"resources[{first[name]}] has the same name: put both matchers into one resource"
                yield Problem("a name of its own", hint, ("resources", index, "name"))

    def resource(self, name: str) -> Resource:
        """Return the resource of that name; KeyError when there is none."""
        for resource in self.resources:
            if resource.name == name:
                return resource
        raise KeyError(name)

    @property
    def label_rules(self) -> tuple[LabelRule, ...]:
        """The rules by which each label of the Node is made."""
        mig = frozenset(resource.name for resource in self.resources if resource.of_subsystem("nvidia-mig"))
        replicas = {resource.name: resource.replicas.most for resource in self.resources}
        return label_rules(self.node_labels, replicas, mig)

    @property
    def wants_dra(self) -> bool:
        """Whether claims are to be served, whatever annotations and commands say."""
        if self.dra.enabled == "auto":
            return bool(self.fabric) or any(resource.lanes.uses_dra for resource in self.resources)
        return bool(self.dra.enabled)
