"""The file of remembered names: it survives restarts, other versions and damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drabridge.config.loader import load
from drabridge.inventory.identity import KnownIdentities
from drabridge.inventory.identity_store import FILE_NAME, IdentityStore
from tests.support.agent_process import CONFIG
from tests.support.waiting import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "deploy/examples"


class Remembered(IdentityStore):
    """What is written is on the disk when ``save`` returns."""

    def save(self, known: KnownIdentities) -> None:
        super().save(known)
        assert self._files.submit(lambda: None).over(PATIENCE)


def test_names_survive_a_restart_and_are_written_only_when_they_change(tmp_path: Path) -> None:
    a, b = ("example.com/mem", "/sys/a"), ("example.com/former", "/sys/b")
    now, former = load(CONFIG), load(CONFIG.replace("example.com/mem", "example.com/former"))
    first = Remembered(tmp_path)
    assert first.load(now) == KnownIdentities()
    known = KnownIdentities({a: "A", b: "B"}, {"A": now, "B": former})
    first.save(known)
    written = (tmp_path / FILE_NAME).stat().st_mtime_ns
    first.save(known)
    second = Remembered(tmp_path)
    read = second.load(now)
    assert (read.ids, set(read.named_by)) == ({a: "A", b: "B"}, {"A", "B"})
    assert read.named_by["A"] is now, "the same text is not another configuration"
    assert read.named_by["B"].resources == former.resources
    second.save(KnownIdentities({a: "A", b: "B"}, {"A": now, "B": read.named_by["B"]}))
    assert (tmp_path / FILE_NAME).stat().st_mtime_ns == written


def test_the_name_of_a_held_device_is_remembered_when_another_is_in_its_place(tmp_path: Path) -> None:
    now, former = load(CONFIG), load(CONFIG.replace("example.com/mem", "example.com/former"))
    Remembered(tmp_path).save(KnownIdentities({("example.com/mem", "/sys/a"): "A"}, {"A": now, "B": former}))
    read = Remembered(tmp_path).load(now)
    assert read.ids == {("example.com/mem", "/sys/a"): "A"}
    assert read.named_by["B"].resources == former.resources


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configuration_that_named_a_device_is_read_as_it_was(tmp_path: Path, example: Path) -> None:
    config = load(example)
    key = (config.resources[0].name, "/sys/a")
    Remembered(tmp_path).save(KnownIdentities({key: "A"}, {"A": config}))
    assert Remembered(tmp_path).load(load(CONFIG)).named_by["A"].resources == config.resources


def test_names_of_an_earlier_version_and_of_a_later_one_are_taken_over(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"version": 1, "given": [["r/x", "/sys/a", "A"]]}')
    assert Remembered(tmp_path).load(load(CONFIG)) == KnownIdentities({("r/x", "/sys/a"): "A"})
    later = {"given": [["r/x", "/sys/a", "A"]], "namedBy": [{"ids": ["A"], "configuration": {"unknown": 1}}]}
    (tmp_path / FILE_NAME).write_text(json.dumps(later))
    assert Remembered(tmp_path).load(load(CONFIG)) == KnownIdentities({("r/x", "/sys/a"): "A"})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"given": [["a"]]}', '{"given": 3}', "\0"])
def test_lost_names_are_no_reason_to_stop(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    identities = Remembered(tmp_path)
    assert identities.load(load(CONFIG)) == KnownIdentities()
    identities.save(KnownIdentities({("r/x", "/sys/a"): "A"}, {"A": load(CONFIG)}))
    assert json.loads((tmp_path / FILE_NAME).read_text())["given"] == [["r/x", "/sys/a", "A"]]
