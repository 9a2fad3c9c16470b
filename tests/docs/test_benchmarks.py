"""The figures that ``make bench`` keeps, and their picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc
from docs import draw_benchmarks
from tests.bench import __main__ as bench
from tests.bench import history
from tests.bench.core import Benchmark, NotHere, Result
from tests.bench.peers import turns
from tests.bench.peers.calls import ALLOCATE, OPTIONS
from tests.cluster.real_bed import WANTED
from tests.support.waiting import short_directory

SVG = "{http://www.w3.org/2000/svg}"


def run(machine: str = "m", **values: float) -> dict[str, object]:
    results = [Result(name, value, "ms", 10.0, value <= 10) for name, value in values.items()]
    found: dict[str, object] = json.loads(history.line_of(results, "c0ffee", machine, datetime(2026, 1, 1, tzinfo=UTC)))
    return found


def test_the_picture_shows_what_was_kept() -> None:
    kept = draw_benchmarks.picture(history.read())
    assert (draw_benchmarks.PICTURE.read_text() if draw_benchmarks.PICTURE.exists() else kept) == kept, (
        "make bench draws"
    )


@pytest.mark.parametrize(
    ("name", "value", "budget", "wanted"),
    [
        ("x_ms", 5, 10, 0.5),
        ("x_ms", 20, 10, 1.25),
        ("steps_per_second", 100, 50, 0.5),
        ("x", 0, 0, 0),
        ("x", 1, 0, 1.25),
    ],
)
def test_a_figure_is_drawn_as_a_part_of_its_budget(name: str, value: float, budget: float, wanted: float) -> None:
    assert draw_benchmarks.part(name, value, budget) == wanted


def test_points_are_above_the_line_where_they_are_over_budget_and_hollow_on_another_machine() -> None:
    drawn = ET.fromstring(draw_benchmarks.picture([run(a=5.0), run(a=12.0), run("n", a=9.0, b=1.0)]))
    (limit, *_) = (float(line.attrib["y1"]) for line in drawn.iter(f"{SVG}line"))
    points = [(float(one.attrib["cy"]), one.attrib["class"]) for one in drawn.iter(f"{SVG}circle")]
    first, over, other, alone = points
    assert first[0] > limit > over[0]
    assert [first[1], over[1], other[1], alone[1]] == ["o", "p", "o", "o"]
    assert [text.text for text in drawn.iter(f"{SVG}text")] == ["a: 9 of 10", "b: 1 of 10"]


def test_what_is_not_committed_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "commit", lambda: "")
    assert not history.append([], tmp_path / "history.jsonl")
    assert not (tmp_path / "history.jsonl").exists()
    monkeypatch.setattr(history, "commit", lambda: "c" * 40)
    assert history.append([Result("a", 1.0, "ms", 2.0, ok=True)], tmp_path / "history.jsonl")
    (kept,) = history.read(tmp_path / "history.jsonl")
    assert kept["figures"] == {"a": [1.0, 2.0]}


def test_what_cannot_be_measured_here_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def not_here() -> float:
        raise NotHere("no such program")

    offered = [Benchmark("a", "x", 1, not_here), Benchmark("b", "x", 1, lambda: 0.5)]
    monkeypatch.setattr(bench, "collect", lambda: offered)
    monkeypatch.setattr(bench, "compile_modules", lambda: None)
    monkeypatch.setattr("sys.argv", ["bench", "--json", str(tmp_path / "numbers")])
    assert bench.main() == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("a ")]
    assert "skipped" in line
    assert line.endswith("no such program")
    assert [one["name"] for one in json.loads((tmp_path / "numbers").read_text())] == ["b"]


def test_without_the_programs_in_go_nothing_is_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in WANTED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(bench, "compile_modules", lambda: None)
    monkeypatch.setattr("sys.argv", ["bench", "ratio_to_go", "pod_start_ratio"])
    assert bench.main() == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [
        [name, "skipped"]
        for name in (
            *("allocate_ratio_to_go", "prepare_ratio_to_go", "unprepare_ratio_to_go"),
            *("pod_start_ratio_limits", "pod_start_ratio_claims"),
        )
    ]


def test_calls_come_in_turns(tmp_path: Path) -> None:
    """Nobody is always first, or always called after the same one; each answer is there with its time."""

    def serve(name: str, order: list[str], path: Path) -> grpc.Server:
        class Plugin(pb_grpc.DevicePluginServicer):
            def Allocate(self, request: pb.AllocateRequest, context: object) -> pb.AllocateResponse:
                order.append(name)
                return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse()])

            def GetDevicePluginOptions(self, request: pb.Empty, context: object) -> pb.DevicePluginOptions:
                return pb.DevicePluginOptions()

        server = grpc.server(ThreadPoolExecutor(1))
        plugin = Plugin()  # type: ignore[abstract]  # nobody makes the other calls
        pb_grpc.add_DevicePluginServicer_to_server(plugin, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        return server

    order: list[str] = []
    with short_directory() as directory:
        sockets = {name: directory / name for name in "ab"}
        servers = [serve(name, order, path) for name, path in sockets.items()]
        message = pb.AllocateRequest().SerializeToString().hex()
        times = turns.main(
            {
                "probe": str(tmp_path / "probe"),
                "pause": 0.0,
                "warm": dict.fromkeys(sockets, OPTIONS),
                "servers": {name: [str(path), ALLOCATE] for name, path in sockets.items()},
                "rounds": [[["a", message], ["b", message]]] * 3,
            }
        )
        for server in servers:
            server.stop(None).wait()
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert {name: len(calls) for name, calls in times.items()} == {"a": 3, "b": 3}
    assert all(seconds > 0 for calls in times.values() for seconds, _ in calls)
