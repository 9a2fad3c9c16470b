"""Power loss and reboot: what a pod was given is held afterwards, and the ledger is whole."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lab import shelf
from tests.lab.guest import Guest, GuestError

pytestmark = pytest.mark.lab

USB = [device for device in shelf.AT_BOOT if device.driver == "usb-serial"]
SECONDS = 600.0


def _started(guest: Guest, steps: int) -> None:
    """Pods come and go in the guest; returns after so many notes of theirs."""

    def work() -> None:
        try:
            ended = guest.run(["python3", "-m", "tests.lab.inside.held", "run"], seconds=3600)
            guest.notes.append(json.dumps({"ended": ended.out}))
        except GuestError:  # the power went
            pass

    threading.Thread(target=work, daemon=True).start()
    deadline = time.monotonic() + SECONDS
    while len(guest.notes) < steps:
        assert time.monotonic() < deadline, guest.console()[-2000:]
        assert not any("ended" in json.loads(note) for note in guest.notes), guest.notes[-1]
        time.sleep(0.05)


def _holds(notes: list[str]) -> set[str]:
    """The devices that pods have for sure: noted as held, and not as about to be let go."""
    held: set[str] = set()
    for note in map(json.loads, notes):
        held |= {note["held"]} if "held" in note else set()
        held -= {note.get("leaving", "")}
    return held


def _after(guest: Guest) -> dict[str, Any]:
    text = guest.python("tests.lab.inside.held", "held", seconds=SECONDS)
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The folder of a disk that stays from one guest to the next."""
    return tmp_path


@pytest.mark.parametrize("steps", [6, 9])
def test_what_was_given_is_held_after_a_power_loss(disk: Path, steps: int) -> None:
    with Guest(devices=USB, keep=disk) as guest:
        _started(guest, steps)
        boot = guest.run(["cat", "/proc/sys/kernel/random/boot_id"], check=True).out.strip()
        guest.kill()
        held = _holds(guest.notes)
    assert len(held) >= 2
    with Guest(devices=USB, keep=disk) as again:
        found = _after(again)
        checked = again.run("dmesg | grep -i 'EXT4-fs.*recovery complete' | wc -l", check=True)
    assert found["boot"] != boot
    assert {name: found["owners"].get(name) for name in held} == dict.fromkeys(held, "legacy")
    assert not [note for note in found["notes"] if "ledger" in note], found["notes"]
    assert int(checked.out) >= 1, "the disk was in use when the power went"


def test_what_was_given_is_held_after_a_reboot_and_no_device_is_its_neighbour(disk: Path) -> None:
    with Guest(devices=USB, keep=disk) as guest:
        _started(guest, 3)
        guest.shut_down()
        held = _holds(guest.notes)
    late = [device for device in USB if device.name == "radio1"]
    with Guest(devices=[device for device in USB if device not in late], spare=late, keep=disk) as again:
        again.plug("radio1")
        again.run(["udevadm", "settle"], check=True)
        found = _after(again)
    assert {name: found["owners"].get(name) for name in held} == dict.fromkeys(held, "legacy")
    others = {name for name, owner in found["owners"].items() if name not in held and owner == "legacy"}
    assert len(others) <= 1, "but for the pod that came or went when the power went"


def test_a_disk_that_was_bound_for_a_pod_is_its_pods_and_its_drivers_after_a_power_loss(disk: Path) -> None:
    devices = [device for device in shelf.AT_BOOT if device.name == "nvme2"]
    with Guest(devices=devices, keep=disk) as guest:
        work = threading.Thread(target=_until_the_end, args=(guest,), daemon=True)
        work.start()
        deadline = time.monotonic() + SECONDS
        while not guest.notes:
            assert time.monotonic() < deadline, guest.console()[-2000:]
            time.sleep(0.05)
        assert guest.notes[0].startswith("0000:"), guest.notes[0]
        guest.kill()
    with Guest(devices=devices, keep=disk) as again:
        text = again.python("tests.lab.inside.vfio_power", "after", seconds=SECONDS)
    assert json.loads(text.splitlines()[-1]) == {"held": "legacy", "driver": "nvme", "back": True}


def _until_the_end(guest: Guest) -> None:
    with contextlib.suppress(GuestError):  # the power went
        guest.notes.append(guest.run(["python3", "-m", "tests.lab.inside.vfio_power", "run"], seconds=SECONDS).out)
