"""``python -m docs.generate`` writes the generated parts of README.md anew; the tests compare."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from drabridge.config import reference
from drabridge.kube import events
from drabridge.telemetry import metrics

README = Path(__file__).resolve().parents[1] / "README.md"

PARTS: dict[str, Callable[[], str]] = {
    "metrics": metrics.reference,
    "events": events.reference,
    "config": reference.reference,
}


def generate(text: str) -> str:
    """The text with every generated part as the code has it now."""
    for name, make in PARTS.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        if end not in text:
            text = text.replace(begin, f"{begin}\n{end}")
        block = f"{begin}\n\n{make().strip()}\n\n{end}"
        start, stop = text.index(begin), text.index(end) + len(end)
        text = text[:start] + block + text[stop:]
    return text


if __name__ == "__main__":
    README.write_text(generate(README.read_text()))
    print(f"wrote {README}", file=sys.stderr)
