"""Print for the commands: formats, notes on stderr, the terminal's width."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from podresources.features import KubeletFeatures

if TYPE_CHECKING:
    from prometheus_client.core import Metric


def width() -> int | None:
    """Return the characters per line of a terminal; None in a pipe, where nothing may be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def dump(document: dict[str, Any], output: str, *, one_line: bool = False) -> str:
    """Encode the document as ``json`` or ``yaml``; ``one_line`` is for streams."""
    if output == "json":
        return json.dumps(document, indent=None if one_line else 2)
    import yaml

    return yaml.safe_dump(document, sort_keys=False).rstrip()


def exposition(metrics: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Once(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from metrics

        def describe(self) -> Iterator[Metric]:
            return iter(())

    registry = CollectorRegistry()
    registry.register(Once())
    return generate_latest(registry).decode().rstrip()


def tell_notes(features: KubeletFeatures) -> None:
    """Print on stderr what this kubelet cannot tell, so that nobody takes a missing answer for an empty node."""
    for note in features.notes():
        print(f"note: {note}", file=sys.stderr)
