"""The key ``fabric:``: devices that several nodes reach over a network. Only claims get them, from separate pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta
from msgspec.structs import fields

from drabridge.config.claims import ClaimConfig, Sharing
from drabridge.config.container import MountRule, NodeRule, duplicate_targets
from drabridge.config.declaration import Model, OneOrMany, form
from drabridge.config.field_types import AttributeName, EnvName, ProfileName, Template
from drabridge.config.problems import Problem
from drabridge.config.published import Attribute, Capacity, published_problems
from drabridge.config.template import Template as ParsedTemplate

DEVICES_MAX = 1024
WORD = "fabric"  # in the names of pools, after the driver's: no node has a slash in its name

_NAME_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL = rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_NAME_PART}"
_HOST = r"[A-Za-z0-9:]([-A-Za-z0-9.:]{0,251}[A-Za-z0-9:])?"


def is_fabric_pool(pool: str) -> bool:
    """Whether a pool's devices belong to no node: ``<driver>/fabric`` and below."""
    return pool.split("/")[1:2] == [WORD]


def fabric_resource(driver: str) -> str:
    """Return the attribute ``resource`` of every fabric device. No resource of a node may have this name."""
    return f"{driver}/{WORD}"


NodeLabelName = Annotated[str, form("label's name", _LABEL, "the name of a Node's label")]
NodeLabelValue = Annotated[str, form("value", _NAME_PART, "the value of a label")]
HostName = Annotated[str, form("host", _HOST, "a host's name or address")]


def _one_or_many(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class TcpCheck(Model, frozen=True):
    """The coordinator connects to a TCP port; a device that does not answer gets the taint `<driver>/unreachable`."""

    host: HostName
    """Where to connect: a name, or an address. The coordinator resolves it, not the node."""
    port: Annotated[int, Meta(ge=1, le=65535)]
    """The port."""
    every_seconds: Annotated[int, Meta(ge=1, le=3600)] = 10
    """The pause between two attempts."""
    timeout_seconds: Annotated[int, Meta(ge=1, le=60)] = 3
    """How long an attempt may take."""
    failures: Annotated[int, Meta(ge=1, le=100)] = 3
    """The device gets the taint after so many failed attempts in a row, and loses it with the next that succeeds."""
    effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"
    """The taint's effect: `NoSchedule` stops new claims; `NoExecute` also evicts the pods that have the device."""


class FabricDevice(Model, frozen=True):
    """One device that several nodes reach: a network camera, an appliance, a licence server."""

    name: ProfileName
    """Its name in ResourceSlices. To the scheduler a device with another name is another device."""
    pool: ProfileName | None = None
    """The pool `<driver>/fabric/NAME` in place of `<driver>/fabric`, for devices that other nodes reach."""
    node_selector: Mapping[NodeLabelName, Annotated[tuple[NodeLabelValue, ...], OneOrMany(), Meta(min_length=1)]] = {}
    """Labels of the nodes that reach the device, each with a value or a list of values. When left out: all nodes. All
    devices of a pool must have the same."""
    attributes: Mapping[AttributeName, Attribute] = {}
    """Attributes for the selectors of claims, each a `value`. `type` is `fabric` unless it is given here."""
    capacity: Mapping[AttributeName, Capacity] = {}
    """Amounts for the selectors of claims, or to be consumed by them, each a `value`."""
    sharing: Sharing = Sharing()
    """Several claims on one device: the seats of a licence server."""
    env: Mapping[EnvName, Template] = {}
    """Environment variables for the container; the only field is `{name}`."""
    mounts: tuple[MountRule, ...] = ()
    """Bind mounts for the container, of paths that every node has."""
    nodes: tuple[NodeRule, ...] = ()
    """Device nodes for the container, each by its `path`, which every node has."""
    claim_config: ClaimConfig = ClaimConfig()
    """What claims and classes may ask for in their parameters. Only a profile has hooks (of `defaultProfile`, for
    example); they run on the pod's node."""
    health: TcpCheck | None = None
    """Whether the device answers. When left out it always counts as healthy."""

    def pool_name(self, driver: str) -> str:
        """Return the name of its pool."""
        return fabric_resource(driver) + (f"/{self.pool}" if self.pool else "")

    def _problems(self) -> Iterator[Problem]:
        yield from duplicate_targets(self.nodes, self.mounts)
        shared = self.sharing.allow_multiple_allocations
        yield from published_problems(self.attributes, self.capacity, shared=shared)
        read = [("attributes", name) for name, one in self.attributes.items() if one.source is not None]
        read += [("capacity", name) for name, other in self.capacity.items() if other.source is not None]
        for key, name in read:
            yield Problem("value: for a device of no node", "there is nothing to read", (key, name, "from"))
        for path, template in _templates(self):
            if wrong := [field for field in template.fields if field.source != "name"]:
                yield Problem("no other field than {name}", "the device is on no node", path, f"{{{wrong[0]}}}")
        for index, node in enumerate(self.nodes):
            if node.path is None or node.optional or node.needs_cdi:
                hint = "nothing is looked up on the node: leave out from, optional, fileMode, uid, gid and joinGroup"
                yield Problem("path, with as and permissions", hint, ("nodes", index))
        for index, mount in enumerate(self.mounts):
            if mount.optional:
                yield Problem("no optional", "nothing is looked up on the node", ("mounts", index, "optional"))


def _templates(value: Any, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], ParsedTemplate]]:
    """Yield every template in a value, with its path."""
    if isinstance(value, ParsedTemplate):
        yield path, value
    elif isinstance(value, Model):
        for one in fields(value):
            yield from _templates(getattr(value, one.name), *path, one.encode_name)
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield from _templates(one, *path, name)
    elif isinstance(value, tuple):
        for index, one in enumerate(value):
            yield from _templates(one, *path, index)


def fabric_problems(devices: object) -> Iterator[Problem]:
    """Yield what does not fit together in plain data: devices with one name, or with different nodes in one pool."""
    names: dict[object, int] = {}
    first: dict[object, tuple[int, object]] = {}
    for index, device in enumerate(devices if isinstance(devices, list) else ()):
        if not isinstance(device, dict):
            continue
        name, pool = (device.get(key) if isinstance(device.get(key), str) else None for key in ("name", "pool"))
        if name and names.setdefault(name, index) != index:
            yield Problem("a name of its own", f"fabric[{names[name]}] has it", ("fabric", index, "name"))
        selector = device.get("nodeSelector") or {}
        if isinstance(selector, dict):
            selector = {label: _one_or_many(values) for label, values in selector.items()}
        other, wanted = first.setdefault(pool, (index, selector))
        if selector != wanted:
            hint = f"devices of one pool are on the same nodes; or give this one a pool of its own (pool: {name})"
            yield Problem(f"the nodeSelector of fabric[{other}]", hint, ("fabric", index, "nodeSelector"))
