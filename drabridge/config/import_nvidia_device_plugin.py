"""Convert a configuration of NVIDIA's device plugin to ours, with a comment for every key that means something else.

Its keys are those of NVIDIA/k8s-device-plugin api/config/v1 (0.20). That plugin reads some of them
and ignores them, with a warning in its log (``DisableResourceNamingInConfig`` in config.go). They are ignored here,
too: pods find the same resources as before. The resources are those of the shipped profiles (``nvidia_profile.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal

import yaml
from msgspec import Meta, field

from drabridge.config import names
from drabridge.config.declaration import Check, Model, OneOrMany, Parse, to_data
from drabridge.config.field_types import AbsolutePath
from drabridge.config.imported import Json, Noted, written
from drabridge.config.loader import load, read
from drabridge.config.nvidia_profile import GPUS, WITH_MIG, nvidia_profile
from drabridge.config.problems import Problem, did_you_mean, unmet
from drabridge.config.schema import REPLICAS_MAX
from podresources.table import printable

GPU = "nvidia.com/gpu"
MIG_PREFIX = "nvidia.com/mig-"
SHARED_SUFFIX = ".shared"  # DefaultSharedResourceNameSuffix in consts.go
MIG_SUBSYSTEM = "nvidia-mig"
MIG_RESOURCES = "nvidia.com/mig-{attr:profile}"  # the profile's resource for every MIG profile
WHOLE = "nvidia.com/gpu-whole"  # whole GPUs while nvidia.com/gpu are their MIG instances
IMEX_CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"
SHARES = "shares"  # the capacity of which each claim takes a part, as a pod takes a replica

_DEVICE = re.compile(
    r"\d+(:\d+)?|GPU-{0}|MIG-({0}|GPU-{0}/\d+/\d+)".format("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
)


# --- their file -----------------------------------------------------------------------------------------------------


def _resource_name(name: str) -> str:
    """Return the whole name, as NewResourceName in resources.go makes it: ``gpu`` is ``nvidia.com/gpu``."""
    return names.extended_resource_name(name if name.startswith("nvidia.com/") else f"nvidia.com/{name}")


def _devices(value: Any) -> Any:
    """Check ``all``, a count, or a list of indices and UUIDs (UnmarshalJSON of ReplicatedDevices)."""
    listed = isinstance(value, list | tuple)
    if value == "all" or (type(value) is int and value > 0):
        return value
    if listed and all(type(item) in (int, str) and _DEVICE.fullmatch(str(item)) for item in value):
        return tuple(value)
    raise unmet("all, a number of devices, or a list of indices and UUIDs", 'an index in a MIG GPU needs quotes: "0:1"')


def _shared_name(name: str) -> str:
    full = _resource_name(name)
    if full != GPU and not full.startswith(MIG_PREFIX):
        hint = did_you_mean(full, [GPU]) or f"NVIDIA's plugin has no other resources; {MIG_PREFIX}1g.10gb is a MIG one"
        raise unmet(f"{GPU} or {MIG_PREFIX}PROFILE", hint)
    return full


def _found_on_pci(strategy: str) -> str:
    if strategy in ("tegra", "vfio"):
        raise unmet("auto or nvml", "the profile finds GPUs on the PCI bus: write resources with a match of your own")
    return strategy


def _channels(ids: tuple[int, ...]) -> tuple[int, ...]:
    if ids not in ((), (0,)):  # AssertChannelIDsValid in imex.go
        raise unmet("[] or [0]", "NVIDIA's plugin refuses others as well")
    return ids


Name = Annotated[str, Check(_resource_name)]
SharedName = Annotated[str, Check(_shared_name)]
Duration = Annotated[
    str, Meta(pattern=r"^(infinite|0|[+-]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))*)$")
]
ListStrategy = Literal["", "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]  # "": NVIDIA's default


class _Plugin(Model, frozen=True):
    pass_device_specs: bool | None = None
    device_list_strategy: Annotated[tuple[ListStrategy, ...], OneOrMany()] | None = None
    device_id_strategy: Literal["uuid", "index"] | None = field(default=None, name="deviceIDStrategy")
    cdi_annotation_prefix: str | None = None
    nvidia_ctk_path: str | None = field(default=None, name="nvidiaCTKPath")
    container_driver_root: str | None = None
    shared_devices_allocation_policy: Literal["distributed", "packed"] | None = None


class _Gfd(Model, frozen=True):
    oneshot: bool | None = None
    no_timestamp: bool | None = None
    sleep_interval: Duration | int | None = None
    output_file: str | None = None
    machine_type_file: str | None = None


class _Flags(Model, frozen=True):
    mig_strategy: Literal["none", "single", "mixed"] | None = None
    fail_on_init_error: bool | None = None
    mps_root: str | None = None
    nvidia_driver_root: AbsolutePath | None = None
    nvidia_dev_root: AbsolutePath | Literal[""] | None = None
    gdrcopy_enabled: bool | None = None
    gds_enabled: bool | None = None
    mofed_enabled: bool | None = None
    use_node_feature_api: bool | None = field(default=None, name="useNodeFeatureAPI")
    device_discovery_strategy: Annotated[Literal["auto", "nvml", "tegra", "vfio"], Check(_found_on_pci)] | None = None
    plugin: _Plugin | None = None
    gfd: _Gfd | None = None
    rename_by_default: bool | None = None  # a frequent mistake, which NVIDIA's plugin does not report

    def _problems(self) -> Iterator[Problem]:
        if self.rename_by_default is not None:
            hint = "it belongs to sharing.timeSlicing or sharing.mps; NVIDIA's plugin ignores it here"
            yield Problem("no renameByDefault among the flags", hint, ("renameByDefault",))


class _Named(Model, frozen=True):
    """A resource's name for the GPUs or MIG instances whose product or profile has a pattern."""

    pattern: str
    name: Name


class _Resources(Model, frozen=True):
    gpus: tuple[_Named, ...] | None = None
    mig: tuple[_Named, ...] | None = None


class _Replicated(Model, frozen=True, kw_only=True):
    name: SharedName
    rename: Name | None = None
    devices: Annotated[Any, Parse(_devices)] = "all"
    replicas: Annotated[int, Meta(ge=2, le=REPLICAS_MAX)]


class _Sharing(Model, frozen=True, kw_only=True):
    """``timeSlicing`` or ``mps``."""

    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None
    resources: Annotated[tuple[_Replicated, ...], Meta(min_length=1)]

    def _problems(self) -> Iterator[Problem]:
        first: dict[str, int] = {}
        for index, resource in enumerate(self.resources):
            if first.setdefault(resource.name, index) != index:
                hint = f"resources[{first[resource.name]}] has the same name"
                yield Problem("a name of its own", hint, ("resources", index, "name"))


class _AllSharing(Model, frozen=True):
    time_slicing: _Sharing | None = None
    mps: _Sharing | None = None


class _Imex(Model, frozen=True):
    channel_ids: Annotated[tuple[int, ...], Check(_channels)] | None = field(default=None, name="channelIDs")
    required: bool = False


class _File(Model, frozen=True):
    version: Literal["v1"] = "v1"
    flags: _Flags | None = None
    resources: _Resources | None = None
    sharing: _AllSharing | None = None
    imex: _Imex | None = None

    @classmethod
    def whole_file_problems(cls, data: object) -> Iterator[Problem]:
        """Refuse the ConfigMap that holds such files, in place of one of them."""
        if isinstance(data, dict) and data.get("kind") == "ConfigMap":
            hint = "save the text of one key of data: as a file, and name that"
            yield Problem("a configuration of NVIDIA's device plugin, not the ConfigMap around it", hint, ("data",))


# --- our file -------------------------------------------------------------------------------------------------------


def convert(source: FilePath | str | bytes, *, name: str = "configuration of NVIDIA's device plugin") -> str:
    """Return our YAML for a configuration of NVIDIA's device plugin, which may be YAML or JSON.

    Raises ConfigErrors with the places in that file when it is wrong, or when something has no counterpart here.
    """
    file = read(_File, source, name=name, hint="NVIDIA's file begins with version: v1")
    conversion = _Conversion(file)
    return written(list(conversion.head()), conversion.resources(), name)


class _Conversion:
    """Converts one file: changes the profile's resources, and collects notes."""

    def __init__(self, file: _File) -> None:
        self._flags = file.flags or _Flags()
        self._plugin = self._flags.plugin or _Plugin()
        self._file = file
        sharing = file.sharing or _AllSharing()
        self._sharing_key = "sharing.mps" if sharing.mps is not None else "sharing.timeSlicing"
        self._sharing = sharing.mps or sharing.time_slicing
        self._strategy = self._flags.mig_strategy or "none"
        text = nvidia_profile(GPUS if self._strategy == "none" else WITH_MIG)
        profile = load(text, name="the profile for NVIDIA's GPUs")
        self._profile: Json = to_data(profile)

    def head(self) -> Iterator[str]:
        yield from (
            "# Made from a configuration of NVIDIA's device plugin and the profile for its GPUs. What differs is said.",
            "# Flags and environment variables of the plugin come before its file: look at its DaemonSet as well.",
            *(f"# {printable(note)}" for note in self._file_notes()),
        )
        profile = {key: value for key, value in self._profile.items() if key != "resources"}
        yield yaml.safe_dump(profile, sort_keys=False, default_flow_style=False)

    # --- resources ---

    def resources(self) -> Iterator[Noted]:
        shared = {one.name: one for one in self._sharing.resources} if self._sharing else {}
        gpu = self._edited(_named(self._profile, GPU))
        if self._strategy == "single":
            mig = self._edited(_named(self._profile, MIG_RESOURCES))
            mig |= {"name": GPU, "partition": {**mig["partition"], "of": WHOLE}, "uniform": "attr:profile"}
            yield gpu | {"name": WHOLE}, []
            yield self._replicated(mig, shared.get(GPU))
            return
        yield self._replicated(gpu, shared.get(GPU))
        if self._strategy == "mixed":
            profiles = [name for name in shared if name.startswith(MIG_PREFIX)]
            for name in (*profiles, MIG_RESOURCES):  # the first that matches counts
                mig = self._edited(_mig_resource(self._profile, name))
                mig["partition"] = {**mig["partition"], "of": gpu["name"]}
                yield self._replicated(mig, shared.get(name))

    def _replicated(self, resource: Json, asked: _Replicated | None) -> Noted:
        if asked is None or self._sharing is None:
            return resource, []
        notes = list(self._sharing_notes(asked))
        if self._sharing.rename_by_default:
            resource["name"] += SHARED_SUFFIX
        replicas: Json = {"count": asked.replicas}
        if (policy := self._plugin.shared_devices_allocation_policy) is not None:
            replicas["policy"] = policy
        default = self._sharing_key == "sharing.mps"  # NewConfig in config.go
        fail = self._sharing.fail_requests_greater_than_one
        single = default if fail is None else fail
        if single:
            replicas["maxPerRequest"] = 1
        resource["replicas"] = replicas
        # Claims share the device in the same way once lanes give them some: so many at a time.
        resource["sharing"] = {"allowMultipleAllocations": True}
        limits = {"min": 1, "max": 1} if single else {"min": 1}
        policy_of_claims = {"default": 1, "validRange": limits}
        resource["capacity"] = {
            **resource.get("capacity", {}),
            SHARES: {"value": asked.replicas, "requestPolicy": policy_of_claims},
        }
        return resource, notes

    def _edited(self, resource: Json) -> Json:
        """Return the resource with the roots and the companions that the flags name."""
        driver_root = _root(self._flags.nvidia_driver_root)
        dev_root = _root(self._flags.nvidia_dev_root or self._flags.nvidia_driver_root)
        for given in _edits(resource):
            for node in given.get("nodes", ()) if dev_root else ():
                if "path" in node:
                    node |= {"path": dev_root + node["path"], "as": node.get("as", node["path"])}
            for mount in given.get("mounts", ()) if driver_root else ():
                path = mount["hostPath"]
                mount |= {"hostPath": driver_root + path, "containerPath": mount.get("containerPath", path)}
        added: list[Json] = [{"path": "/dev/gdrdrv", "optional": True}] if self._flags.gdrcopy_enabled else []
        if (imex := self._file.imex) is not None and imex.channel_ids:
            added.append({"path": IMEX_CHANNEL} | ({} if imex.required else {"optional": True}))
        if added:
            resource["nodes"] = [*resource.get("nodes", ()), *added]
        return resource

    # --- notes ---

    def _file_notes(self) -> Iterator[str]:
        flags, plugin = self._flags, self._plugin
        yield from self._mig_notes()
        given: dict[str, object] = {
            **{f"flags.{key}": value for key, value in _given(flags).items() if key not in ("plugin", "gfd")},
            **{f"flags.plugin.{key}": value for key, value in _given(plugin).items()},
            **{f"flags.gfd.{key}": value for key, value in _given(flags.gfd or _Gfd()).items()},
        }
        for key, why in _WITHOUT_COUNTERPART.items():
            if given.get(key) not in (None, False, "", "auto"):
                yield f"{key}: {why}"
        roots = [root for root in (_root(flags.nvidia_driver_root), _root(flags.nvidia_dev_root)) if root]
        if roots:
            named = " and ".join(dict.fromkeys(roots))
            yield f"The paths below {named} must be in the agent's pod: name them in the chart's extraHostPaths."
        strategies = [one for one in plugin.device_list_strategy or () if one]
        if strategies and not any(strategy.startswith("cdi-") for strategy in strategies):
            yield (
                f"flags.plugin.deviceListStrategy: {', '.join(strategies)} leaves devices to NVIDIA's runtime. Here "
                "they are named to the container runtime, by CDI; for one without CDI set legacy.inject: devices."
            )
        for key in _given(self._file.resources or _Resources()):
            yield (
                f"resources.{key}: NVIDIA's plugin ignores it, and so do the resources below. For a name of your own "
                'change name:; for some GPUs only, match their product as well: attr: {device: "0x2335"}.'
            )
        both = self._file.sharing
        if both is not None and both.mps is not None and both.time_slicing is not None:
            yield "sharing.timeSlicing: not used, because sharing.mps is there as well (as in NVIDIA's plugin)."

    def _mig_notes(self) -> Iterator[str]:
        shared = self._sharing.resources if self._sharing else ()
        if self._strategy == "single":
            yield (
                f"flags.migStrategy: with single, {GPU} are MIG instances of one profile. Nodes whose GPUs are not in "
                "MIG mode need a file of their own, with none."
            )
        if self._strategy != "mixed":
            for one in shared:
                if one.name.startswith(MIG_PREFIX):
                    yield f"{self._sharing_key}: {one.name} is left out: flags.migStrategy is not mixed."

    def _sharing_notes(self, asked: _Replicated) -> Iterator[str]:
        if self._sharing_key == "sharing.mps":
            yield (
                "sharing.mps: no MPS daemon is run, so pods have no limits of memory and threads: they take turns, as "
                "with time-slicing. With limits: MIG, or NVIDIA's MPS control daemon and its plugin."
            )
        if asked.rename is not None and asked.rename != _renamed(asked, self._sharing):
            yield f"rename: {asked.rename} is ignored by NVIDIA's plugin; to have it, change name: below."
        if asked.devices != "all":
            yield (
                "devices: NVIDIA's plugin ignores it and replicates all. For some GPUs only, write two resources that "
                'match by address: sysname: "0000:3b:00.0".'
            )


_WITHOUT_COUNTERPART: Mapping[str, str] = {
    "flags.failOnInitError": "not needed: the agent waits for a driver or GPUs that come later, and readiness says so.",
    "flags.mpsRoot": "no MPS daemon is run.",
    "flags.gdsEnabled": "not done: add the nodes to nodes:, for example {path: /dev/nvidia-fs0, optional: true}.",
    "flags.mofedEnabled": "not done: offer RDMA devices as a resource of their own, or add their nodes to nodes:.",
    "flags.useNodeFeatureAPI": "GPU Feature Discovery goes on beside the agent, or nodeLabels: writes its labels.",
    "flags.plugin.passDeviceSpecs": "not needed: the nodes are always named to the container runtime.",
    "flags.plugin.deviceIDStrategy": "not needed: containers get nodes, no list of ids. Kubelet's ids are the UUIDs.",
    "flags.plugin.cdiAnnotationPrefix": "not needed: CDI names go to kubelet as such, not in annotations.",
    "flags.plugin.nvidiaCTKPath": "not used: no hook of nvidia-ctk is written.",
    "flags.plugin.containerDriverRoot": "not used: the agent sees the host's files at their own paths.",
    "flags.gfd.oneshot": "labels follow the devices for as long as the agent runs (nodeLabels:).",
    "flags.gfd.noTimestamp": "nodeLabels: writes no timestamp.",
    "flags.gfd.sleepInterval": "labels follow the devices at once (nodeLabels:).",
    "flags.gfd.outputFile": "nodeLabels: writes labels to the Node itself.",
    "flags.gfd.machineTypeFile": "in nodeLabels: a label may come from a file: file:/sys/class/dmi/id/product_name.",
}
"""Keys of NVIDIA's plugin without a counterpart here: why, and what to do."""


def _given(model: Model) -> Json:
    found: Json = to_data(model)
    return found


def _root(path: str | None) -> str:
    return "" if path is None else path.rstrip("/")


def _renamed(asked: _Replicated, sharing: _Sharing | None) -> str:
    return asked.name + (SHARED_SUFFIX if sharing and sharing.rename_by_default else "")


def _edits(resource: Json) -> Iterator[Json]:
    """Yield everything with nodes and mounts: the resource, and each of its keys that has some of its own."""
    yield resource
    yield from (value for value in resource.values() if isinstance(value, dict) and value.keys() & {"nodes", "mounts"})


def _named(profile: Json, name: str) -> Json:
    """Return a copy of the profile's resource."""
    found: Json = next(one for one in profile["resources"] if one["name"] == name)
    return deepcopy(found)


def _mig_resource(profile: Json, name: str) -> Json:
    """Return the resource of one MIG profile, or of all."""
    resource = _named(profile, MIG_RESOURCES)
    if name == MIG_RESOURCES:
        return resource
    mig_profile = name.removeprefix(MIG_PREFIX).replace("gb.", "gb+")  # 1g.10gb+me is mig-1g.10gb.me as a resource
    return resource | {"name": name, "match": [{"subsystem": MIG_SUBSYSTEM, "attr": {"profile": mig_profile}}]}
