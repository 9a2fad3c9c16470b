"""A standby's DRA endpoint forwards calls, lets them wait, or refuses them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from drabridge.dra import standby_relay
from drabridge.dra.sockets import PluginSockets
from drabridge.wire import dra_v1_pb2, dra_v1_pb2_grpc, health_v1_pb2, health_v1_pb2_grpc
from tests.support.active_dra import Active
from tests.support.agent_process import DRIVER
from tests.support.waiting import HANG_SECONDS, short_directory, until


@contextlib.asynccontextmanager
async def relayed(root: Path) -> AsyncIterator[tuple[standby_relay.Relay, Path]]:
    """A relay with its sockets; the path is the one that kubelet would call."""
    made = standby_relay.Relay(root, DRIVER)
    running = asyncio.create_task(made.run())
    plugin = root / "plugins" / DRIVER
    try:
        await until(lambda: list(plugin.glob("dra-*.sock")) and list((root / "plugins_registry").glob("*.sock")), 10)
        (path,) = plugin.glob("dra-*.sock")
        yield made, path
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert not list(plugin.glob("dra-*.sock"))
        assert not list((root / "plugins_registry").glob("*.sock"))


async def prepare(path: Path, uid: str) -> str:
    """The answer about one claim. Raises AioRpcError."""
    async with grpc.aio.insecure_channel(f"unix://{path}") as channel:
        request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[dra_v1_pb2.Claim(uid=uid, name="c", namespace="n")])
        stub = dra_v1_pb2_grpc.DRAPluginStub(channel)
        answer = await stub.NodePrepareResources(request, timeout=HANG_SECONDS)
        return str(answer.claims[uid].error)


@pytest.fixture
def root() -> Iterator[Path]:
    with short_directory() as directory:
        (directory / "plugins" / DRIVER).mkdir(parents=True)
        (directory / "plugins_registry").mkdir()
        yield directory


async def test_a_call_that_is_open_is_answered_before_the_endpoint_may_go(root: Path) -> None:
    """Kubelet cancels its calls to an endpoint that it deregisters."""
    active = Active()
    async with active.served(root), relayed(root) as (made, path):
        asking = asyncio.create_task(prepare(path, "u"))
        await until(lambda: active.asked == ["u"], 10)
        idle = asyncio.create_task(made.idle())
        await asyncio.wait({idle}, timeout=4 * standby_relay.IDLE_SECONDS)
        assert not idle.done()
        active.go.set()
        assert await asking == "by the active one"
        await asyncio.wait_for(idle, HANG_SECONDS)


async def test_a_call_whose_agent_ends_is_made_again_at_the_next_one(root: Path) -> None:
    first, second = Active(), Active()
    second.go.set()
    async with contextlib.AsyncExitStack() as stack:
        async with first.served(root):
            _, path = await stack.enter_async_context(relayed(root))
            asking = asyncio.create_task(prepare(path, "u"))
            await until(lambda: first.asked == ["u"], 10)
        async with second.served(root):
            assert await asking == "by the active one"
            assert second.asked == ["u"]


async def test_health_is_passed_on_from_one_agent_after_the_other_in_one_stream(root: Path) -> None:
    """Kubelet forgets what it knew of the devices' health when its stream ends."""
    async with contextlib.AsyncExitStack() as stack:
        async with Active("a", "b").served(root):
            _, path = await stack.enter_async_context(relayed(root))
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"unix://{path}"))
            stream = health_v1_pb2_grpc.DRAResourceHealthStub(channel).NodeWatchResources(
                health_v1_pb2.NodeWatchResourcesRequest(), timeout=HANG_SECONDS
            )
            assert [await _pool(stream), await _pool(stream)] == ["a", "b"]
        async with Active("c").served(root):
            assert await _pool(stream) == "c"
            stream.cancel()


async def _pool(stream: Any) -> str:
    """The pool of the next report; raises AioRpcError when there is none in time."""
    return str((await stream.read()).devices[0].device.pool_name)


async def test_a_refusal_of_the_agent_is_passed_on_with_its_words(root: Path) -> None:
    active = Active()
    active.go.set()
    async with active.served(root), relayed(root) as (_, path):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await prepare(path, "bad")
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "this one is bad")
        assert active.asked == ["bad"]


async def test_a_call_that_nobody_serves_in_time_is_refused_with_a_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_relay, "WAIT_SECONDS", 0.2)
    active = Active()
    async with contextlib.AsyncExitStack() as stack:
        async with active.served(root):
            _, path = await stack.enter_async_context(relayed(root))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await prepare(path, "u")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "serves claims on this node now; kubelet tries again" in (caught.value.details() or "")


async def test_a_standby_that_cannot_pass_calls_on_is_still_ready(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout waits until it is ready; kubelet repeats the calls for claims."""

    def refused(_: object, __: str) -> tuple[Path, ...]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(PluginSockets, "prepare", refused)
    async with Active().served(root):
        made = standby_relay.Relay(root, DRIVER)
        async with asyncio.timeout(HANG_SECONDS):
            await made.run()
            await made.decided()
