"""The figures that ``make bench`` keeps, and their picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

import pytest

from docs import draw_benchmarks
from tests.bench import history
from tests.bench.core import Result

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
