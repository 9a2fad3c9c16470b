"""The lab's own parts, without a guest: what is built, and what it says where something is missing."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab import guest, image, shelf
from tests.lab.inside.found import WHERE
from tests.lab.records import RECORDS


def test_every_device_of_the_shelf_can_be_found_and_has_a_name_and_a_place_of_its_own() -> None:
    devices = [*shelf.AT_BOOT, *shelf.SPARE]
    names = [device.name for device in devices] + [bus["id"] for bus in shelf.BUSES]
    assert len(set(names)) == len(names)
    assert {device.name for device in devices} == set(WHERE)
    assert {name for names in RECORDS.values() for name in names} <= set(WHERE)
    slots = [one["addr"] for one in [*shelf.BUSES, *(device.json for device in devices)] if one.get("bus") == "pcie.0"]
    assert len(set(slots)) == len(slots)
    assert max(int(slot, 16) for slot in slots) < shelf.HARNESS_SLOT


def test_a_machine_without_qemu_is_told_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab", "boot"],
        cwd=image.ROOT,
        env={"PATH": "/nonexistent", "PYTHONPATH": str(image.ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert (
        done.stderr == "lab: the lab needs qemu-system-x86 and util-linux: apt-get install qemu-system-x86 util-linux\n"
    )


def test_an_image_that_was_not_finished_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    image.cache().mkdir(parents=True)
    target = image.cache() / "project-x.img"

    def interrupted() -> None:
        with image.aside(target) as half:
            half.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(image.cache().iterdir()) == []
    with image.aside(target) as half:
        half.write_text("whole")
    assert [path.name for path in image.cache().iterdir()] == ["project-x.img"]


def test_only_the_newest_images_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    image.cache().mkdir(parents=True)
    for number in range(image.KEPT + 2):
        (image.cache() / f"project-{number}.img").write_text("")
    image.forget_old("project-*")
    assert len(list(image.cache().iterdir())) == image.KEPT


def test_a_qemu_that_ends_at_once_is_told_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "qemu-system-x86_64"
    program.write_text("#!/bin/sh\necho no such machine >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(guest, "_qemu", lambda: str(program))
    monkeypatch.setattr(guest, "_swtpm", lambda: None)
    nothing = image.Image(*(tmp_path / name for name in ("k", "i", "r", "p")))
    with pytest.raises(guest.GuestError, match="no such machine"), guest.Guest(nothing):
        pass


def test_options_are_json_that_qemu_reads() -> None:
    for one in (*shelf.BUSES, *(device.json for device in (*shelf.AT_BOOT, *shelf.SPARE))):
        assert json.loads(json.dumps(one))["driver"]


@pytest.mark.parametrize(("lost", "error"), [(2, None), (3, guest.LostBootError)])
def test_a_boot_that_the_emulation_spoils_is_begun_anew_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, lost: int, error: type[Exception] | None
) -> None:
    boots = 0

    def start(self: guest.Guest) -> None:
        nonlocal boots
        boots += 1
        if boots <= lost:
            raise guest.LostBootError("lost")

    monkeypatch.setattr(guest, "needs", list)
    monkeypatch.setattr(guest.Guest, "_start", start)
    image_of_none: Any = object()
    with pytest.raises(error) if error else contextlib.nullcontext(), guest.Guest(image_of_none, devices=[], spare=[]):
        pass
    assert boots == 3
