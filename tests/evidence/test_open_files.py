"""The open-file probe on this machine's processes, and on a /proc that refuses."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from drabridge.evidence.open_files import OpenDevices, find_open
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.inventory.devices import Device, DeviceNode
from drabridge.ledger.entries import ClaimHold, ClaimPhase, ClaimRef, Entry, Hold, Ledger, LedgerDevice, Owner, PodRef
from drabridge.ledger.events import Observed
from tests.evidence.api_pods import service_of
from tests.support.waiting import PATIENCE, until


def device(name: str, path: str) -> Device:
    number = os.stat(path).st_rdev
    return _device(name, "c", os.major(number), os.minor(number))


def _device(name: str, kind: Literal["c", "b"], major: int, minor: int) -> Device:
    node = DeviceNode(path=f"/dev/{name}", container_path=f"/dev/{name}", kind=kind, major=major, minor=minor)
    return Device(name=name, id=name, resource="example.com/mem", nodes=(node,))


FULL, NULL = device("full", "/dev/full"), device("null", "/dev/null")


def test_an_open_node_is_seen_in_another_process_and_not_when_it_has_ended() -> None:
    if find_open({"full": FULL}).by:
        pytest.skip("some process of this machine has /dev/full open")
    code = "import sys; file = open('/dev/full'); print('open', flush=True); sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin
    assert holder.stdout
    try:
        assert holder.stdout.readline() == "open\n"
        found = find_open({"full": FULL})
        assert f"process {holder.pid} (" in found.by["full"]
        assert found.of("full") is True
    finally:
        holder.communicate()
    after = find_open({"full": FULL})
    assert after.of("full") is (None if after.blind else False)


def test_the_same_number_of_another_kind_is_another_device() -> None:
    with open("/dev/null", "rb"):
        block = _device("b", "b", NULL.nodes[0].major, NULL.nodes[0].minor)
        assert "null" in find_open({"null": NULL}).by
        assert not find_open({"b": block}).by


def test_a_process_that_may_not_be_inspected_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "1" / "fd").mkdir(parents=True)
    (tmp_path / "cpuinfo").write_text("")
    (tmp_path / "2").mkdir()  # ended between two looks: no fd
    assert find_open({"full": FULL}, tmp_path).of("full") is False
    if os.geteuid() == 0:
        pytest.skip("root may look at everything")
    (tmp_path / "1" / "fd").chmod(0)
    found = find_open({"full": FULL}, tmp_path)
    assert found.of("full") is None
    assert "hostPID" in found.blind


def test_open_files_are_inspected_without_asking_their_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a server that does not answer would never let go of who asks (seen with FUSE, whose daemon is silent)."""

    def ask(*_: object, **__: object) -> os.stat_result:
        raise AssertionError("os.stat asks the file system")

    with child_with_null_open(), monkeypatch.context() as patch:
        patch.setattr(os, "stat", ask)
        found = find_open({"null": NULL})
    assert "null" in found.by


def test_links_of_a_descriptor_table_are_followed(tmp_path: Path) -> None:
    table = tmp_path / "7" / "fd"
    table.mkdir(parents=True)
    (table / "0").symlink_to("/dev/full")
    (table / "1").symlink_to("/nowhere")
    (tmp_path / "7" / "comm").write_text("trainer\n")
    assert find_open({"full": FULL}, tmp_path).by == {"full": "process 7 (trainer)"}


@contextlib.contextmanager
def child_with_null_open() -> Iterator[None]:
    child = subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("owner", [Owner.LEGACY, Owner.QUARANTINE, Owner.CONFLICT])
async def test_every_hold_that_may_be_about_to_end_is_looked_at(owner: Owner) -> None:
    claims = (ClaimHold(ClaimRef("uid-c"), ClaimPhase.PREPARED, 0.0),) if owner is Owner.CONFLICT else ()
    held = Entry(LedgerDevice("null", "example.com/mem", ("null",)), owner, hold=Hold(("null",)), claims=claims)
    others = OtherEvidence(
        service_of(Ledger.of([held])), lambda: {"null": NULL}, lambda: frozenset({"example.com/mem"})
    )
    with child_with_null_open():
        assert (await others.enrich(Observed(0.0, 0, listed={}))).opened == {"null": True}


async def test_nothing_is_looked_at_while_kubelet_shows_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks for the answer then: every hold goes on. It would be a look at all held devices in each round."""
    held = Entry(LedgerDevice("null", "example.com/mem", ("null",)), Owner.LEGACY, hold=Hold(("null",)))
    monkeypatch.setattr("drabridge.evidence.other_sources.find_open", lambda devices: pytest.fail("a look"))
    others = OtherEvidence(
        service_of(Ledger.of([held])), lambda: {"null": NULL}, lambda: frozenset({"example.com/mem"})
    )
    assert (await others.enrich(Observed(0.0, 0))).opened is None


async def test_a_process_that_may_not_be_inspected_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Root may look at everything here, so the kernel's refusal is made: for the first process alone."""
    listdir = os.listdir

    def refusing(path: os.PathLike[str]) -> list[str]:
        if Path(path) == Path("/proc/1/fd"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listdir(path)

    others = OtherEvidence(service_of(Ledger()), lambda: {"null": NULL}, lambda: frozenset({"example.com/mem"}))
    monkeypatch.setattr(os, "listdir", refusing)
    with child_with_null_open():
        assert "process" in (await others.in_use({"null"}))["null"]
        assert "hostPID" in others.error
        assert "process" in (await others.in_use({"null"}))["null"]
    assert [record.message for record in caplog.records] == ["open-file probe incomplete"]  # once, not with every round


async def test_a_file_that_hangs_keeps_devices_held_and_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is left to it, and to it alone."""
    answers, begun = threading.Event(), []

    def hanging(devices: dict[str, Device]) -> OpenDevices:
        begun.append(devices)
        answers.wait()
        return OpenDevices({})

    monkeypatch.setattr("drabridge.evidence.other_sources.find_open", hanging)
    monkeypatch.setattr("drabridge.evidence.other_sources.PROBE_SECONDS", 0.1)
    others = OtherEvidence(service_of(Ledger()), lambda: {"full": FULL}, lambda: frozenset({"example.com/mem"}))
    try:
        async with asyncio.timeout(5 * PATIENCE):
            for _ in range(3):
                assert "has not answered" in (await others.in_use({"full"}))["full"]
        assert "has not answered" in others.error
        assert len(begun) == 1
    finally:
        answers.set()
    monkeypatch.setattr("drabridge.evidence.other_sources.PROBE_SECONDS", 60)
    await until(lambda: _sees_nobody(others))
    assert not others.error
    assert len(begun) == 2, "no question waits behind the one that hangs"


async def _sees_nobody(others: OtherEvidence) -> bool:
    return not await others.in_use({"full"})


def forbidden(code: int) -> Callable[..., int]:
    def statx(*_: object) -> int:
        ctypes.set_errno(code)
        return -1

    return statx


@pytest.mark.parametrize("statx", [None, forbidden(errno.ENOSYS), forbidden(errno.EPERM)])
def test_where_statx_cannot_be_had_stat_is_asked(statx: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drabridge.evidence.open_files._statx", statx)
    with open("/dev/full", "wb"):
        assert find_open({"full": FULL}).of("full")


async def test_only_resources_that_ask_for_it_and_only_what_kubelet_does_not_show() -> None:
    held = Entry(LedgerDevice("null", "example.com/mem", ("null",)), Owner.LEGACY, hold=Hold(("null",)))
    ledger = Ledger.of([held])
    seen = Observed(0.0, 0, listed={})
    shown = Observed(0.0, 0, listed={("example.com/mem", "null"): (PodRef("default", "a"),)})
    devices = {"null": NULL}
    with os.fdopen(os.open("/dev/null", os.O_RDONLY)):
        off = OtherEvidence(service_of(ledger), lambda: devices, frozenset)
        assert (await off.enrich(seen)).opened is None
        on = OtherEvidence(service_of(ledger), lambda: devices, lambda: frozenset({"example.com/mem"}))
        assert (await on.enrich(seen)).opened == {"null": True}
        assert (await on.enrich(shown)).opened is None
        assert "process" in (await on.in_use({"null"}))["null"]
        assert await on.in_use({"other"}) == {}
    await asyncio.sleep(0)
