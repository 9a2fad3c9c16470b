"""Registration survives restarts, lost sockets and lost directories, in any order.

Numbers are those of the upstream e2e_node cases (DP: device_plugin_test.go, DF: device_plugin_failures_test.go) as
far as a plugin sees them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from pathlib import Path

import grpc.aio
import pytest
from msgspec.structs import replace

from deviceplugin import PluginServer, Registered, RegisterFailed, RegistrationPhase, Watcher
from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc
from tests.deviceplugin.small_kubelet import (
    BOTH,
    DEVICES,
    IMPATIENT,
    QUICK,
    RESOURCE,
    Facts,
    ListPlugin,
    MiniKubelet,
    make,
    running,
    sockets_in,
)
from tests.support.waiting import PATIENCE, until


async def test_dp1_registers_by_itself_and_sends_the_list(directory: Path, kubelet: MiniKubelet) -> None:
    server = make(directory)
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        await server.wait_sent(1)
        state = server.state
        assert (state.phase, state.registered, state.error, state.streams) == (RegistrationPhase.ACTIVE, True, "", 1)
        assert (state.published_version, state.sent_version, state.registrations) == (1, 1, 1)
        assert state.socket is not None
        assert state.socket.stat().st_mode & 0o777 == 0o600
        request = kubelet.requests[0]
        assert (request.version, request.endpoint, request.resource_name) == ("v1beta1", state.socket.name, RESOURCE)
    assert sockets_in(directory) == []
    await until(lambda: RESOURCE not in kubelet.clients)
    assert not server.state.registered


async def test_dp5_dp9_kubelet_restarts(directory: Path, kubelet: MiniKubelet) -> None:
    server = make(directory)
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        for round_ in range(2, 6):
            await kubelet.restart()
            await until(lambda: kubelet.health() == BOTH)
            await asyncio.sleep(0.3)  # a late event, or a second registration, would come now
            assert len(kubelet.requests) == round_
        assert kubelet.most_streams == 1
        assert len(sockets_in(directory)) == 1


async def test_restart_is_seen_when_the_inode_number_is_used_again(directory: Path) -> None:
    """As observed on 1.36.2; file systems hand the number out again when they like, so it is tried a few times."""
    kubelet = MiniKubelet(directory)
    await kubelet.start()
    server = make(directory)
    same = 0
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        for _ in range(10):
            inode = kubelet.socket.stat().st_ino
            await kubelet.restart()
            same += kubelet.socket.stat().st_ino == inode
            await until(lambda: kubelet.health() == BOTH)
    await kubelet.stop()
    if not same:
        pytest.skip("this file system never used an inode number again")


async def test_reregistration_does_not_wait_for_the_poll(directory: Path, kubelet: MiniKubelet) -> None:
    """From the start of a new kubelet to Register received: running pods can die of every 100 ms. How quick it is, and
    the worst of 20 restarts, is the benchmark's to say.
    """
    server = make(directory)
    taken = []
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        for _ in range(20):
            await kubelet.stop()
            await asyncio.sleep(0.02)
            seen = len(kubelet.registered_at)
            started = time.monotonic()
            await kubelet.start()
            await until(lambda: kubelet.health() == BOTH)
            taken.append(kubelet.registered_at[seen] - started)
    assert max(taken) < QUICK.poll_seconds / 2, [round(seconds, 4) for seconds in taken]


async def test_two_quick_restarts_end_registered_once(directory: Path, kubelet: MiniKubelet) -> None:
    server = make(directory)
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        await kubelet.restart()
        await kubelet.restart()
        await until(lambda: kubelet.health() == BOTH)
        await asyncio.sleep(0.5)
        assert kubelet.health() == BOTH
        assert kubelet.most_streams == 1


async def test_registration_waits_for_a_kubelet_that_is_absent_at_start(directory: Path) -> None:
    server = make(directory)
    kubelet = MiniKubelet(directory)
    async with running(server):
        await until(lambda: server.state.phase is RegistrationPhase.SERVING)
        assert "kubelet.sock does not exist" in server.state.error
        await kubelet.start()
        await until(lambda: kubelet.health() == BOTH)
        assert kubelet.most_streams == 1
    await kubelet.stop()


async def test_a_dead_kubelets_socket_file(directory: Path) -> None:
    """kubelet leaves kubelet.sock behind: refused until the next one binds; neither an error nor a busy loop."""
    facts = Facts()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "kubelet.sock"))
    server = make(directory, facts)
    kubelet = MiniKubelet(directory)
    async with running(server):
        await until(lambda: server.state.phase is RegistrationPhase.REFUSED)
        assert "Connection refused" in server.state.error
        started = time.monotonic()
        await asyncio.sleep(0.5)
        attempts = len(facts.of(RegisterFailed))
        assert attempts <= 1 + (time.monotonic() - started) / QUICK.refused_seconds * 1.5
        await kubelet.start()
        await until(lambda: kubelet.health() == BOTH)
    await kubelet.stop()


async def test_kubelet_socket_that_listens_a_little_later(directory: Path) -> None:
    """CREATE is seen at bind(), the socket accepts from listen()."""
    server = make(directory)
    async with running(server):
        await until(lambda: server.state.phase is RegistrationPhase.SERVING)
        with socket.socket(socket.AF_UNIX) as kubelet:
            kubelet.bind(str(directory / "kubelet.sock"))
            await until(lambda: server.state.phase is RegistrationPhase.REFUSED)
            kubelet.listen()
            kubelet.setblocking(False)
            started = time.monotonic()
            connection, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(kubelet), 1 * PATIENCE)
            connection.close()
            assert time.monotonic() - started < QUICK.poll_seconds / 2  # the benchmark holds the budget


async def test_a_refused_registration_is_tried_again_with_back_off(directory: Path, kubelet: MiniKubelet) -> None:
    facts = Facts()
    kubelet.refuse = 'the ResourceName "radio" is invalid'
    server = make(directory, facts)
    async with running(server):
        await until(lambda: len(kubelet.requests) >= 3)
        assert server.state.phase in (RegistrationPhase.BACKOFF, RegistrationPhase.REGISTERING)
        assert 'the ResourceName "radio" is invalid' in server.state.error
        assert facts.of(RegisterFailed)[0].code == "UNKNOWN"
        first, second, third = kubelet.registered_at[:3]
        assert second - first >= QUICK.backoff_first_seconds
        assert third - second >= 1.5 * QUICK.backoff_first_seconds
        kubelet.refuse = ""
        await until(lambda: kubelet.health() == BOTH)
        assert server.state.error == ""


async def test_df5_no_stream_after_register(directory: Path, kubelet: MiniKubelet) -> None:
    kubelet.ignore = True
    server = make(directory, timeouts=IMPATIENT)
    async with running(server):
        await until(lambda: server.state.phase is RegistrationPhase.WAIT_STREAM)
        assert not server.state.registered
        await until(lambda: server.state.phase is RegistrationPhase.BACKOFF)
        assert "read no list within 0.3 s" in server.state.error
        await until(lambda: len(kubelet.requests) >= 2)
        kubelet.ignore = False
        await until(lambda: kubelet.health() == BOTH)


async def test_df6_stream_lost_after_the_list(directory: Path, kubelet: MiniKubelet) -> None:
    kubelet.lose = 3
    server = make(directory)
    async with running(server):
        await until(lambda: len(kubelet.requests) == 4 and kubelet.health() == BOTH)
        gaps = [b - a for a, b in zip(kubelet.registered_at, kubelet.registered_at[1:], strict=False)]
        assert min(gaps) >= QUICK.backoff_first_seconds
        assert kubelet.most_streams == 1


async def test_a_strangers_stream_is_ended_before_registering(directory: Path) -> None:
    """Somebody with a gRPC shell reads the list before kubelet is there: it must not be taken for kubelet's."""
    server = make(directory)
    kubelet = MiniKubelet(directory)
    async with running(server):
        await until(lambda: server.state.phase is RegistrationPhase.SERVING)
        async with grpc.aio.insecure_channel(f"unix:{server.state.socket}") as channel:
            stub: pb_grpc.DevicePluginAsyncStub = pb_grpc.DevicePluginStub(channel)
            call = stub.ListAndWatch(pb.Empty())
            first = await call.read()
            assert isinstance(first, pb.ListAndWatchResponse)
            assert len(first.devices) == 2
            assert not server.state.registered
            assert server.sent_version == 0
            await kubelet.start(wipe=False)
            await until(lambda: kubelet.health() == BOTH)
            assert await asyncio.wait_for(call.read(), 1 * PATIENCE) is grpc.aio.EOF
            assert server.state.streams == 1
    await kubelet.stop()


async def test_df7_stopping_ends_the_stream_and_leaves_nothing(directory: Path, kubelet: MiniKubelet) -> None:
    server = make(directory)
    task = asyncio.create_task(server.run())
    await until(lambda: kubelet.health() == BOTH)
    started = time.monotonic()
    await server.stop(grace_seconds=60.0)
    assert time.monotonic() - started < 30, "the stream used up the grace"
    await task
    assert sockets_in(directory) == []
    assert len(kubelet.requests) == 1  # DP13: nothing registers again


async def test_cancelling_cleans_up(directory: Path, kubelet: MiniKubelet) -> None:
    task = asyncio.create_task(make(directory).run())
    await until(lambda: kubelet.health() == BOTH)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sockets_in(directory) == []


@pytest.mark.parametrize("turns", range(3))  # of the loop, which a start takes
async def test_cancelling_while_the_socket_is_bound_cleans_up(
    turns: int, directory: Path, kubelet: MiniKubelet, caplog: pytest.LogCaptureFixture
) -> None:
    """Half-way through its start a gRPC server can be neither cancelled nor stopped."""
    before = sockets_in(directory)
    task = asyncio.create_task(make(directory).run())
    while sockets_in(directory) == before:
        await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.1)
    gc.collect()  # what nobody fetched is said now
    assert sockets_in(directory) == before
    assert not [record.message for record in caplog.records if record.name == "asyncio"]


async def test_dp8_a_new_instance_after_a_kill(directory: Path, kubelet: MiniKubelet) -> None:
    """What the killed one left behind goes; what belongs to others stays."""
    for name in (
        "t-example.com_radio-0123abcd.sock",
        "u-example.com_radio-0123abcd.sock",
        "t-other.com_x-0123abcd.sock",
    ):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(directory / name))
    (directory / "t-example.com_radio-89abcdef.sock").write_text("a regular file")
    (directory / "kubelet_internal_checkpoint").write_text("{}")
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(directory / "t-example.com_radio-00000000.sock"))
        alive.listen()
        server = make(directory)
        async with running(server):
            await until(lambda: kubelet.health() == BOTH)
            assert server.state.socket is not None
            assert {e.name for e in os.scandir(directory)} == {
                "kubelet.sock",
                "kubelet_internal_checkpoint",
                "u-example.com_radio-0123abcd.sock",
                "t-other.com_x-0123abcd.sock",
                "t-example.com_radio-89abcdef.sock",
                "t-example.com_radio-00000000.sock",
                server.state.socket.name,
            }


async def test_a_touched_kubelet_socket_keeps_the_stream(directory: Path, kubelet: MiniKubelet) -> None:
    server = make(directory, timeouts=replace(QUICK, poll_seconds=0.05))  # inotify is not asked about attributes
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        kubelet.socket.chmod(0o700)  # another ctime, the same kubelet
        await until(lambda: server.state.phase is RegistrationPhase.SETTLING)
        await until(lambda: server.state.phase is RegistrationPhase.ACTIVE)
        assert len(kubelet.requests) == 1


async def test_many_resources_share_a_watcher(directory: Path, kubelet: MiniKubelet) -> None:
    watcher = Watcher()
    servers = [
        PluginServer(
            ListPlugin(*DEVICES, resource=f"example.com/r{i}"),
            directory=directory,
            name="t",
            timeouts=QUICK,
            watcher=watcher,
        )
        for i in range(5)
    ]
    tasks = [asyncio.create_task(server.run()) for server in servers]
    await until(lambda: len(kubelet.clients) == 5)
    await kubelet.restart()
    await until(lambda: len(kubelet.clients) == 5)
    await asyncio.gather(*(server.stop() for server in servers))
    await asyncio.gather(*tasks)
    assert sockets_in(directory) == []


async def test_no_list_no_registration(directory: Path, kubelet: MiniKubelet) -> None:
    """Before the inventory knows anything, kubelet must not count zero devices."""
    plugin = ListPlugin()
    plugin.list = type(plugin.list)()
    server = PluginServer(plugin, directory=directory, name="t", timeouts=QUICK)
    async with running(server):
        await until(lambda: "no list" in server.state.error)
        await asyncio.sleep(0.2)
        assert kubelet.requests == []
        plugin.list.publish(DEVICES)
        await until(lambda: kubelet.health() == BOTH)


async def test_an_observer_that_fails_harms_nothing(directory: Path, kubelet: MiniKubelet) -> None:
    class Broken(Facts):
        def observe(self, fact: object) -> None:
            raise RuntimeError("boom")

    server = make(directory, Broken())
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)


async def test_facts_tell_the_story(directory: Path, kubelet: MiniKubelet) -> None:
    facts = Facts()
    async with running(make(directory, facts)):
        await until(lambda: kubelet.health() == BOTH)
    names = [type(fact).__name__ for fact in facts.seen if type(fact).__name__ != "PhaseChanged"]
    assert sorted(names) == sorted(["KubeletSeen", "Bound", "Registered", "StreamOpened", "ListSent", "StreamEnded"])
    assert facts.of(Registered)[0].resource == RESOURCE
