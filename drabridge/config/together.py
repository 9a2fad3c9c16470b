"""Refuse names that two resources bring into a container: one of the two things would be lost there.

A pod may ask for several resources, and claims for devices of several. What each brings is put together by kubelet and
the runtime, which take one of two variables of a name, and one of two nodes or mounts at a path. Devices of one
resource are put together by the agent (``containers/together.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from drabridge.config.container import MountRule, NodeRule
from drabridge.config.problems import Path, Problem
from drabridge.config.template import Template, variable_name

if TYPE_CHECKING:
    from drabridge.config.schema import Resource


class _Brought(NamedTuple):
    name: str  # of the variable, or path in the container
    value: str | None  # the same text for all devices, or None
    path: Path


def names_of_two(resources: Sequence[Resource]) -> Iterator[Problem]:
    """Yield a problem for each variable and path without fields that two resources give a meaning of their own.

    An entry whose name has a field is several resources by itself.
    """
    first: dict[str, tuple[str | None, int]] = {}
    for index, resource in enumerate(resources):
        for one in _brought(resource):
            value, owner = first.setdefault(one.name, (one.value, index))
            several = owner != index or "{" in resource.name
            if several and (value is None or value != one.value):
                who = (
                    f"resources[{owner}] has {one.name} as well"
                    if owner != index
                    else f"it is several, with {one.name}"
                )
                yield Problem(
                    "a name that no other resource brings into a container",
                    f"{who}, and a container with both would get one of them: "
                    "choose another name, or write {name} or {resource} into it",
                    ("resources", index, *one.path),
                )


def _brought(resource: Resource) -> Iterator[_Brought]:
    yield from _of_giver(resource.nodes, resource.mounts, resource.env, ())
    if (fallback := resource.cdi_fallback) is not None:
        yield from _of_giver(fallback.nodes, fallback.mounts, fallback.env, ("cdiFallback",))
    for name, profile in resource.claim_config.profiles.items():
        yield from _of_giver((), profile.mounts, profile.env, ("claimConfig", "profiles", name))


def _of_giver(
    nodes: Sequence[NodeRule], mounts: Sequence[MountRule], env: Mapping[str, Template], where: Path
) -> Iterator[_Brought]:
    for name, value in env.items():
        if not variable_name(name).fields:
            yield _Brought(name, value.literal, (*where, "env", name))
    for index, node in enumerate(nodes):
        target = node.alias or node.path
        if target is not None and target.literal is not None:
            yield _Brought(target.literal, node.path and node.path.literal, (*where, "nodes", index))
    for index, mount in enumerate(mounts):
        inside = mount.container_path or mount.host_path
        if inside.literal is not None:
            yield _Brought(inside.literal, mount.host_path.literal, (*where, "mounts", index))
