"""Capacity and allocatable of extended resources in a Node's status (``pkg/kubelet/nodestatus/setters.go``,
MachineInfo).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict


class NodeStatus(TypedDict):
    """``status.capacity`` and ``status.allocatable``, extended resources only."""

    capacity: dict[str, int]
    allocatable: dict[str, int]


@dataclass(slots=True)
class NodeResources:
    """Lives in the API server: a key that was ever there stays, with 0 once its plugin is gone for good."""

    capacity: dict[str, int] = field(default_factory=dict)
    allocatable: dict[str, int] = field(default_factory=dict)

    def apply(self, capacity: Mapping[str, int], allocatable: Mapping[str, int], removed: Iterable[str]) -> None:
        """Fold in an answer of the device manager; allocatable starts as a copy of capacity."""
        self.capacity |= capacity
        self.capacity |= dict.fromkeys(removed, 0)
        self.allocatable = self.capacity | dict(allocatable)

    def zero(self) -> None:
        """A kubelet with an empty device-plugin directory takes the node for a new one (kubelet_node_status.go)."""
        self.capacity = dict.fromkeys(self.capacity, 0)
        self.allocatable = dict(self.capacity)

    def status(self) -> NodeStatus:
        return NodeStatus(capacity=dict(self.capacity), allocatable=dict(self.allocatable))
