"""Pods that ask for GPUs, devices with NUMA nodes, and the text of a refusal."""

from __future__ import annotations

from drabridge.sim.kubelet.pods import Container, PodSpec
from tests.support.kubelet_peers import GPU, device

NUMA = [device("d0", numa=[0]), device("d1", numa=[0, 1]), device("d2"), device("d3", numa=[])]


REJECTED = "Pod was rejected: Allocate failed due to {}, which is unexpected"


def pod(name: str, *numbers: int, init: int = 0, **options: object) -> PodSpec:
    """Containers a, b, … asking for ``numbers`` devices each."""
    containers = tuple(Container(chr(97 + i), {GPU: n}) for i, n in enumerate(numbers))
    inits = (Container("init", {GPU: init}),) if init else ()
    return PodSpec("default", name, containers=containers, init_containers=inits, **options)  # type: ignore[arg-type]
