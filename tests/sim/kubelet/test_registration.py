"""Register as the real kubelet answers it, and what happens to streams: every row of the observed table."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from drabridge.sim.kubelet.timings import Timings
from tests.sim.kubelet.gpu_pods import gpu_kubelet
from tests.support.kubelet_peers import GPU, Plugin, WatchedPlugin, device, running, serving, short_dir

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


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"resource_name": "gpu"}, 'the ResourceName "gpu" is invalid'),
        ({"resource_name": "kubernetes.io/gpu"}, 'the ResourceName "kubernetes.io/gpu" is invalid'),
        (
            {"version": "v1alpha"},
            'requested API version "v1alpha" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        ({"endpoint": "missing.sock"}, "failed to dial device plugin: context deadline exceeded"),
        ({"endpoint": "../x.sock"}, "failed to dial device plugin: context deadline exceeded"),
    ],
)
async def test_refusals_have_the_observed_texts(changes: dict[str, str], text: str) -> None:
    async with short_dir() as root, running(root, timings=Timings.fast(dial_seconds=0.3)) as kubelet:
        plugin = Plugin(root, "p.sock", FOUR)
        async with serving(plugin):
            assert await refused(plugin, **changes) == text
            assert kubelet.resources == {}


async def test_the_dial_gives_up_after_ten_seconds_by_default() -> None:
    assert Timings().dial_seconds == 10.0
    async with short_dir() as root, running(root, timings=Timings.fast(dial_seconds=0.4)):
        plugin = Plugin(root, "p.sock", FOUR)
        begin = time.monotonic()
        await refused(plugin)
        assert 0.4 <= time.monotonic() - begin < Timings().dial_seconds


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


async def test_a_socket_in_a_sub_directory_works() -> None:
    async with short_dir() as root, running(root) as kubelet:
        (root / "device-plugins" / "sub").mkdir()
        plugin = Plugin(root, "sub/p.sock", FOUR)
        async with serving(plugin):
            await plugin.register(endpoint="sub/p.sock")
            await kubelet.wait_for_resource(GPU, healthy=4)


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


@pytest.mark.parametrize("cause", ["plugin", "connection", "death"])
async def test_a_stream_that_ends_is_never_opened_again(cause: str) -> None:  # DF5, DF6, DF7
    async with gpu_kubelet(FOUR) as (kubelet, plugin):
        match cause:
            case "plugin":
                await plugin.end_streams()
            case "connection":
                await kubelet.drop_stream(GPU)
            case "death":
                await plugin.stop()
        await kubelet.wait_for(lambda: not kubelet.resources[GPU].healthy, what="the devices to go")
        assert kubelet.node_status() == {"capacity": {GPU: 4}, "allocatable": {GPU: 0}}
        await asyncio.sleep(0.2)
        assert len(kubelet.calls.of("ListAndWatch")) == 1


async def test_a_stream_without_a_list_leaves_zeros() -> None:
    async with short_dir() as root, running(root) as kubelet:
        plugin = Plugin(root, "p.sock", [])
        plugin._version = -1  # nothing to send: the stream ends before its first list
        async with serving(plugin):
            await plugin.register()
            assert kubelet.node_status()["capacity"] == {}, "registered, nothing listed yet"
            await kubelet.wait_for(lambda: plugin.streams == 1, what="the stream")
            await plugin.end_streams()
            await kubelet.wait_for(lambda: not kubelet.resources[GPU].registered, what="the end")
            assert kubelet.node_status() == {"capacity": {GPU: 0}, "allocatable": {GPU: 0}}


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


async def test_the_published_node_status_lags() -> None:
    async with short_dir() as root, running(root, timings=Timings.fast(node_status_seconds=5)) as kubelet:
        plugin = Plugin(root, "p.sock", FOUR)
        async with serving(plugin):
            await plugin.register()
            await kubelet.wait_for_resource(GPU, healthy=4, published=False)
            assert kubelet.published_node_status["capacity"] == {}
            await kubelet.wait_for_resource(GPU, healthy=4)
            assert kubelet.published_node_status["capacity"] == {GPU: 4}


async def test_a_device_plugin_may_register_through_the_watcher_and_is_then_forgotten() -> None:
    async with short_dir() as root, running(root) as kubelet:
        plugin = WatchedPlugin(root, "w.sock", FOUR)
        async with serving(plugin):
            await kubelet.wait_for_resource(GPU, healthy=4)
            await kubelet.wait_for(lambda: plugin.statuses, what="the status")
            assert plugin.statuses[0].plugin_registered
            await plugin.end_streams()
            await kubelet.wait_for(lambda: not kubelet.resources[GPU].healthy, what="the devices to go")
            await asyncio.sleep(0.3)
            assert len(kubelet.calls.of("GetInfo")) == 1, "the watcher still takes it for registered"


@pytest.mark.parametrize(
    ("resource", "versions", "text"),
    [("gpu", ["v1beta1"], 'the ResourceName "gpu" is invalid'), (GPU, ["v1alpha"], "is not supported by kubelet")],
)
async def test_the_watcher_tells_a_bad_device_plugin_why(resource: str, versions: list[str], text: str) -> None:
    async with short_dir() as root, running(root) as kubelet:
        plugin = WatchedPlugin(root, "w.sock", FOUR, resource)
        plugin.versions = versions
        async with serving(plugin):
            await kubelet.wait_for(lambda: plugin.statuses, what="the status")
            assert not plugin.statuses[0].plugin_registered
            assert text in plugin.statuses[0].error


async def test_registration_faults_on_demand() -> None:
    async with short_dir() as root, running(root) as kubelet:
        plugin = Plugin(root, "p.sock", FOUR)
        async with serving(plugin):
            kubelet.faults.refuse_register = "no, thank you"
            assert await refused(plugin) == "no, thank you"
            kubelet.faults.refuse_register = ""
            kubelet.faults.hang_dial_back = True
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(plugin.register(), 0.3)
            kubelet.faults.hang_dial_back = False
            await plugin.register()
            await kubelet.wait_for_resource(GPU, healthy=4)


async def test_a_frozen_kubelet_reads_nothing_and_goes_on_later() -> None:
    async with gpu_kubelet(FOUR) as (kubelet, plugin):
        kubelet.freeze()
        await plugin.send([device("d0", "Unhealthy")])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(plugin.register(), 0.2)
        assert len(kubelet.resources[GPU].healthy) == 4
        kubelet.thaw()
        await kubelet.wait_for(lambda: not kubelet.resources[GPU].healthy, what="the list to be read")


async def test_a_slow_consumer_reads_one_list_at_a_time() -> None:
    async with short_dir() as root, running(root) as kubelet:
        plugin = Plugin(root, "p.sock", FOUR)
        kubelet.faults.list_delay_seconds = 0.5
        async with serving(plugin):
            begin = time.monotonic()
            await plugin.register()
            await kubelet.wait_for_resource(GPU, healthy=4, published=False)
            await plugin.send(FOUR[:2])
            await kubelet.wait_for(lambda: len(kubelet.resources[GPU].devices) == 2, what="the second list")
            assert time.monotonic() - begin > 0.5


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
