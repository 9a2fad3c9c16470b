"""Find names that two resources bring into a container: one of the two things would be lost there.

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
    name: str  # the variable's name, or the path in the container
    value: str | None  # the same text for all devices, or None
    path: Path


def variables_of_two(resources: Sequence[Resource]) -> Iterator[Problem]:
    """Yield a problem for each variable without fields in its name that two resources set, unless to the same text."""
    brought = [list(_variables_of(resource)) for resource in resources]
    for index, owner, one in _of_two(resources, brought):
        other = f"resources[{owner}] has {one.name} as well"
        who = other if owner != index else f"it is several, with {one.name}"
        yield Problem(
            "a name that no other resource brings into a container",
            f"{who}, and a container with both would get one of them: "
            "choose another name, or write {name} or {resource} into it",
            ("resources", index, *one.path),
        )


def paths_of_two(resources: Sequence[Resource]) -> Iterator[tuple[int, int, str]]:
    """Yield each path at which two resources have different things: the second, the first, and the path.

    That is no error. Nodes may have one kind of radio or another, and both kinds may be wanted at one path.
    """
    brought = [list(_paths_of(resource)) for resource in resources]
    yield from ((index, owner, one.name) for index, owner, one in _of_two(resources, brought))


def _of_two(
    resources: Sequence[Resource], brought: Sequence[Sequence[_Brought]]
) -> Iterator[tuple[int, int, _Brought]]:
    """Yield (index, the earlier resource's index, thing) for each thing that has another value in an earlier resource.

    A resource with a field in its name stands for several, and so may collide with itself.
    """
    first: dict[str, tuple[str | None, int]] = {}
    for index, resource in enumerate(resources):
        for one in brought[index]:
            value, owner = first.setdefault(one.name, (one.value, index))
            if (owner != index or "{" in resource.name) and (value is None or value != one.value):
                yield index, owner, one


def _variables_of(resource: Resource) -> Iterator[_Brought]:
    givers: list[tuple[Path, Mapping[str, Template]]] = [((), resource.env)]
    if resource.cdi_fallback is not None:
        givers.append((("cdiFallback",), resource.cdi_fallback.env))
    profiles = resource.claim_config.profiles.items()
    givers += [(("claimConfig", "profiles", name), profile.env) for name, profile in profiles]
    for where, env in givers:
        for name, value in env.items():
            if not variable_name(name).device_fields:
                yield _Brought(name, value.literal, (*where, "env", name))


def _paths_of(resource: Resource) -> Iterator[_Brought]:
    fallback = resource.cdi_fallback
    nodes: tuple[NodeRule, ...] = resource.all_nodes
    mounts: tuple[MountRule, ...] = (*resource.mounts, *(fallback.mounts if fallback is not None else ()))
    for node in nodes:
        target = node.alias or node.path
        if target is not None and not target.device_fields:
            yield _Brought(str(target), node.path.literal if node.path is not None else None, ())
    for mount in mounts:
        inside = mount.container_path or mount.host_path
        if not inside.device_fields:
            yield _Brought(str(inside), mount.host_path.literal, ())
