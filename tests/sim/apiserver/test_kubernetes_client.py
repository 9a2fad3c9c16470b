"""The Kubernetes project's own Python client against the simulated server: what it cannot tell from a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drabridge.sim.apiserver.server import SimApiServer
from tests.support.api_client import slice_body
from tests.support.waiting import HANG_SECONDS


@pytest.fixture
async def api() -> AsyncIterator[SimApiServer]:
    async with SimApiServer(tls=True) as server:
        yield server


def dynamic(config: Path, cache: Path) -> Any:
    """A DynamicClient with the stock discoverer (three requests), over TLS with the kubeconfig's authority."""
    from kubernetes import config as loader
    from kubernetes import dynamic as library

    return library.DynamicClient(loader.new_client_from_config(str(config)), cache_file=str(cache))


async def test_crud_apply_and_watch(api: SimApiServer, tmp_path: Path) -> None:
    config = api.kubeconfig(tmp_path / "config", token=api.token("node-a"))

    def work() -> list[Any]:
        from kubernetes import watch

        client = dynamic(config, tmp_path / "cache")
        slices = client.resources.get(api_version="resource.k8s.io/v1", kind="ResourceSlice")
        body = slice_body("s", {"name": "d0", "capacity": {"m": {"value": "1024Mi"}}})
        seen: list[Any] = []
        made = client.server_side_apply(slices, body=body, name="s", field_manager="agent", force_conflicts=True)
        seen.append(made.to_dict()["spec"]["devices"][0]["capacity"]["m"]["value"])
        listed = client.get(slices, field_selector="spec.nodeName=node-a,spec.driver=d.example.com").to_dict()
        seen.append([one["metadata"]["name"] for one in listed["items"]])
        stream = watch.Watch().stream(
            slices.get, serialize=False, resource_version="0", timeout_seconds=1, _request_timeout=(5, 10)
        )
        seen.append([event["type"] for event in stream])
        client.delete(slices, name="s")
        try:
            client.get(slices, name="s")
        except Exception as error:
            seen.append((type(error).__name__, getattr(error, "status", None)))
        claims = client.resources.get(api_version="resource.k8s.io/v1", kind="ResourceClaim")
        seen.append(claims.namespaced)
        return seen

    found = await asyncio.wait_for(asyncio.to_thread(work), HANG_SECONDS)
    assert found == ["1Gi", ["s"], ["ADDED"], ("NotFoundError", 404), True]
    assert {one.user for one in api.requests} == {"system:serviceaccount:kube-system:drabridge"}
