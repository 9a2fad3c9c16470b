"""Define the plan's file, which people edit and ``drabridge migrate apply`` follows: keep its format stable.

A plan is for one resource of one cluster. Its steps are done in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from drabridge.config.declaration import Model, to_data
from drabridge.config.loader import read
from drabridge.config.problems import Problem

VERSION: Literal["drabridge.migration/v1alpha1"] = "drabridge.migration/v1alpha1"
LARGEST_BYTES = 64 * 1024 * 1024  # 5,000 nodes and 2,500 workloads make about 3 MiB
ALL = "all"
"""In a step's lanes: every device of the node, but for those that ``keepForLimits`` keeps."""

Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class How(StrEnum):
    """How the pods of a workload come to claims in its step."""

    ROLLOUT = "rollout"  # it is rolled out
    NEXT = "next"  # it has no pods now; the next ones get claims
    ENDS = "ends"  # its pods cannot change: they end by themselves, and new ones have claims
    BY_HAND = "byHand"  # somebody must make its pods again


class Way(StrEnum):
    """How a step changes what pods ask for."""

    SWITCH = "switch"  # the namespace is switched
    MANIFESTS = "manifests"  # the workloads' manifests are converted
    LANES = "lanes"  # not at all: only devices change lanes


class Move(Model, frozen=True):
    """A workload that moves to claims in a step. The step is refused if the workload has changed by then."""

    object: str
    """`Deployment/chat`, or another kind and a name."""
    pods: Count
    """How many of its pods had limits when the plan was made."""
    devices: Count
    """How many devices each pod has."""
    how: How


class Step(Model, frozen=True):
    """One step: first lanes, then what pods ask for, then rollouts."""

    name: Annotated[str, Meta(min_length=1)]
    way: Way
    namespace: str = ""
    lanes: dict[str, Count | Literal["all"]] = field(default_factory=dict)
    """Node -> how many of its devices are for claims from this step on."""
    moves: tuple[Move, ...] = ()
    missing: tuple[str, ...] = ()
    """What the step lacks, in words. The step fits only if nothing is named here."""
    notes: tuple[str, ...] = ()


class Left(Model, frozen=True):
    """A workload that stays on limits, and why."""

    object: str
    why: str


class Plan(Model, frozen=True, kw_only=True):
    """All steps, and what they were made for. ``cluster`` is the UID of the namespace kube-system."""

    apiVersion: Literal["drabridge.migration/v1alpha1"]
    cluster: str
    made: str = ""
    resource: Annotated[str, Meta(min_length=3)]
    device_class: Annotated[str, Meta(min_length=1)]
    driver: Annotated[str, Meta(min_length=1)]
    keep_for_limits: Count = 0
    """How many devices of each node stay in the lane for limits."""
    manifests: tuple[str, ...] = ()
    """Files and folders that steps with the way `manifests` convert; relative ones begin beside the plan."""
    config: str = ""
    """The agent's configuration, for such steps; without it they know only the DeviceClass."""
    devices: dict[str, Count] = field(default_factory=dict)
    """Node -> how many devices it had when the plan was made."""
    steps: tuple[Step, ...] = ()
    left: tuple[Left, ...] = ()

    @classmethod
    def whole_file_problems(cls, data: object) -> Iterator[Problem]:
        steps = data.get("steps") if isinstance(data, dict) else None
        seen: set[str] = set()
        for index, step in enumerate(steps if isinstance(steps, list) else ()):
            name = step.get("name") if isinstance(step, dict) else None
            if isinstance(name, str) and name in seen:
                yield Problem("a name of its own", "no two steps have one name", ("steps", index, "name"), name)
            seen.add(str(name))

    @property
    def fits(self) -> bool:
        """Whether no step lacks anything."""
        return not any(step.missing for step in self.steps)


def load(path: Path) -> Plan:
    """Read a plan. Raises ConfigErrors with all faults and their lines."""
    hint = "drabridge migrate plan --write FILE makes one"
    return read(Plan, path, hint=hint, largest_bytes=LARGEST_BYTES)


def beside(path: Path, folder: Path) -> str:
    """Return a path as a plan writes it: relative to the plan's folder if it is below that."""
    absolute, base = path.absolute(), folder.absolute()
    return str(absolute.relative_to(base) if absolute.is_relative_to(base) else absolute)


def as_data(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON has it. What is empty is left out."""
    found: dict[str, Any] = to_data(plan)
    return found
