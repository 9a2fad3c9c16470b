"""Upstream's e2e_node DRA cases (dra_test.go) about connections and sockets, beside the simulated kubelet."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from drabridge.errors import HostError
from drabridge.sim.kubelet.pods import Phase
from tests.dra.kubelet_beside import kubelet_beside, pod, ran, registered
from tests.support.dra_node import DraNode, a_node
from tests.support.waiting import until

ACCEPTED = "03"  # SS_CONNECTED in linux/net.h; a listening socket has 01


def accepted(path: Path) -> set[str]:
    """Inodes of the connections that the listener of a socket has accepted and not closed."""
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    # grpc binds unix:///path as three slashes
    return {row[6] for row in rows if len(row) > 7 and row[7].endswith(f"/{path}") and row[5] == ACCEPTED}


async def ends(node: DraNode, claims: int) -> None:
    await until(lambda: len(node.handled("unprepare")) >= claims, why="unprepare")
    assert node.records() == []


async def test_dr14_dr22_a_driver_that_cannot_listen_has_no_slices_and_serves_once_it_can() -> None:
    """The registration stays. The service's socket is removed and another file is in its place."""
    async with a_node() as node, kubelet_beside(node) as kubelet:
        await registered(node)
        await until(node.published, why="slices")
        server = node.driver._server
        service = server.sockets.service
        service.unlink()
        service.mkdir()
        await server.check()
        writes = node.writes()
        await until(lambda: not node.slices(), why="kubelet's wipe")
        await kubelet.restart()
        since = node.driver.state.registration.since
        await until(lambda: node.driver.state.registration.since > since, why="the next kubelet")
        await registered(node)
        for _ in range(12):  # longer than a wipe is waited for before it is undone
            node.driver.publish()
            await asyncio.sleep(0.05)
        assert node.slices() == []
        assert node.writes() == writes  # no slice was published, not even for a moment
        spec = pod(node, "p", "cl", "gpu-0")
        await kubelet.run_pod(spec)
        assert kubelet.pod_status(spec.uid).phase is Phase.PENDING

        service.rmdir()
        await server.check()

        await kubelet.wait_for(lambda: kubelet.pod_status(spec.uid).phase is Phase.RUNNING, what="the pod")
        node.driver.publish()
        await until(node.published, why="slices again")


async def test_dr22_a_driver_that_can_never_listen_does_not_register() -> None:
    async with a_node(start=False) as node, kubelet_beside(node):
        service = node.root / "plugins" / node.config.driver / "dra.sock"
        service.mkdir(parents=True)
        with pytest.raises(HostError, match="is in the way"):
            await node.start()
        assert list((node.root / "plugins_registry").iterdir()) == []
        assert node.slices() == []


async def test_dr17_all_calls_and_the_health_stream_come_over_one_connection() -> None:
    async with a_node() as node, kubelet_beside(node) as kubelet:
        await registered(node)
        service = node.driver._server.sockets.service
        await until(lambda: accepted(service), why="kubelet's connection")
        seen = accepted(service)
        for index in range(8):
            spec = pod(node, f"p{index}", f"cl{index}", "gpu-0", "gpu-1")
            await ran(kubelet, spec)
            seen |= accepted(service)
            await kubelet.delete_pod(spec.uid)
            node.claims.delete(f"cl{index}")
            seen |= accepted(service)
        assert len(node.handled("prepare")) == len(node.handled("unprepare")) == 8
        assert kubelet.calls.of("NodeWatchResources")
        assert len(seen) == 1


@pytest.mark.parametrize(("version", "gates"), [("1.34", {"ResourceHealthStatus": True}), ("1.36", {}), ("1.37", {})])
async def test_dr25_every_kubelet_gets_the_health_that_it_asks_for(version: str, gates: dict[str, bool]) -> None:
    """Up to 1.36 kubelet opens v1alpha1, later the v1 that we advertise."""
    async with a_node() as node, kubelet_beside(node, version=version, gates=gates) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, spec)
        await kubelet.wait_for(lambda: "'Healthy'" in str(kubelet.allocated_resources_status(spec.uid)), what="health")
        await kubelet.delete_pod(spec.uid)
        await ends(node, 1)


@pytest.mark.parametrize("version", ["1.33", "1.34", "1.35"])
async def test_dr25_a_kubelet_without_the_gate_asks_for_no_health(version: str) -> None:
    async with a_node() as node, kubelet_beside(node, version=version) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, spec)
        assert not kubelet.calls.of("NodeWatchResources")
        await kubelet.delete_pod(spec.uid)
        await ends(node, 1)


async def test_dr25_a_health_service_that_we_do_not_have_is_said_to_be_unimplemented() -> None:
    async with a_node() as node:
        ask: Any = node._channel.unary_stream("/v2.DRAResourceHealth/NodeWatchResources")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(b"").read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert await node.prepared(node.claims.add("cl", "gpu-0"))
