"""``python -m docs.draw_benchmarks`` draws docs/images/benchmarks.svg from the figures that ``make bench`` has kept.

One small chart for each benchmark: its value as a part of its budget, over the runs. A point above the line is over
budget. Runs on another machine than the run before are drawn hollow: only neighbours of one machine can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tests.bench import history

PICTURE = Path(__file__).resolve().parent / "images/benchmarks.svg"
COLUMNS, WIDTH, HEIGHT, GAP, LABEL = 3, 310, 60, 16, 18
MOST_RUNS = 60
TOP = 1.25  # of a budget: what is above it is drawn at the edge

Run = dict[str, Any]


def picture(runs: Sequence[Run]) -> str:
    """Return an SVG that loads nothing and follows the reader's light or dark scheme."""
    shown = runs[-MOST_RUNS:]
    names = list(dict.fromkeys(name for run in reversed(shown) for name in run["figures"]))
    rows = -(-len(names) // COLUMNS)
    width = COLUMNS * (WIDTH + GAP) + GAP
    height = rows * (HEIGHT + LABEL + GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{len(names)} benchmarks over {len(shown)} runs, each as a part of its budget">',
        "<style>text{font:11px ui-monospace,monospace;fill:#57606a}.b{stroke:#cf222e;stroke-dasharray:3 3}"
        ".l{stroke:#0969da;fill:none}.p{fill:#0969da}.o{fill:#fff;stroke:#0969da}.f{fill:none;stroke:#d0d7de}"
        "@media(prefers-color-scheme:dark){text{fill:#8b949e}.l,.o{stroke:#58a6ff}.p{fill:#58a6ff}.o{fill:#0d1117}"
        ".f{stroke:#30363d}.b{stroke:#f85149}}</style>",
    ]
    for index, name in enumerate(names):
        x = GAP + index % COLUMNS * (WIDTH + GAP)
        y = GAP + index // COLUMNS * (HEIGHT + LABEL + GAP)
        parts += _chart(name, shown, x, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _chart(name: str, runs: Sequence[Run], x: int, y: int) -> Iterator[str]:
    top, bottom = y + LABEL, y + LABEL + HEIGHT
    value, budget = next(run["figures"][name] for run in reversed(runs) if name in run["figures"])
    yield f'<text x="{x}" y="{y + 12}">{escape(name)}: {value:g} of {budget:g}</text>'
    yield f'<rect class="f" x="{x}" y="{top}" width="{WIDTH}" height="{HEIGHT}"/>'
    limit = bottom - HEIGHT / TOP
    yield f'<line class="b" x1="{x}" x2="{x + WIDTH}" y1="{limit:.1f}" y2="{limit:.1f}"/>'
    points: list[tuple[float, float, bool]] = []
    before = ""
    for number, run in enumerate(runs):
        if name in run["figures"]:
            at = x + WIDTH * (number + 0.5) / len(runs)
            points.append((at, bottom - HEIGHT * part(name, *run["figures"][name]) / TOP, run["machine"] == before))
        before = run["machine"]
    yield f'<polyline class="l" points="{" ".join(f"{at:.1f},{height:.1f}" for at, height, _ in points)}"/>'
    for at, height, same in points:
        yield f'<circle class="{"p" if same else "o"}" cx="{at:.1f}" cy="{height:.1f}" r="2.5"/>'


def part(name: str, value: float, budget: float) -> float:
    """Return the figure as a part of its budget; for a rate, where more is better, the other way round."""
    if name.endswith("_per_second"):
        value, budget = budget, value
    if not budget:
        return 0.0 if not value else TOP
    return min(TOP, value / budget)


def main() -> None:
    PICTURE.write_text(picture(history.read()), encoding="utf-8")


if __name__ == "__main__":
    main()
