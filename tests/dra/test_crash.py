"""The driver is killed before each step of prepare, unprepare and publishing; the next process recovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from drabridge.dra.sockets import PluginSockets, is_dead
from drabridge.ledger.entries import Owner
from drabridge.sim.apiserver.server import SimApiServer
from drabridge.wire import dra_v1_pb2, dra_v1_pb2_grpc
from tests.dra.crash_child import CONFIG, EXIT_STATUS, FEW, MANY
from tests.support import forks
from tests.support.dra_node import DRIVER, Claims, DraNode, add_node
from tests.support.waiting import PATIENCE, short_directory, until


@contextlib.asynccontextmanager
async def child(root: Path, kubeconfig: Path, phase: str, at: int) -> AsyncIterator[forks.Forked]:
    log = root / "log"
    log.unlink(missing_ok=True)
    process = forks.fork(("-m", "tests.dra.crash_child", str(root), str(kubeconfig), phase, str(at)), log, os.environ)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def call(root: Path, method: str, claim: dra_v1_pb2.Claim) -> Any:
    """One call to the child; None if the child is killed during the call."""
    service = PluginSockets.of(root, DRIVER).service
    for _ in range(1000 * PATIENCE):
        if service.exists() and not is_dead(service):
            break
        await asyncio.sleep(0.01)
    async with grpc.aio.insecure_channel(f"unix://{service}") as channel:
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        request = getattr(dra_v1_pb2, f"{method}Request")(claims=[claim])
        try:
            answer = await getattr(stub, method)(request, timeout=20 * PATIENCE)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise AssertionError((root / "log").read_text()) from error
            return None
        return answer.claims[claim.uid]


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[tuple[Path, SimApiServer, Path]]:
    with short_directory() as root:
        async with SimApiServer() as api:
            add_node(api)
            yield root, api, api.kubeconfig(root / "kubeconfig")


def clear(root: Path) -> None:
    """A node on which the agent never ran."""
    for name in ("plugins", "plugins_registry", "cdi", "boot_id", "steps"):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


async def test_a_crash_at_any_step_of_prepare_loses_nothing_and_gives_nothing_twice() -> None:
    async with world() as (root, api, kubeconfig):
        claims = Claims(api)
        claim = claims.add("cl", "gpu-0", "gpu-1")
        async with child(root, kubeconfig, "prepare", 0):
            expected = await call(root, "NodePrepareResources", claim)
        assert expected.devices
        total = int((root / "steps").read_text())
        assert total >= 10
        for at in range(1, total + 1):
            clear(root)
            async with child(root, kubeconfig, "prepare", at) as process:
                assert await call(root, "NodePrepareResources", claim) is None, f"step {at}"
                assert await process.wait() == EXIT_STATUS
            rival = claims.add(f"rival-{at}", "gpu-1")
            await recovers(DraNode(root, api, CONFIG, FEW), claim, expected, rival)


async def recovers(node: DraNode, claim: dra_v1_pb2.Claim, expected: Any, rival: dra_v1_pb2.Claim) -> None:
    """The next process gives the same answer, refuses other claims, and leaves nothing behind."""
    await node.start()
    try:
        assert (await node.prepare(claim))[claim.uid] == expected
        assert "held by claim default/cl" in await node.refused(rival)
        assert await node.unprepare(claim) == {claim.uid: ""}
        await ends_clean(node)
    finally:
        await node.stop()


async def ends_clean(node: DraNode) -> None:
    assert node.records() == []
    assert node.cdi_files() == []
    assert not list((node.state / "dra-device-metadata").glob("*"))
    assert node.owner("gpu-0") in (Owner.NONE, Owner.DRA_GRANTED)  # the claim is still allocated
    assert not any(held.phase == "prepared" for held in node.ledger_service.ledger.entries["gpu-0"].claims)


async def test_a_crash_at_any_step_of_unprepare_leaves_nothing_behind() -> None:
    async with world() as (root, api, kubeconfig):
        claim = Claims(api).add("cl", "gpu-0", "gpu-1")
        async with child(root, kubeconfig, "unprepare", 0):
            await call(root, "NodePrepareResources", claim)
            assert (await call(root, "NodeUnprepareResources", claim)).error == ""
        total = int((root / "steps").read_text())
        assert total >= 6
        for at in range(1, total + 1):
            clear(root)
            async with child(root, kubeconfig, "unprepare", at) as process:
                assert await call(root, "NodePrepareResources", claim)
                assert await call(root, "NodeUnprepareResources", claim) is None, f"step {at}"
                assert await process.wait() == EXIT_STATUS
            node = DraNode(root, api, CONFIG, FEW)
            await node.start()
            try:
                assert await node.unprepare(claim) == {claim.uid: ""}
                await ends_clean(node)
            finally:
                await node.stop()


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_crash_in_the_middle_of_publishing_is_repaired_at_the_next_start(at: int) -> None:
    """Three slices are written; there is no fourth step."""
    async with world() as (root, api, kubeconfig):
        async with child(root, kubeconfig, "publish", at) as process:
            if at < 4:
                assert await process.wait() == EXIT_STATUS
                assert len(list(api.objects.list("resourceslices"))) == at - 1
            else:
                await until(lambda: len(api.objects.list("resourceslices")) == 3, 10, "slices")
        node = DraNode(root, api, CONFIG, MANY)
        await node.start()
        try:
            await until(lambda: node.driver.state.publisher.published, why="slices")
            assert node.published() == [device.name for device in MANY]
            assert {s["spec"]["pool"]["resourceSliceCount"] for s in node.slices()} == {3}
        finally:
            await node.stop()
