"""Write what the importers make of other plugins' configurations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import yaml

from drabridge.config.loader import load
from podresources.table import printable

Json = dict[str, Any]
Noted = tuple[Json, list[str]]
"""A resource of ours as plain data, and the comments above it."""


def written(head: Sequence[str], resources: Iterable[Noted], name: str) -> str:
    """Return a configuration: the lines of its head, then the resources. Raises ConfigErrors if it does not load."""
    lines = [*head, "resources:"]
    for resource, notes in resources:
        lines += [f"# {printable(note)}" for note in dict.fromkeys(notes)]
        # The style of the examples: mappings of scalars in one line.
        lines.append(
            yaml.safe_dump([resource], sort_keys=False, width=120, allow_unicode=True, default_flow_style=None)
        )
    text = "\n".join(line.rstrip() for line in lines) + "\n"
    load(text, name=f"{name}, converted")
    return text
