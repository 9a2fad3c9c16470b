"""The LIST of claims that ends a quarantine, over HTTP: its answers, and when there is none."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from drabridge.dra.claim_queries import ClaimQueries
from drabridge.kube.client import KubernetesCluster
from drabridge.ledger.entries import ClaimRef
from drabridge.ledger.events import ClaimDevices, DeviceUse
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.dra_node import DRIVER, NODE, Claims, add_node
from tests.support.waiting import short_directory


@contextlib.asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[tuple[ClaimQueries, SimApiServer]]:
    """The API requests of an agent without a DRA driver."""
    with short_directory() as root:
        async with SimApiServer(**options) as api:
            add_node(api)
            cluster = KubernetesCluster.from_kubeconfig(api.kubeconfig(root / "kubeconfig"))
            connection: Any = SimpleNamespace(cluster=cluster)  # all that is asked of it
            claims: Any = SimpleNamespace(pool=NODE, api_version="")
            try:
                yield ClaimQueries(connection, DRIVER, NODE, claims), api
            finally:
                cluster.close()


async def test_claims_with_devices_of_this_node_are_listed() -> None:
    async with asking() as (queries, api):
        assert await queries.allocated() == ()
        claim = Claims(api).add("c", "gpu-1")
        Claims(api).add("elsewhere", {"device": "gpu-1", "pool": "node-b"})
        assert await queries.allocated() == (ClaimDevices(ClaimRef(claim.uid, "default", "c"), (DeviceUse("gpu-1"),)),)
        api.faults.partition()
        assert await queries.allocated() is None


async def test_where_the_server_has_no_claims_no_device_is_held_by_one() -> None:
    async with asking(versions=()) as (queries, _):
        assert await queries.allocated() == ()


async def test_a_claim_that_cannot_be_understood_may_have_any_device() -> None:
    async with asking() as (queries, api):
        Claims(api).add("c", "gpu-1")
        for stored in api.objects.peek("resourceclaims"):  # past its validation
            del stored["status"]["allocation"]["devices"]["results"][0]["device"]
        assert await queries.allocated() is None
