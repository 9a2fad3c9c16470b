"""Names and ownership of our socket files."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import SocketError, kubelet_process, remove_stale
from deviceplugin.sockets import (
    KUBELET_SOCKET,
    PATH_MAX_BYTES,
    check_directory,
    fresh_path,
    identify_directory,
    identify_socket,
    probe,
    slug,
)
from tests.support.waiting import short_directory


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("example.com/radio", "example.com_radio"),
        ("nvidia.com/mig-1g.5gb", "nvidia.com_mig-1g.5gb"),
        ("nvidia.com/gpu.shared", "nvidia.com_gpu.shared"),
    ],
)
def test_slug_of_usual_names(resource: str, expected: str) -> None:
    assert slug(resource) == expected


@given(st.lists(st.text(max_size=300), min_size=2, max_size=2, unique=True))
def test_slugs_are_safe_and_short_and_differ(names: list[str]) -> None:
    first, second = map(slug, names)
    for name in (first, second):
        assert len(name) <= 40
        assert not set(name) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
    if "_" not in "".join(names):  # never in a valid domain
        assert first != second


def test_the_longest_valid_name_fits_into_kubelets_directory() -> None:
    path = fresh_path(Path("/var/lib/kubelet/device-plugins"), "drabridge", "d" * 240 + ".example/" + "n" * 63)
    assert len(os.fsencode(path)) <= PATH_MAX_BYTES


def test_a_path_too_long_names_path_and_length() -> None:
    with pytest.raises(SocketError, match=r"/x{90}/t-a_b-[0-9a-f]{8}\.sock has 111 bytes, .* at most 107") as caught:
        fresh_path(Path("/" + "x" * 90), "t", "a/b")
    assert "shorter" in caught.value.hint


def test_length_counts_bytes_not_characters() -> None:
    with pytest.raises(SocketError):
        fresh_path(Path("/" + "ü" * 50), "t", "a/b")


def test_a_path_of_107_bytes_can_be_bound(directory: Path) -> None:
    rest = PATH_MAX_BYTES - len(os.fsencode(fresh_path(directory, "t", "a/b"))) - 1
    deep = directory / ("x" * rest)
    deep.mkdir()
    path = fresh_path(deep, "t", "a/b")
    assert len(os.fsencode(path)) == PATH_MAX_BYTES
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def test_fresh_names_differ(directory: Path) -> None:
    assert len({fresh_path(directory, "t", "a/b") for _ in range(100)}) == 100


def test_check_directory_says_what_is_wrong(directory: Path) -> None:
    check_directory(directory)
    (directory / "file").write_text("")
    for path, text in [
        (directory / "missing", "does not exist. kubelet creates it"),
        (directory / "file", "is not a directory"),
        (directory / "file" / "below", "Not a directory"),
    ]:
        with pytest.raises(SocketError, match=text):
            check_directory(path)
    with pytest.raises(SocketError, match=r"read-only file system|no permission|File name too long"):
        check_directory(Path("/proc/self"))


def test_identity(directory: Path) -> None:
    path = directory / "s"
    assert identify_socket(path) is None
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        before = identify_socket(path)
        assert before is not None
        assert probe(path) == 111  # bound, not listening: ECONNREFUSED
        server.listen()
        assert probe(path) == 0
        os.utime(path)
        path.chmod(0o600)
        after = identify_socket(path)
        assert after != before
        assert before.same_file(after)
        assert not before.same_file(None)
    assert identify_directory(path) is None
    path.unlink()
    path.write_text("")
    assert identify_socket(path) is None


def test_a_full_backlog_is_not_taken_for_dead(directory: Path) -> None:
    path = directory / "t-a_b-00000000.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(0)
        waiting = []
        while True:
            client = socket.socket(socket.AF_UNIX)
            waiting.append(client)
            client.setblocking(False)
            if client.connect_ex(str(path)) != 0:
                break
        assert remove_stale(directory, "t") == []
        for client in waiting:
            client.close()
    assert remove_stale(directory, "t") == [path]


def test_stale_sockets_of_every_resource_or_of_one(directory: Path) -> None:
    names = [
        "t-a_b-00000000.sock",
        "t-a_b-c-00000000.sock",
        "t-c_d-00000000.sock",
        "tt-a_b-00000000.sock",
        "kubelet.sock",
    ]
    for name in names:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(directory / name))
    os.symlink(directory / "kubelet.sock", directory / "t-a_b-11111111.sock")
    assert [p.name for p in remove_stale(directory, "t", "a/b")] == ["t-a_b-00000000.sock"]
    assert [p.name for p in remove_stale(directory, "t")] == ["t-a_b-c-00000000.sock", "t-c_d-00000000.sock"]
    assert remove_stale(directory / "missing", "t") == []
    assert (directory / "kubelet.sock").exists()
    assert (directory / "t-a_b-11111111.sock").is_symlink()


def test_a_kubelet_process_is_named_while_it_answers() -> None:
    """Its socket's file stays when it is killed, and a new one with the same inode number is another's."""
    with short_directory() as directory:
        path = directory / KUBELET_SOCKET
        assert kubelet_process(directory) == ""
        names = []
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
                assert kubelet_process(directory) == ""  # nobody listens yet
                server.listen(1)
                names.append(kubelet_process(directory))
                for _ in range(5):  # whoever asks often enough finds the queue full, and knows nothing then
                    assert kubelet_process(directory) in (names[-1], "")
            assert kubelet_process(directory) == ""
            path.unlink()
            time.sleep(0.02)  # the clock of file systems ticks every 1 to 10 ms
        assert "" not in names
        assert len(set(names)) == 2
