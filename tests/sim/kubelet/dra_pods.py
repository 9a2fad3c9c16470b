"""Pods with claims, a kubelet with a driver, and what the driver answers for the claims."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Container, ContainerClaim, PodClaim, PodSpec
from drabridge.wire import dra_v1_pb2
from tests.support.kubelet_peers import Driver, FakeApi, running, serving, short_dir
from tests.support.waiting import PATIENCE

DRIVER = "obs.example.com"
_uids = (f"34553fd1-cf06-469c-b877-{number:012}" for number in itertools.count())


def claim_pod(name: str, *claims: str, containers: int = 1, requests: tuple[str, ...] = ("",)) -> PodSpec:
    """Every container uses every claim; claim ``x`` is called ``pod-x`` in the pod."""
    refs = tuple(ContainerClaim(f"pod-{c}", request) for c in claims for request in requests)
    return PodSpec(
        "default",
        name,
        uid=next(_uids),
        containers=tuple(Container(f"c{i}", claims=refs) for i in range(containers)),
        resource_claims=tuple(PodClaim(f"pod-{c}", c) for c in claims),
    )


def gpu(name: str, *requests: str, share_id: str | None = None) -> dra_v1_pb2.Device:
    return dra_v1_pb2.Device(
        pool_name="node-a",
        device_name=name,
        request_names=requests,
        cdi_device_ids=[f"{DRIVER}/gpu=c-{name}"],
        share_id=share_id,
    )


def grant(api: FakeApi, pods: list[PodSpec], *drivers: str) -> None:
    """Allocate every claim of the pods to the drivers."""
    for name in {claim for spec in pods for claim in spec.claim_names()}:
        users = [spec.uid for spec in pods if name in spec.claim_names()]
        api.add_claim(name, f"uid-{name}", users, *(drivers or (DRIVER,)))


async def registered(driver: Driver) -> None:
    """Wait until the driver was told that it is registered."""
    for _ in range(1000 * PATIENCE):
        if driver.statuses and driver.statuses[-1].plugin_registered:
            return
        await asyncio.sleep(0.005)
    raise TimeoutError(f"never registered: {driver.statuses}")


@asynccontextmanager
async def dra_kubelet(**options: object) -> AsyncIterator[tuple[SimKubelet, Driver, FakeApi]]:
    """A kubelet in a directory of its own, a driver that is registered with it, and the claims that it reads."""
    api = FakeApi()
    async with short_dir() as root, running(root, api=api, **options) as kubelet:
        driver = Driver(root)
        async with serving(driver):
            await registered(driver)
            yield kubelet, driver, api
