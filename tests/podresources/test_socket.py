"""The socket's file: missing, refused, stale, replaced; and what the message tells a person to do."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podresources import errors
from podresources.socket_path import identify
from tests.podresources.clients import MakeClient, refused
from tests.support.podresources_server import (
    Kubelet,
    container,
    device,
    hangs,
    kubelet,
    listing,
    pod,
    says,
    socket_directory,
)
from tests.support.waiting import HANG_SECONDS, PATIENCE

ONE = says(listing(pod("one", container("c", device("e.com/x", "1")))))
TWO = says(listing(pod("two", container("c", device("e.com/x", "2")))))


async def test_no_kubelet_at_all_is_said_at_once(connect: MakeClient, tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(errors.SocketMissing) as caught:
        await connect(tmp_path / "pod-resources/kubelet.sock").list()
    assert time.monotonic() - started < 1 * PATIENCE
    assert caught.value.fault is errors.FaultParty.NODE
    assert f"nothing below {tmp_path} exists" in str(caught.value)
    assert f"a hostPath volume of {tmp_path}/pod-resources" in str(caught.value)


async def test_a_directory_without_the_socket_points_at_kubelet(connect: MakeClient, tmp_path: Path) -> None:
    with pytest.raises(errors.SocketMissing, match=r"There is no kubelet\.sock") as caught:
        await connect(tmp_path / "kubelet.sock").list()
    assert "systemctl status kubelet" in caught.value.hint


async def test_a_directory_in_the_sockets_place_points_at_the_mount(connect: MakeClient, tmp_path: Path) -> None:
    (tmp_path / "kubelet.sock").mkdir()
    with pytest.raises(errors.SocketMissing, match="is a directory, not a socket"):
        await connect(tmp_path / "kubelet.sock").list()


async def test_a_path_too_long_for_a_socket(connect: MakeClient) -> None:
    with pytest.raises(errors.NodeError, match="takes at most 107"):
        await connect(Path("/tmp") / ("x" * 120)).list()


async def test_a_socket_that_nobody_serves(connect: MakeClient) -> None:
    async with socket_directory() as directory:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(directory / "kubelet.sock"))
        error = await refused(connect(directory / "kubelet.sock"), errors.KubeletUnavailable, 0.3)
        assert "is there, but nobody serves it" in str(error)
        assert "mount the directory" in error.hint


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("closed", ["socket", "directory"])
async def test_without_permission(closed: str) -> None:
    """Another user gets the reason and the remedy, whichever of the two modes stands in the way."""
    async with kubelet({"List": ONE}) as server:
        os.chmod(server.path.parent, 0o700 if closed == "directory" else 0o755)
        os.chmod(server.path, 0o755 if closed == "socket" else 0o777)
        program = "import os, sys; os.setuid(65534); from podresources.cli import main; sys.exit(main(sys.argv[1:]))"
        # Imported before the user changes: a checkout below somebody's home may be closed to others.
        program = "import podresources.cli.query, podresources.sync;" + program
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", program, "list", "--socket", str(server.path)],
            capture_output=True,
            text=True,
            timeout=5 * HANG_SECONDS,
        )
        assert done.returncode == 1, done.stderr
        assert f"User 65534 may not connect to {server.path}" in done.stderr
        assert "Run as root" in done.stderr


async def test_a_replaced_socket_is_dialled_again_by_identity_alone(connect: MakeClient) -> None:
    """The old server lives on, its connection works, and yet the next answer must be the new one's."""
    async with kubelet({"List": ONE}) as old:
        client = connect(old.path)
        assert [found.name for found in (await client.list()).pods] == ["one"]
        new = Kubelet(old.path, {"List": TWO})
        await new.start()
        try:
            assert [found.name for found in (await client.list()).pods] == ["two"]
            assert old.requests == ["List"]
        finally:
            await new.stop()


async def test_a_kubelet_that_restarts_during_a_call(connect: MakeClient) -> None:
    """The call under way is lost with the old kubelet, and repeated on the new one."""
    async with kubelet({"List": hangs}) as old:
        client = connect(old.path)
        call = asyncio.ensure_future(client.list(timeout_seconds=HANG_SECONDS))
        while not old.requests:
            await asyncio.sleep(0.01)
        await old.stop()
        await asyncio.sleep(0.2)
        new = Kubelet(old.path, {"List": TWO})
        await new.start()
        try:
            assert [found.name for found in (await call).pods] == ["two"]
        finally:
            await new.stop()


async def test_an_answer_whose_socket_was_replaced_meanwhile_is_asked_for_again(connect: MakeClient) -> None:
    async with kubelet({}) as old:
        new = Kubelet(old.path, {"List": TWO})

        async def replaced_meanwhile(request: bytes, context: object) -> bytes:
            await new.start()
            return listing(pod("one")).SerializeToString()

        old.answers["List"] = replaced_meanwhile
        try:
            found = await connect(old.path).list()
            assert [each.name for each in found.pods] == ["two"]
            assert found.socket == identify(old.path)
        finally:
            await new.stop()


async def test_a_socket_that_vanishes_is_waited_for_once_it_was_seen(connect: MakeClient) -> None:
    async with kubelet({"List": ONE}) as server:
        client = connect(server.path)
        await client.list()
        await server.stop()
        assert not server.path.exists()
        call = asyncio.ensure_future(client.list(timeout_seconds=HANG_SECONDS))
        await asyncio.sleep(0.3)
        assert not call.done()
        await server.start()
        assert (await call).pods


def test_identity_is_more_than_the_inode_number() -> None:
    """A real restart was seen to use the number again; here a changed mode moves the time of one inode."""
    path = Path("/tmp") / f"prid{os.getpid()}.sock"
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            before = identify(path)
            time.sleep(0.02)  # the clock of file systems ticks every 1 to 10 ms
            path.chmod(0o700)
            after = identify(path)
    finally:
        path.unlink(missing_ok=True)
    assert (before.device, before.inode) == (after.device, after.inode)
    assert before != after


def test_a_read_only_mount_does_not_matter_to_a_socket(tmp_path: Path) -> None:
    """What `access` answers for a socket under a read-only bind mount, in a mount namespace of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    script = (
        "import socket, subprocess, sys\n"
        "from pathlib import Path\n"
        "from podresources.socket_path import identify\n"
        "server = socket.socket(socket.AF_UNIX); server.bind('a/s'); server.listen()\n"
        "subprocess.run(['mount', '--bind', '-o', 'ro', 'a', 'b'], check=True)\n"
        "subprocess.run(['mount', '-o', 'remount,bind,ro', 'b'], check=True)\n"
        "identify(Path('b/s'))\n"
        "socket.socket(socket.AF_UNIX).connect('b/s')\n"
        "print('ok')\n"
    )
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=5 * HANG_SECONDS,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"mount namespaces are not available: {done.stderr.strip()}")
    assert done.stdout == "ok\n", done.stderr
    assert stat.S_ISSOCK((tmp_path / "a/s").stat().st_mode)
