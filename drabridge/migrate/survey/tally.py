"""Count what moves and what is blocked: in all, by owner, by tool and by what is to be done. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field

_TOOLS = {
    "": "Kubernetes",
    "apps": "Kubernetes",
    "batch": "Kubernetes",
    "helm.toolkit.fluxcd.io": "Flux",
    "serving.kserve.io": "KServe",
    "ray.io": "KubeRay",
    "kubeflow.org": "Kubeflow",
    "trainer.kubeflow.org": "Kubeflow",
    "batch.volcano.sh": "Volcano",
    "jobset.x-k8s.io": "JobSet",
    "leaderworkerset.x-k8s.io": "LeaderWorkerSet",
    "kubevirt.io": "KubeVirt",
    "apps.nvidia.com": "NIM operator",
    "sparkoperator.k8s.io": "Spark operator",
}
VALUES = "Helm values"
CHART = "Helm chart"


class Subject(Struct, frozen=True):
    """One thing in a file that asks for devices: an object, or values of a chart (no kind)."""

    file: str
    line: int
    owner: str
    tool: str
    name: str
    devices: dict[str, int] = field(default_factory=dict)
    """resource -> devices of all its pods; of what is blocked, nothing."""
    blocked: str = ""
    """Why it stays on limits; "" where it moves."""
    action: str = ""


class Share(Struct, frozen=True):
    """How much of one owner, tool or resource moves."""

    name: str
    moves: int
    blocked: int
    devices: int


class Block(Struct, frozen=True):
    """What blocks several subjects in the same way: what to do, and where."""

    action: str
    count: int
    example: str
    places: tuple[str, ...]


class Survey(Struct, frozen=True):
    """The whole result."""

    files: int
    speaking: int  # files that name a device
    subjects: tuple[Subject, ...]
    unread: tuple[str, ...]

    @property
    def moves(self) -> int:
        """Return how many could move today."""
        return sum(not one.blocked for one in self.subjects)

    @property
    def devices(self) -> Counter[str]:
        """Return how many devices of each resource those ask for."""
        found: Counter[str] = Counter()
        for one in self.subjects:
            found.update(one.devices)
        return found

    def shares(self, of: Callable[[Subject], str]) -> list[Share]:
        """Return the shares by what ``of`` says, the largest first."""
        groups: dict[str, list[Subject]] = {}
        for one in self.subjects:
            groups.setdefault(of(one), []).append(one)
        found = [
            Share(
                name,
                sum(not one.blocked for one in some),
                sum(bool(one.blocked) for one in some),
                sum(sum(one.devices.values()) for one in some),
            )
            for name, some in groups.items()
        ]
        return sorted(found, key=lambda one: (-one.moves - one.blocked, one.name))

    def blocks(self) -> list[Block]:
        """Return what blocks, the most frequent first."""
        groups: dict[str, list[Subject]] = {}
        for one in self.subjects:
            if one.blocked:
                groups.setdefault(one.action or one.blocked, []).append(one)
        found = [
            Block(action, len(some), some[0].blocked, tuple(f"{one.file}:{one.line}" for one in some))
            for action, some in groups.items()
        ]
        return sorted(found, key=lambda one: (-one.count, one.action))


def tool_of(group: str, kind: str) -> str:
    """Return who makes pods of an object."""
    if not kind:
        return VALUES
    if group == "argoproj.io":
        return "Argo CD" if kind.startswith("Application") else "Argo"
    return _TOOLS.get(group, group)


def document(survey: Survey) -> dict[str, object]:
    """Return the survey as JSON has it."""
    return {
        "files": survey.files,
        "filesWithDevices": survey.speaking,
        "moves": survey.moves,
        "blocked": len(survey.subjects) - survey.moves,
        "devices": dict(sorted(survey.devices.items())),
        "owners": _rows(survey.shares(lambda one: one.owner)),
        "tools": _rows(survey.shares(lambda one: one.tool)),
        "blocks": [
            {"action": one.action, "count": one.count, "example": one.example, "places": list(one.places)}
            for one in survey.blocks()
        ],
        "workloads": [
            {
                "file": one.file,
                "line": one.line,
                "owner": one.owner,
                "tool": one.tool,
                "name": one.name,
                "devices": one.devices,
                "blocked": one.blocked,
            }
            for one in survey.subjects
        ],
        "unread": list(survey.unread),
    }


def _rows(shares: Iterable[Share]) -> Sequence[dict[str, object]]:
    return [{"name": one.name, "moves": one.moves, "blocked": one.blocked, "devices": one.devices} for one in shares]
