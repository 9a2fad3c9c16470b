"""Make together what several devices bring into one container: variables, nodes, mounts.

Those of one Allocate and those of one request of a claim enter a container together. Nobody can do it for devices of
several resources, requests or claims: kubelet and the runtime put those together, and one of two values is lost
(``config/together.py`` refuses such names).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from drabridge.containers.cdi_spec import ContainerEdits

SEPARATOR = ","  # of PCIDEVICE_* (SR-IOV, KubeVirt, DPDK) and of NVIDIA_VISIBLE_DEVICES


def joined_env(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return each variable of several devices once: what they all say, or their values with commas, in their order."""
    values: dict[str, dict[str, None]] = {}
    for env in several:
        for name, value in env.items():
            values.setdefault(name, {})[value] = None
    return {name: SEPARATOR.join(those) for name, those in values.items()}


def one_path_for_two(several: Sequence[tuple[str, ContainerEdits]]) -> str:
    """Say which devices, by name, would be at one path of their container; empty when each has paths of its own."""
    taken: dict[str, tuple[str, str]] = {}
    for name, edits in several:
        brought = [(node.container_path or node.path, node.path) for node in edits.nodes]
        brought += [(mount.container_path, mount.host_path) for mount in edits.mounts]
        for inside, outside in brought:
            first, other = taken.setdefault(inside, (outside, name))
            if first != outside:
                return (
                    f"{other} and {name} would both be at {inside} in the container: "
                    f"give it one of them, or write {{name}} or {{devname}} into that path of the configuration"
                )
    return ""
