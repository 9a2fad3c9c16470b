"""Registration where the plugin's socket, its path or its directory is lost, taken or unusable."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deviceplugin import BindFailed, RegistrationPhase
from tests.deviceplugin.small_kubelet import BOTH, QUICK, Facts, MiniKubelet, make, running
from tests.support.waiting import until


async def test_our_socket_deleted_under_a_living_kubelet(directory: Path, kubelet: MiniKubelet) -> None:
    server = make(directory)
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        first = server.state.socket
        assert first is not None
        first.unlink()
        await until(lambda: "our socket was removed" in server.state.error)
        await until(lambda: len(kubelet.requests) == 2 and kubelet.health() == BOTH)
        assert server.state.socket != first
        waited = kubelet.registered_at[1] - kubelet.registered_at[0]
        assert waited >= QUICK.backoff_first_seconds
        assert kubelet.most_streams == 1


async def test_our_path_taken_by_something_else(directory: Path, kubelet: MiniKubelet) -> None:
    server = make(directory)
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        stolen = server.state.socket
        assert stolen is not None
        stolen.unlink()
        stolen.write_text("not a socket")
        await until(lambda: len(kubelet.requests) == 2 and kubelet.health() == BOTH)


async def test_the_whole_directory_deleted_and_made_again(directory: Path, kubelet: MiniKubelet) -> None:
    facts = Facts()
    server = make(directory, facts)
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        await kubelet.stop()
        shutil.rmtree(directory)
        await until(lambda: server.state.phase is RegistrationPhase.IDLE)
        assert "does not exist" in server.state.error
        await kubelet.start()
        await until(lambda: kubelet.health() == BOTH, 2)
        # inotify works in the new directory too: no waiting for the poll
        await kubelet.restart()
        await until(lambda: kubelet.health() == BOTH, 2)


async def test_a_regular_file_where_the_directory_should_be(directory: Path) -> None:
    facts = Facts()
    directory.rmdir()
    directory.write_text("oops")
    server = make(directory, facts)
    kubelet = MiniKubelet(directory)
    async with running(server):
        await until(lambda: facts.of(BindFailed))
        assert server.state.phase is RegistrationPhase.IDLE
        assert "is not a directory" in server.state.error
        directory.unlink()
        await kubelet.start()
        await until(lambda: kubelet.health() == BOTH)
    await kubelet.stop()


async def test_a_path_too_long_says_so(directory: Path) -> None:
    deep = directory / ("d" * 80)
    deep.mkdir()
    facts = Facts()
    server = make(deep, facts)
    async with running(server):
        await until(lambda: facts.of(BindFailed))
        assert "107" in server.state.error
        assert str(deep) in server.state.error


async def test_grpc_cannot_bind(directory: Path, kubelet: MiniKubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the checks before cannot foresee: the directory vanishes, the disk is full."""
    monkeypatch.setattr("deviceplugin.listener.check_directory", lambda path: None)
    shutil.rmtree(directory)
    server = make(directory)
    async with running(server):
        await until(lambda: f"cannot serve on {directory}" in server.state.error)
        directory.mkdir()
        await until(lambda: server.state.phase is RegistrationPhase.SERVING)


async def test_without_inotify_polling_does(
    directory: Path, kubelet: MiniKubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.inotify.InotifyEmitter.on_thread_start", exhausted)
    server = make(directory)
    async with running(server):
        await until(lambda: kubelet.health() == BOTH)
        await kubelet.restart()
        await until(lambda: kubelet.health() == BOTH, 3)
