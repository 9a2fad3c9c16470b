"""The CDI files of other programs in real directories: followed, whatever is done to them and whatever they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from drabridge.errors import HostError
from drabridge.inventory import cdi_index
from drabridge.inventory.cdi_file import FILE_BYTES_MAX
from drabridge.inventory.cdi_index import CdiIndex
from tests.support.cdi_files import KIND, write_spec
from tests.support.waiting import HANG_SECONDS, until

A, B = f"{KIND}=a", f"{KIND}=b"
DRIVER = "gpu.example.com"


class Followed:
    """An index of two directories, with the number of changes that it told of."""

    def __init__(self, root: Path) -> None:
        self.etc, self.run = root / "etc", root / "run"
        self.etc.mkdir()
        self.run.mkdir()
        self.changes = 0
        self.index = CdiIndex((self.etc, self.run), DRIVER, self._changed)

    def _changed(self) -> None:
        self.changes += 1

    @property
    def names(self) -> set[str]:
        return set(self.index.current.places)

    async def until(self, *names: str) -> None:
        await until(lambda: self.names == set(names), why=lambda: f"{names}; there are {self.index.current}")


@contextlib.asynccontextmanager
async def following(root: Path, *kinds: str) -> AsyncIterator[Followed]:
    followed = Followed(root)
    await followed.index.use(frozenset(kinds or (KIND,)))
    task = asyncio.create_task(followed.index.run())
    try:
        yield followed
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_index, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(cdi_index, "AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(cdi_index, "SETTLE_SECONDS", 0.3)


async def test_what_is_there_is_known_at_once(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    write_spec(tmp_path / "etc/nvidia.yaml", "a", "b")
    index = CdiIndex((tmp_path / "etc", tmp_path / "none"), DRIVER, lambda: None)
    await index.use(frozenset({KIND}))
    assert set(index.current.places) == {A, B}
    await index.use(frozenset({"other.com/thing"}))
    await index.use(frozenset({KIND}))
    assert set(index.current.places) == {A, B}


async def test_files_are_followed(tmp_path: Path) -> None:
    async with following(tmp_path) as followed:
        path = followed.etc / "nvidia.yaml"
        write_spec(path, "a")
        await followed.until(A)
        write_spec(path, "a", "b")  # by rename, as nvidia-ctk does
        await followed.until(A, B)
        path.write_text(path.read_text().replace('"a"', '"c"'))  # in place, as a shell's > does
        await followed.until(B, f"{KIND}=c")
        path.unlink()
        await followed.until()
        write_spec(followed.run / "nvidia.json", "a")
        await followed.until(A)
        write_spec(followed.run / "again.json", "a")  # a conflict
        await followed.until()
        assert "remove one of them" in followed.index.current.missing(A)
        (followed.run / "again.json").unlink()
        await followed.until(A)
        (followed.run / "nvidia.json").rename(followed.run / "nvidia.off")
        await followed.until()


async def test_a_file_that_is_removed_and_written_anew_was_never_away(tmp_path: Path) -> None:
    async with following(tmp_path) as followed:
        path = followed.etc / "nvidia.yaml"
        write_spec(path, "a")
        await followed.until(A)
        changes = followed.changes
        path.unlink()
        await asyncio.sleep(0.1)
        path.write_bytes(b"cdiVersion: 0.5.0\nki")  # torn
        await asyncio.sleep(0.1)
        write_spec(path, "a")
        await asyncio.sleep(0.6)
        assert followed.names == {A}
        assert followed.changes <= changes + 2  # the torn one was said, and no name was lost


async def test_a_name_is_confirmed_by_the_file_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_index, "LOOK_SECONDS", 3600.0)
    async with following(tmp_path) as followed:
        path = followed.etc / "nvidia.yaml"
        write_spec(path, "a")
        await followed.index.confirm([A])  # nobody had looked since
        write_spec(path, "b")
        await followed.index.confirm([B])
        with pytest.raises(HostError, match=f"CDI device {A} is in no file of .*etc, .*run.*nvidia-ctk cdi generate"):
            await followed.index.confirm([B, A])
        path.unlink()
        asyncio.get_running_loop().call_later(0.15, write_spec, path, "b")
        await followed.index.confirm([B])  # it was on its way
        path.unlink()
        with pytest.raises(HostError, match=B):
            await followed.index.confirm([B])


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(FILE_BYTES_MAX * 1000)


BAD: dict[str, Any] = {
    "a FIFO": a_fifo,
    "a socket": a_socket,
    "a directory": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere"),
    "huge": huge,
    "torn": lambda path: path.write_bytes(b"cdiVersion: 0.5.0\ndevices: [{na"),
    "empty": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(os.urandom(4096)),
    "deep": lambda path: path.write_bytes(b"[" * 1_000_000),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_file_costs_only_its_own_names_and_is_said_once(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(tmp_path) as followed:
        write_spec(followed.etc / "good.yaml", "a")
        BAD[what](followed.etc / "bad.yaml")
        write_spec(followed.run / "good.json", "b")
        with caplog.at_level(logging.ERROR):
            await followed.until(A, B)
            await asyncio.sleep(0.3)
        assert len([one for one in caplog.records if "bad.yaml" in str(getattr(one, "object", ""))]) <= 1
        said = "bad.yaml" in followed.index.current.missing(f"{KIND}=c")
        assert said == (what not in ("a link to nowhere"))
        path = followed.etc / "bad.yaml"
        path.rmdir() if path.is_dir() else path.unlink()
        write_spec(path, "c")
        await followed.until(A, B, f"{KIND}=c")


@pytest.mark.parametrize("what", ["a FIFO", "a socket", "a device", "a directory"])
async def test_only_regular_files_are_opened(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a FIFO lets its writer go on, and opening a device may act on it."""
    opened: list[str] = []
    really = os.open

    def noted(path: Any, *more: Any, **named: Any) -> int:
        opened.append(str(path))
        return really(path, *more, **named)

    monkeypatch.setattr(os, "open", noted)
    BAD[what](tmp_path / "bad.yaml")
    write_spec(tmp_path / "good.yaml", "a")
    index = CdiIndex((tmp_path,), DRIVER, lambda: None)
    await index.use(frozenset({KIND}))
    assert str(tmp_path / "good.yaml") in opened
    assert str(tmp_path / "bad.yaml") not in opened


async def test_links_are_followed_as_runtimes_do(tmp_path: Path) -> None:
    async with following(tmp_path) as followed:
        write_spec(tmp_path / "v1", "a")
        write_spec(tmp_path / "v2", "b")
        (followed.etc / "nvidia.yaml").symlink_to(tmp_path / "v1")
        await followed.until(A)
        (followed.etc / "new").symlink_to(tmp_path / "v2")
        (followed.etc / "new").rename(followed.etc / "nvidia.yaml")
        await followed.until(B)


async def test_thousands_of_files_are_looked_at_beside_the_loop(tmp_path: Path) -> None:
    async with following(tmp_path) as followed:
        for number in range(cdi_index.FILES_MAX + 100):
            (followed.run / f"x{number:05}.json").write_text(
                json.dumps({"cdiVersion": "0.5.0", "kind": "other.com/x", "devices": []})
            )
        write_spec(followed.run / "a.json", "a")
        for number in range(100):
            (followed.run / f"{DRIVER}-device-claim-{number}.json").write_text("{")  # our own, not read
        await followed.until(A)
        assert "of which the first 4096 are read" in " ".join(followed.index.current.unusable)
        assert DRIVER not in str(followed.index.current.unusable)


async def test_the_loop_goes_on_while_a_large_file_is_read(tmp_path: Path) -> None:
    async with following(tmp_path) as followed:
        lines = "".join(f"  - path: /dev/x{n}\n" for n in range(100_000))
        text = f"cdiVersion: 0.5.0\nkind: {KIND}\nx:\n{lines}devices:\n- name: a\n  containerEdits: {{env: [A=1]}}\n"
        (followed.etc / "nvidia.yaml").write_text(text)
        turns, deadline = 0, time.monotonic() + HANG_SECONDS
        while not followed.names and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
            turns += 1
        assert followed.names == {A}
        assert turns > 20  # while it was read: it takes a quarter of a second


async def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_index, "FIRST_SECONDS", 0.1)
    monkeypatch.setattr(cdi_index, "HANGS_SECONDS", 0.1)
    (tmp_path / "etc").mkdir()
    write_spec(tmp_path / "etc/nvidia.yaml", "a")
    gate = asyncio.Event()
    loop, listdir = asyncio.get_running_loop(), os.listdir

    def hangs(path: str) -> list[str]:
        asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()
        return listdir(path)

    monkeypatch.setattr(os, "listdir", hangs)
    index = CdiIndex((tmp_path / "etc",), DRIVER, lambda: None)
    await index.use(frozenset({KIND}))
    assert "could not be read within" in index.current.missing(A)
    with pytest.raises(HostError, match="could not be read within"):
        await index.confirm([A])
    task = asyncio.create_task(index.run())
    gate.set()
    await until(lambda: set(index.current.places) == {A}, why="the disk's answer")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
