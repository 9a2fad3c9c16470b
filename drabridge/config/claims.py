"""The keys of a resource that matter only for DRA: sharing, partitions, and what a claim's parameters may ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from drabridge.config import names
from drabridge.config.container import Hook, MountRule
from drabridge.config.declaration import Model
from drabridge.config.field_types import (
    ContainerTemplate,
    DeviceClassName,
    EnvName,
    Permissions,
    ProfileName,
    ResourceName,
    VariableName,
)
from drabridge.config.problems import Problem, did_you_mean


class Sharing(Model, frozen=True):
    """Whether several claims may hold one device at the same time (consumable capacity, Kubernetes >= 1.34)."""

    allow_multiple_allocations: bool = False
    """Claims share the device. Limit them with a capacity that has a `requestPolicy`: `slots: {value: 4, requestPolicy:
    {default: 1}}` for four claims. A claim takes what it asks for of a capacity without one, else nothing."""


class Counter(Model, frozen=True):
    """A shared counter: the whole device has `total`, every part takes `each`."""

    total: Annotated[int, Meta(ge=1, le=1_000_000)]
    """What the whole device has, and takes when it is allocated as a whole."""
    each: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """What one of this resource's devices takes."""

    def _problems(self) -> Iterator[Problem]:
        if self.each > self.total:
            yield Problem(f"at most total ({self.total})", path=("each",))


class Partition(Model, frozen=True):
    """These devices are parts of whole devices. A part and its whole are never held at the same time, and a part is in
    the lane of its whole, whatever `lanes` says.
    """

    of: ResourceName
    """The resource of the whole devices."""
    by: Annotated[str, Meta(pattern=r"^(parent|link:[A-Za-z0-9_.-]+)$")] = "parent"
    """How the whole is found from a part: `parent` (an ancestor in udev), or `link:physfn` (a link in sysfs)."""
    counters: Annotated[Mapping[ProfileName, Counter], Meta(max_length=names.COUNTERS_MAX)] = {}
    """Shared counters of claims. When left out, each part counts one, and the whole as many as it has parts."""


class Profile(Model, frozen=True):
    """What a claim may choose by name. Only this file says what the name stands for."""

    permissions: Permissions | None = None
    """Instead of the permissions of the resource's nodes."""
    env: Mapping[VariableName, ContainerTemplate] = {}
    """Added to the resource's environment."""
    mounts: tuple[MountRule, ...] = ()
    """Added to the resource's mounts."""
    prepare: Hook | None = None
    """Runs before the claim's first container may start; on a shared device while other claims use it."""
    unprepare: Hook | None = None
    """Runs after the claim's last container has ended; on a shared device while other claims use it."""


class ClaimConfig(Model, frozen=True):
    """What the opaque parameters of claims and classes may ask for; nothing unless it is allowed here."""

    env: tuple[EnvName, ...] = ()
    """Environment variables that a claim may set."""
    profiles: Mapping[ProfileName, Profile] = {}
    """Profiles that a claim may choose."""
    default_profile: ProfileName | None = None
    """The profile of claims that choose none. A DeviceClass can demand one: `mandatory: true` in its parameters."""
    trust_class_parameters: bool = False
    """Whether a DeviceClass, which only administrators write, may set any environment variable."""

    def _problems(self) -> Iterator[Problem]:
        default = self.default_profile
        if default is not None and default not in self.profiles:
            hint = did_you_mean(default, self.profiles) or f"known: {', '.join(self.profiles) or 'none'}"
            yield Problem("the name of a profile", hint, ("defaultProfile",))


class DeviceClass(Model, frozen=True):
    """The DeviceClass that users of this resource name. The chart and checks use it; the agent does not create it."""

    name: DeviceClassName
    """The object's name."""
    extended_resource_name: ResourceName | None = None
    """Set when the class serves this extended resource through DRA."""
    selector: Annotated[str, Meta(min_length=1, max_length=10_240)] | None = None
    """CEL expression for the class's devices, in place of the one that selects the devices of this resource."""
