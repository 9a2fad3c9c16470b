"""Desired lanes: their sources, which one wins, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.config import Config, load
from drabridge.errors import ConfigError, HostError
from drabridge.kube.connection import ClaimsOff
from drabridge.lanes.desired import ANNOTATION_FILE_NAME, FILE_NAME, DesiredLanes
from drabridge.system.io_thread import IoThread
from tests.support.waiting import PATIENCE

CONFIG = load("""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: gpu.example.com
resources:
- name: nvidia.com/gpu
  match: [{subsystem: pci}]
  lanes: {legacy: "*", dra: 1, minLegacy: 1}
- name: example.com/other
  match: [{subsystem: usb}]
- name: example.com/kvm
  match: [{subsystem: misc}]
  replicas: {count: 10}
""")


NO_SERVER: Any = SimpleNamespace(cluster=None, claims_off=None)


class Kept(DesiredLanes):
    """What the Node says is on the disk when ``annotate`` returns."""

    def __init__(self, path: Path, config: Any, changed: Any, api_server: Any = NO_SERVER) -> None:
        super().__init__(path, config, changed, api_server, IoThread("lanes"))

    def annotate(self, text: str | None) -> None:
        super().annotate(text)
        assert self._files.submit(lambda: None).over(PATIENCE)


class Place:
    """A state directory with overrides in it, and a count of changes."""

    def __init__(self, path: Path, config: Config = CONFIG, *, follows_node: bool = False) -> None:
        self.changes = 0
        self.api_server: Any = SimpleNamespace(cluster=follows_node or None, claims_off=None)
        self.desired = Kept(path, lambda: config, self._changed, self.api_server)
        self.resource = config.resource("nvidia.com/gpu")

    def _changed(self) -> None:
        self.changes += 1

    def set(self, **asked: Any) -> dict[str, Any]:
        return asyncio.run(self.desired.set(json.dumps({"resource": "nvidia.com/gpu", **asked}).encode()))

    @property
    def targets(self) -> tuple[int, int]:
        return self.desired.lanes(self.resource).targets(8)


def test_the_configuration_decides_without_command_and_annotation(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.targets == (7, 1)
    assert place.desired.source(place.resource) == "configuration"


def test_what_was_set_survives_a_restart_until_it_is_reset(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.set(legacy=2, dra=6) == {
        "resource": "nvidia.com/gpu",
        "legacy": "2",
        "dra": "6",
        "source": "lanes set",
    }
    assert (place.targets, place.changes) == ((2, 6), 1)
    again = Place(tmp_path)
    assert again.targets == (2, 6)
    again.set(reset=True)
    assert again.targets == (7, 1)
    assert Place(tmp_path).targets == (7, 1)


def test_floors_of_the_configuration_hold_for_every_request(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(ConfigError, match="minLegacy"):
        place.set(legacy=0, dra=8)
    place.set(legacy=1, dra="*")
    assert place.targets == (1, 7)


def test_the_annotation_wins_and_is_named_as_the_source(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.set(legacy=2, dra=6)
    place.desired.annotate('{"nvidia.com/gpu": {"legacy": 4, "dra": 4}}')
    assert (place.targets, place.changes) == ((4, 4), 2)
    with pytest.raises(ConfigError, match=r"gpu\.example\.com/lanes"):
        place.set(legacy=3)
    place.desired.annotate('{"nvidia.com/gpu": {"legacy": 4, "dra": 4}}')  # the watch repeats itself
    assert place.changes == 2
    place.desired.annotate(None)
    assert place.targets == (2, 6)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "3",
        '{"nvidia.com/gpu": 3}',
        '{"nvidia.com/gpu": {}}',
        '{"nvidia.com/gpu": {"both": 3}}',
        '{"nvidia.com/gpu": {"shared": "some"}}',
        '{"nvidia.com/gpu": {"legacy": -1}}',
        '{"nvidia.com/gpu": {"legacy": "lots"}}',
        '{"nvidia.com/gpu": {"legacy": null, "dra": 2}}',
        '{"unknown.example.com/x": {"legacy": 1}}',
    ],
)
def test_a_bad_annotation_leaves_the_last_good_one(tmp_path: Path, text: str) -> None:
    place = Place(tmp_path)
    place.desired.annotate('{"nvidia.com/gpu": {"dra": 4}}')
    place.desired.annotate(text)
    assert place.desired.annotation_error
    assert place.targets == (4, 4)
    place.desired.annotate('{"nvidia.com/gpu": {"dra": 2}}')
    assert place.desired.annotation_error == ""
    assert place.targets == (6, 2)


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b"{}", b'{"resource": "nvidia.com/gpu"}', b'{"resource": "x/y", "dra": 1}']
)
def test_a_bad_command_is_refused_with_what_was_expected(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(ConfigError):
        asyncio.run(Place(tmp_path).desired.set(body))
    assert not (tmp_path / FILE_NAME).exists()


def test_a_damaged_file_is_reported_and_the_configuration_decides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\0\xff")
    place = Place(tmp_path)
    assert place.targets == (7, 1)
    assert "lost" in caplog.text


def test_an_unreadable_file_is_reported_and_the_configuration_decides(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()  # as good as EIO, which nobody can order
    place = Place(tmp_path)
    assert (place.targets, place.desired.uncertain(place.resource)) == ((7, 1), True)


def test_where_an_override_was_lost_nothing_moves_until_it_is_given_again(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"nvidia.com/gpu": {"leg')
    place = Place(tmp_path)
    assert place.desired.uncertain(place.resource)
    assert "lost" in place.desired.notes()[0]
    place.desired.annotate('{"nvidia.com/gpu": {"dra": 2}}')  # which would decide anyway
    assert not place.desired.uncertain(place.resource)
    place.desired.annotate(None)
    assert place.desired.uncertain(place.resource)
    place.set(reset=True)
    assert not place.desired.uncertain(place.resource)


def test_an_override_that_was_lost_is_given_again_for_each_resource(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"nvidia.com/gpu": {"leg')
    Place(tmp_path).set(legacy=2)
    place = Place(tmp_path)
    other = CONFIG.resource("example.com/other")
    assert place.targets == (2, 6)
    assert not place.desired.uncertain(place.resource)
    assert place.desired.uncertain(other)
    (note,) = place.desired.notes()
    assert "of example.com/other, example.com/kvm are lost" in note
    for name in ("example.com/other", "example.com/kvm"):
        asyncio.run(place.desired.set(json.dumps({"resource": name, "reset": True}).encode()))
    assert not place.desired.uncertain(other)
    assert place.desired.notes() == []
    assert Place(tmp_path).targets == (2, 6)


def test_after_a_lost_annotation_nothing_moves_until_the_node_is_read(tmp_path: Path) -> None:
    (tmp_path / ANNOTATION_FILE_NAME).write_bytes(b"{")
    place = Place(tmp_path, follows_node=True)
    place.set(dra=2)  # an annotation would win
    assert place.desired.uncertain(place.resource)
    place.desired.annotate(None)
    assert (place.desired.uncertain(place.resource), place.changes) == (False, 2)
    again = Place(tmp_path, follows_node=True)
    assert not again.desired.uncertain(again.resource)


def test_lanes_that_cannot_be_saved_are_refused_and_change_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    (tmp_path / FILE_NAME).mkdir()  # stands for a disk that is full or broken
    with pytest.raises(HostError, match="nothing is changed"):
        place.set(legacy=2)
    assert (place.targets, place.changes) == ((7, 1), 0)
    (tmp_path / FILE_NAME).rmdir()
    place.set(legacy=2)
    assert Place(tmp_path).targets == (2, 6)


def test_an_annotation_that_could_not_be_saved_is_saved_when_the_node_is_read_again(tmp_path: Path) -> None:
    place = Place(tmp_path, follows_node=True)
    (tmp_path / ANNOTATION_FILE_NAME).mkdir()
    place.desired.annotate('{"nvidia.com/gpu": {"dra": 4}}')
    assert place.targets == (4, 4)
    (tmp_path / ANNOTATION_FILE_NAME).rmdir()
    place.desired.annotate('{"nvidia.com/gpu": {"dra": 4}}')
    assert Place(tmp_path, follows_node=True).targets == (4, 4)


def test_an_annotation_is_judged_again_by_a_changed_configuration(tmp_path: Path) -> None:
    gpu, *others = CONFIG.resources
    config = [replace(CONFIG, resources=tuple(others))]
    desired = Kept(tmp_path, lambda: config[0], lambda: None)
    desired.annotate('{"nvidia.com/gpu": {"dra": 4}}')
    assert "no resource" in desired.annotation_error
    config[0] = CONFIG
    desired.reconfigured()
    assert (desired.source(gpu), desired.annotation_error) == ("annotation", "")


def test_an_annotation_that_is_not_followed_forbids_nothing(tmp_path: Path) -> None:
    config = [CONFIG]
    desired = Kept(tmp_path, lambda: config[0], lambda: None)
    desired.annotate('{"nvidia.com/gpu": {"legacy": 1}}')
    gpu, *others = CONFIG.resources
    raised = replace(gpu, lanes=replace(gpu.lanes, min_legacy=2))
    config[0] = replace(CONFIG, resources=(raised, *others))
    assert desired.source(raised) == "configuration"
    assert asyncio.run(desired.set(b'{"resource": "nvidia.com/gpu", "legacy": 3}'))["source"] == "lanes set"


def test_the_saved_annotation_counts_until_the_node_is_read_again(tmp_path: Path) -> None:
    Place(tmp_path, follows_node=True).desired.annotate('{"nvidia.com/gpu": {"legacy": 2, "dra": 6}}')
    place = Place(tmp_path, follows_node=True)  # another run, and the API server has not answered yet
    assert place.targets == (2, 6)
    assert place.desired.source(place.resource) == "annotation"
    place.desired.reconfigured()
    assert place.targets == (2, 6)
    place.desired.annotate(None)  # it was taken away meanwhile
    assert (place.targets, place.changes) == ((7, 1), 1)
    assert Place(tmp_path, follows_node=True).targets == (7, 1)


def test_without_an_api_server_an_old_annotation_is_not_remembered(tmp_path: Path) -> None:
    Place(tmp_path, follows_node=True).desired.annotate('{"nvidia.com/gpu": {"legacy": 2, "dra": 6}}')
    assert Place(tmp_path).targets == (7, 1)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"nvidia.com/gpu": 3}', '{"nvidia.com/gpu": {"x": 1}}'])
def test_a_damaged_memory_of_the_annotation_asks_for_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / ANNOTATION_FILE_NAME).write_text(content)
    assert Place(tmp_path, follows_node=True).targets == (7, 1)


def test_an_annotation_removed_while_no_agent_ran_does_not_come_back(tmp_path: Path) -> None:
    Place(tmp_path, follows_node=True).desired.annotate('{"nvidia.com/gpu": {"legacy": 2, "dra": 6}}')
    place = Place(tmp_path)  # claims were off at this start; a reload turned them on
    place.desired.annotate(None)
    assert Place(tmp_path, follows_node=True).targets == (7, 1)


def test_floors_raised_later_override_the_desired_lanes_and_this_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = [CONFIG]
    desired = Kept(tmp_path, lambda: config[0], lambda: None)
    asyncio.run(desired.set(b'{"resource": "nvidia.com/gpu", "legacy": 3}'))
    desired.annotate('{"nvidia.com/gpu": {"legacy": "*", "dra": 0}}')
    gpu, *others = CONFIG.resources
    assert (desired.source(gpu), desired.notes()) == ("annotation", [])

    raised = replace(gpu, lanes=replace(gpu.lanes, min_dra=1))
    config[0] = replace(CONFIG, resources=(raised, *others))
    for _ in range(5):  # plans
        assert desired.lanes(raised).targets(8) == (3, 5)
    assert desired.describe(raised) == {"legacy": "3", "dra": "*", "source": "lanes set"}
    (note,) = desired.notes()
    assert note.startswith("the Node's annotation for nvidia.com/gpu is not followed, lanes set decides: ")
    assert "minDra" in note
    assert [record.message for record in caplog.records] == ["lanes cannot be followed"]

    for _ in range(3):  # the Node is seen again and again
        desired.annotate('{"nvidia.com/gpu": {"legacy": "*", "dra": 0}}')
    assert [record.message for record in caplog.records[1:]] == ["the Node's annotation is not followed"]
    assert len(desired.notes()) == 1

    config[0] = CONFIG
    assert desired.source(gpu) == "annotation"
    desired.annotate('{"nvidia.com/gpu": {"legacy": "*", "dra": 0}}')
    assert desired.notes() == []
    config[0] = replace(CONFIG, resources=(raised, *others))
    assert desired.source(raised) == "lanes set"
    assert caplog.records[-1].message == "lanes cannot be followed"  # another time


def test_where_claims_are_not_served_no_device_is_set_aside_for_them(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.api_server.claims_off = ClaimsOff("there is no API server", "give --kubeconfig")
    with pytest.raises(ConfigError, match=r"there is no API server.*--kubeconfig"):
        place.set(legacy=1)  # the rest, which is what the other lane gets, is a share too
    assert not (tmp_path / FILE_NAME).exists()
    assert place.targets == (7, 1)
    other = json.dumps({"resource": "example.com/other", "legacy": "*", "dra": 0}).encode()
    assert asyncio.run(place.desired.set(other))["source"] == "lanes set"


def test_what_was_set_while_claims_were_served_waits_until_they_are_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Place(tmp_path).set(legacy=2, dra=6)
    place = Place(tmp_path)
    place.api_server.claims_off = ClaimsOff("dra.enabled is false", "set dra.enabled: auto")
    assert [place.targets for _ in range(3)] == [(7, 1)] * 3
    assert caplog.text.count("lanes cannot be followed") == 1
    assert place.desired.describe(place.resource)["source"] == "configuration"
    assert "dra.enabled is false" in place.desired.notes()[0]
    place.api_server.claims_off = None
    assert place.targets == (2, 6)
    assert place.desired.notes() == []


def test_an_annotation_that_nobody_follows_any_more_is_forgotten(tmp_path: Path) -> None:
    place = Place(tmp_path, follows_node=True)
    place.desired.annotate('{"nvidia.com/gpu": {"dra": 4}}')
    place.desired.forget_annotation()
    assert (place.targets, place.changes) == ((7, 1), 2)
    place.desired.reconfigured()
    assert place.targets == (7, 1)
    assert Place(tmp_path, follows_node=True).targets == (4, 4)  # until the Node is seen, as after any restart


def test_what_was_wrong_with_an_annotation_is_forgotten_with_it(tmp_path: Path) -> None:
    (tmp_path / ANNOTATION_FILE_NAME).write_bytes(b"{")
    place = Place(tmp_path, follows_node=True)
    place.desired.forget_annotation()
    assert not place.desired.uncertain(place.resource)
    place.desired.annotate(None)  # a reload turned it on again
    assert not Place(tmp_path, follows_node=True).desired.uncertain(place.resource)

    place.desired.annotate("{")
    assert place.desired.notes()
    place.desired.forget_annotation()
    assert place.desired.notes() == []


def test_an_override_gives_no_device_with_replicas_to_claims(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(ConfigError, match="replicas"):
        asyncio.run(place.desired.set(b'{"resource": "example.com/kvm", "dra": 1}'))
    place.desired.annotate('{"example.com/kvm": {"dra": 1}}')
    assert "replicas" in place.desired.annotation_error
