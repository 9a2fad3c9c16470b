"""A simulated kubelet beside a DRA node, and pods with claims for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, ContainerClaim, Phase, PodClaim, PodSpec
from drabridge.sim.kubelet.timings import Timings
from tests.support.dra_node import NODE, DraNode
from tests.support.waiting import until


class KubeletApi:
    """What the simulated kubelet asks of the simulated API server."""

    def __init__(self, api: SimApiServer) -> None:
        self._objects = api.objects

    async def get_claim(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._objects.find("resourceclaims", name, namespace)

    async def delete_slices(self, node_name: str, driver: str | None) -> None:
        for item in list(self._objects.list("resourceslices")):
            if item["spec"].get("nodeName") == node_name and driver in (None, item["spec"]["driver"]):
                self._objects.delete("resourceslices", item["metadata"]["name"])


@contextlib.asynccontextmanager
async def kubelet_beside(
    node: DraNode, *, version: str = "1.36", gates: Mapping[str, bool] | None = None, **options: Any
) -> AsyncIterator[SimKubelet]:
    timings = Timings.fast(**options)
    kubelet = SimKubelet(
        node.root, node_name=NODE, api=KubeletApi(node.api), timings=timings, version=version, gates=gates
    )
    await kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.thaw()
        await kubelet.stop()


def pod(node: DraNode, name: str, claim: str, *devices: str) -> PodSpec:
    """A pod with a claim of its own, allocated and reserved for it."""
    spec = PodSpec(
        "default",
        name,
        containers=(Container("c", claims=(ContainerClaim("c"),)),),
        resource_claims=(PodClaim("c", claim),),
    )
    if devices:
        node.claims.add(claim, *devices)
    node.claims.reserve(claim, spec.name, spec.uid)
    return spec


async def registered(node: DraNode) -> None:
    await until(lambda: node.driver.state.registration.registered, why="the registration")


async def ran(kubelet: SimKubelet, spec: PodSpec) -> None:
    await kubelet.run_pod(spec)
    await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what=f"pod {spec.name}")
