"""What the scheduler believes of each node's allocatable: true, but late."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

JSON = dict[str, Any]


class NodeCache:
    """Allocatable of nodes as a step function of time."""

    def __init__(self) -> None:
        self._steps: dict[str, list[tuple[float, Mapping[str, str]]]] = {}

    def note(self, node: JSON, at_seconds: float) -> None:
        """A node was written at ``at_seconds`` on the clock that :meth:`allocatable` is asked with."""
        steps = self._steps.setdefault(node["metadata"]["name"], [])
        amounts = dict(node.get("status", {}).get("allocatable", {}))
        if not steps or steps[-1][1] != amounts:
            steps.append((at_seconds, amounts))

    def allocatable(self, node: str, at_seconds: float) -> Mapping[str, str]:
        """The newest amounts that are not newer than ``at_seconds``; older ones are forgotten."""
        steps = self._steps.get(node, [])
        index = bisect_right([at for at, _ in steps], at_seconds)
        if index == 0:
            return {}
        del steps[: index - 1]
        return steps[0][1]
