"""Names that are remembered, tasks that never end, the metrics table, memory that is given back."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from drabridge.config.loader import load
from drabridge.errors import ConfigError
from drabridge.inventory.identity import KnownIdentities
from drabridge.inventory.identity_store import FILE_NAME, IdentityStore
from drabridge.system import supervise
from drabridge.system.memory import settle
from drabridge.system.paths import Paths
from drabridge.system.port import parse_listen
from drabridge.telemetry import metrics
from drabridge.telemetry.metrics import TABLE, Metrics
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


async def test_a_task_that_fails_or_ends_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "FIRST_SECONDS", 0.001)
    runs: list[int] = []

    async def work() -> None:
        runs.append(1)
        if len(runs) % 2:
            raise ValueError("broken")

    task = asyncio.create_task(supervise.forever("t", work))
    while len(runs) < 4:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_signal_is_not_lost_while_nobody_waits() -> None:
    signal = supervise.WakeUp()
    signal.set()
    assert await signal.wait(1)
    assert not await signal.wait(0.01)


def test_every_metric_follows_the_guidelines() -> None:
    for definition in TABLE.values():
        assert re.fullmatch(r"drabridge_[a-z_]+", definition.full_name)
        assert definition.help.endswith(".")
        assert (definition.kind == "counter") == definition.full_name.endswith("_total")
        assert not {"pod_name", "container_name", "pod_namespace"} & set(definition.labels)


def test_all_gauges_are_there_even_without_samples() -> None:
    page = Metrics(lambda: ()).exposition().decode()
    for definition in TABLE.values():
        assert f"# TYPE {definition.full_name} {definition.kind}" in page
    assert metrics.reference().count("\n") == len(TABLE) + 1


def test_memory_is_given_back_and_the_program_goes_on() -> None:
    assert settle() > 0
    assert sorted([3, 1, 2]) == [1, 2, 3]
    assert settle(Path("/nonexistent")) == 0


@pytest.mark.parametrize(
    ("text", "expected"), [("127.0.0.1:1", ("127.0.0.1", 1)), (":9", ("", 9)), ("[::1]:2", ("::1", 2))]
)
def test_listen_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["9400", "localhost", "a:b", "::1:3", "h:70000", "h:-1"])
def test_bad_listen_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_listen(text)


def test_paths_follow_kubelets_and_long_or_relative_ones_are_refused() -> None:
    paths = Paths.of("gpu.example.com", kubelet=Path("/var/lib/k0s/kubelet"))
    assert paths.state == Path("/var/lib/k0s/kubelet/plugins/gpu.example.com")
    assert Paths.of("d", device_plugins=Path("/x")).kubelet_socket == Path("/x/kubelet.sock")
    with pytest.raises(ConfigError, match="relative"):
        Paths.of("d", cdi=Path("cdi"))
    with pytest.raises(ConfigError, match="107"):
        Paths.of("d", kubelet=Path("/" + "x" * 100))
