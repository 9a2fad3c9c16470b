"""Register as the real kubelet answers it, and what happens to streams: every row of the observed table."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from drabridge.sim.kubelet.timings import Timings
from tests.sim.kubelet.gpu_pods import gpu_kubelet
from tests.support.kubelet_peers import GPU, Plugin, device, running, serving, short_dir

import grpc  # isort: skip
import grpc.aio  # isort: skip

FOUR = [device(f"d{i}") for i in range(4)]


async def refused(plugin: Plugin, **changes: str) -> str:
    """The details of an UNKNOWN answer to Register."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register(**changes)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    return caught.value.details() or ""


async def test_dials_back_and_asks_for_options_before_it_answers() -> None:
    async with short_dir() as root, running(root) as kubelet:
        plugin = Plugin(root, "p.sock", FOUR)
        async with serving(plugin):
            await plugin.register()
            assert plugin.calls[0] == ("GetDevicePluginOptions", [])
            await kubelet.wait_for_resource(GPU, healthy=4)
            assert [name for name, _ in plugin.calls] == ["GetDevicePluginOptions", "ListAndWatch"]
            (register,), (options,) = kubelet.calls.of("Register"), kubelet.calls.of("GetDevicePluginOptions")
            (stream,) = kubelet.calls.of("ListAndWatch")
            assert register.at < options.at < register.at + (register.seconds or 0) <= stream.at


async def test_broken_options_fail_the_registration_and_nothing_follows() -> None:  # DF1
    async with short_dir() as root, running(root) as kubelet:
        plugin = Plugin(root, "p.sock", FOUR)
        plugin.options = None
        async with serving(plugin):
            text = await refused(plugin)
            assert text == ("failed to get device plugin options: rpc error: code = Internal desc = options are broken")
            await asyncio.sleep(0.05)
            assert plugin.calls == [("GetDevicePluginOptions", [])]
            assert kubelet.node_status()["capacity"] == {}


async def test_the_first_of_two_servers_takes_the_second_with_it() -> None:
    async with short_dir() as root, running(root) as kubelet:
        first, second = Plugin(root, "a.sock", FOUR), Plugin(root, "b.sock", FOUR)
        async with serving(first, second):
            await first.register()
            await kubelet.wait_for_resource(GPU, healthy=4)
            await second.register()
            await kubelet.wait_for(lambda: len(kubelet.calls.of("ListAndWatchResponse")) == 2, what="two live streams")
            assert kubelet.resources[GPU].streams == 2
            await first.end_streams()
            await kubelet.wait_for(lambda: kubelet.resources[GPU].streams == 0, what="both streams to end")
            assert kubelet.node_status() == {"capacity": {GPU: 4}, "allocatable": {GPU: 0}}
            await asyncio.sleep(0.2)
            assert second.streams == 0, "the kubelet never reconnects"
            await second.register()
            await kubelet.wait_for_resource(GPU, healthy=4)


async def test_two_servers_may_overlap_from_1_37_on() -> None:
    async with short_dir() as root, running(root, version="1.37") as kubelet:
        first, second = Plugin(root, "a.sock", FOUR), Plugin(root, "b.sock", FOUR)
        async with serving(first, second):
            await first.register()
            await kubelet.wait_for_resource(GPU, healthy=4)
            await second.register()
            await kubelet.wait_for(lambda: len(kubelet.calls.of("ListAndWatchResponse")) == 2, what="two live streams")
            await first.end_streams()
            await kubelet.wait_for(lambda: kubelet.resources[GPU].streams == 1, what="the first stream to end")
            await asyncio.sleep(0.05)
            assert kubelet.node_status()["allocatable"] == {GPU: 4}


async def test_a_failed_second_registration_orphans_the_live_stream() -> None:
    async with short_dir() as root, running(root) as kubelet:
        first, second = Plugin(root, "a.sock", FOUR), Plugin(root, "b.sock", FOUR)
        second.options = None
        async with serving(first, second):
            await first.register()
            await kubelet.wait_for_resource(GPU, healthy=4)
            await refused(second)
            await first.end_streams()
            await kubelet.wait_for(lambda: kubelet.resources[GPU].streams == 0, what="the stream to end")
            assert kubelet.node_status()["allocatable"] == {GPU: 4}, "ghosts: nobody noticed the end"


async def test_capacity_goes_after_the_grace_and_its_key_stays() -> None:
    timings = Timings.fast(endpoint_grace_seconds=300.0)
    async with gpu_kubelet(FOUR, timings=timings) as (kubelet, plugin):
        await plugin.stop()
        await kubelet.wait_for(lambda: not kubelet.resources[GPU].healthy, what="the devices to go")
        assert kubelet.node_status()["capacity"] == {GPU: 4}
        timings.endpoint_grace_seconds = 0.0
        await kubelet.wait_for(lambda: kubelet.node_status()["capacity"] == {GPU: 0}, what="the grace to pass")
        assert kubelet.resources == {}
        assert kubelet.node_status()["allocatable"] == {GPU: 0}


async def test_a_list_beyond_four_mebibytes_kills_the_stream() -> None:
    async with short_dir() as root, running(root) as kubelet:
        plugin = Plugin(root, "p.sock", [device(f"{i:060}") for i in range(70_000)])
        async with serving(plugin):
            await plugin.register()
            await kubelet.wait_for(lambda: kubelet.calls.of("ListAndWatch")[0].error, what="the stream to fail")
            assert "ResourceExhausted" in kubelet.calls.of("ListAndWatch")[0].error
            assert kubelet.node_status()["capacity"] == {GPU: 0}


async def test_the_plugin_directory_may_vanish_under_a_live_stream() -> None:
    async with gpu_kubelet(FOUR) as (kubelet, plugin):
        kubelet.delete_device_plugin_dir()
        await plugin.send(FOUR[:1])
        await kubelet.wait_for_resource(GPU, healthy=1)
        assert not Path(plugin.path).exists()
