"""The LIST of claims that ends a quarantine, over HTTP: what it says, and when nobody can say."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from drabridge.dra.lifecycle import ClaimSide
from drabridge.kube.client import KubernetesCluster
from drabridge.ledger.events import ClaimDevices, DeviceUse
from drabridge.ledger.model import ClaimRef
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.dra_node import DRIVER, NODE, Claims, add_node
from tests.support.waiting import short_directory


@contextlib.asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[tuple[ClaimSide, SimApiServer]]:
    """The claims' side of an agent without a driver, beside an API server."""
    with short_directory() as root:
        async with SimApiServer(**options) as api:
            add_node(api)
            cluster = KubernetesCluster.from_kubeconfig(api.kubeconfig(root / "kubeconfig"))
            runtime = SimpleNamespace(  # all that is asked of it
                config=SimpleNamespace(driver=DRIVER, dra=SimpleNamespace(pool="")),
                options=SimpleNamespace(node_name=NODE),
                paths=SimpleNamespace(state=root, claim_records=root / "claims"),
                cluster=cluster,
            )
            try:
                yield ClaimSide(runtime, None), api  # type: ignore[arg-type]
            finally:
                cluster.close()


async def test_claims_with_devices_of_this_node_are_listed() -> None:
    async with asking() as (side, api):
        assert await side.allocated() == ()
        claim = Claims(api).add("c", "gpu-1")
        Claims(api).add("elsewhere", {"device": "gpu-1", "pool": "node-b"})
        assert await side.allocated() == (ClaimDevices(ClaimRef(claim.uid, "default", "c"), (DeviceUse("gpu-1"),)),)
        api.faults.partition()
        assert await side.allocated() is None


async def test_where_the_server_has_no_claims_nobody_has_a_device_by_one() -> None:
    async with asking(versions=()) as (side, _):
        assert await side.allocated() == ()


async def test_a_claim_that_cannot_be_understood_may_have_any_device() -> None:
    async with asking() as (side, api):
        Claims(api).add("c", "gpu-1")
        for stored in api.objects.peek("resourceclaims"):  # past its validation
            del stored["status"]["allocation"]["devices"]["results"][0]["device"]
        assert await side.allocated() is None
