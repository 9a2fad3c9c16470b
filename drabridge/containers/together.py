"""Combine what several devices bring into one container: variables, nodes, mounts.

Devices of one Allocate, or of one request of a claim, enter a container together. Devices of several resources,
requests or claims cannot be combined here: kubelet and the runtime do that, and one of two values is lost
(``config/together.py`` refuses such names; ``{request}`` tells requests of a claim apart).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from drabridge.containers.cdi_spec import JOINED, CdiDevice, ContainerEdits

SEPARATOR = ","  # of PCIDEVICE_* (SR-IOV, KubeVirt, DPDK) and of NVIDIA_VISIBLE_DEVICES


INDEX, REQUEST = "{index}", "{request}"  # the inventory leaves these fields of a template as they are
LIMITS = "limits"  # takes the place of a request for devices by limits
MOST_NUMBERED = 16  # devices by limits in one container: a device's CDI file has an entry for each position


def placed(edits: ContainerEdits, index: int, request: str = LIMITS) -> ContainerEdits:
    """Return the edits of a device at this position among those that enter the container by the same request."""
    if not _has(edits, INDEX) and not _has(edits, REQUEST):
        return edits

    def fill(text: str) -> str:
        return text.replace(INDEX, str(index)).replace(REQUEST, request)

    return replace(
        edits,
        nodes=tuple(replace(node, container_path=fill(node.container_path)) for node in edits.nodes),
        env={
            fill(name.replace(REQUEST, re.sub(r"\W", "_", request))): fill(value) for name, value in edits.env.items()
        },
        mounts=tuple(replace(mount, container_path=fill(mount.container_path)) for mount in edits.mounts),
    )


def legacy_entries(entries: Sequence[CdiDevice]) -> Iterator[CdiDevice]:
    """Yield the entries of a device by limits: one if it is alone in its container, and one for each position there.

    The entries for positions have no variables. Kubelet repeats a name for the pod's whole life. So the name includes
    the position, and the file has an entry for each position.
    """
    for entry in entries:
        yield CdiDevice(entry.name, placed(entry.edits, 0))
        paths = replace(entry.edits, env={})
        numbered = _has(paths, INDEX)
        for index in range(MOST_NUMBERED if numbered else 1):
            if index or numbered or entry.edits.env:
                yield CdiDevice(f"{entry.name}{JOINED}{index or ''}", placed(paths, index))


def too_many(several: Sequence[ContainerEdits]) -> str:
    """Return why a container cannot have so many devices by limits and CDI; "" if it can."""
    numbered = any(_has(ContainerEdits(one.nodes, mounts=one.mounts), INDEX) for one in several)
    if len(several) <= MOST_NUMBERED or not numbered:
        return ""
    return f"{len(several)} devices in one container, whose paths are numbered by {INDEX}: at most {MOST_NUMBERED}"


def _has(edits: ContainerEdits, what: str) -> bool:
    paths = (*(node.container_path for node in edits.nodes), *(mount.container_path for mount in edits.mounts))
    return any(what in text for text in (*paths, *edits.env, *edits.env.values()))


def joined_env(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return each variable of several devices once: their common value, or all their values in order, with commas."""
    values: dict[str, dict[str, None]] = {}
    for env in several:
        for name, value in env.items():
            values.setdefault(name, {})[value] = None
    return {name: SEPARATOR.join(those) for name, those in values.items()}


def one_path_for_two(several: Sequence[tuple[str, ContainerEdits]]) -> str:
    """Return which devices, by name, would be at one path of their container; "" if each has paths of its own."""
    taken: dict[str, tuple[str, str]] = {}
    for name, edits in several:
        brought = [(node.container_path or node.path, node.path) for node in edits.nodes]
        brought += [(mount.container_path, mount.host_path) for mount in edits.mounts]
        for inside, outside in brought:
            first, other = taken.setdefault(inside, (outside, name))
            if first != outside:
                return (
                    f"{other} and {name} would both be at {inside} in the container: "
                    f"give it one of them, or write {{index}} or {{name}} into that path of the configuration"
                )
    return ""
