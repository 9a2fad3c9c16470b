"""The figures of ``python -m tests.bench.scale --real``, kept as JSON, and their tables in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import msgspec
from msgspec import Struct
from msgspec.structs import replace

FIGURES = Path(__file__).parent / "figures.json"
OURS, GO = "drabridge", "Go helper"
CLUSTER_NODES = 5000
SHAPE = "|---|---|"


class Phase(Struct, frozen=True):
    """What one phase took, per node or claim: the agents' requests, and the server's processor time and memory."""

    name: str
    seconds: float  # of the whole phase
    requests: Mapping[str, float]
    watches: float  # more open at the end than before
    bytes_in: float
    bytes_out: float
    cpu_seconds: float
    etcd_cpu_seconds: float
    live_bytes: float
    agent_cpu_seconds: float = 0.0
    agent_bytes: float = 0.0

    def of_agent(self, cpu_seconds: float, memory: float) -> Phase:
        return replace(self, agent_cpu_seconds=cpu_seconds, agent_bytes=memory)

    def times(self, factor: float) -> Phase:
        """Return the same for a longer time: what does not depend on time stays."""
        return replace(
            self,
            requests={what: count * factor for what, count in self.requests.items()},
            bytes_in=self.bytes_in * factor,
            bytes_out=self.bytes_out * factor,
            cpu_seconds=self.cpu_seconds * factor,
            etcd_cpu_seconds=self.etcd_cpu_seconds * factor,
            agent_cpu_seconds=self.agent_cpu_seconds * factor,
        )

    def count(self, *verbs: str) -> float:
        return sum(count for what, count in self.requests.items() if what.split()[0] in verbs)

    @property
    def writes(self) -> float:
        return self.count("POST", "PUT", "PATCH", "APPLY")

    @property
    def reads(self) -> float:
        return self.count("GET", "LIST")


class Figures(Struct):
    """What was measured last, each part by itself. Keys of ``ours`` and ``go``: how many nodes."""

    machine: str = ""
    ours: dict[int, list[Phase]] = {}
    go: dict[int, list[Phase]] = {}
    claims: dict[str, Phase] = {}
    large: list[Phase] = []


def load(path: Path = FIGURES) -> Figures:
    """Read the figures that are kept."""
    return msgspec.json.decode(path.read_bytes(), type=Figures) if path.exists() else Figures()


def keep(
    machine: str,
    *,
    ours: Mapping[int, list[Phase]] = MappingProxyType({}),
    go: Mapping[int, list[Phase]] = MappingProxyType({}),
    claims: Mapping[str, Phase] = MappingProxyType({}),
    large: Sequence[Phase] = (),
    path: Path = FIGURES,
) -> None:
    """Keep what was measured now; the rest stays as it was measured before."""
    figures = load(path)
    figures.machine = machine
    figures.ours |= ours
    figures.go |= go
    figures.claims |= claims
    figures.large = [*large] or figures.large
    path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")


def markdown(figures: Figures) -> str:
    """Return all tables."""
    parts = [f"Machine: {figures.machine}."]
    if figures.ours and figures.go:
        most, go_most = max(figures.ours), max(figures.go)
        parts += [f"Measured, per node: {most} agents, and {go_most} processes of the Go helper."]
        pairs = zip(figures.ours[most], figures.go[go_most], strict=True)
        parts += [_costs([(side, phase) for pair in pairs for side, phase in zip((OURS, GO), pair, strict=True)])]
    if figures.claims:
        parts += [
            "Measured, per claim, without the requests of scheduler and controllers (their work is in the CPU time):"
        ]
        parts += [_costs(list(figures.claims.items()))]
    if len(figures.ours) > 1:
        parts += ["Measured, per node, with fewer and with more agents. What grew faster than the nodes would rise:"]
        parts += [_growth(figures)]
    if figures.large:
        parts += [
            "Measured, one large node at the start of its agent; the agent's figures are of what talks to the server:"
        ]
        parts += [_large(figures.large)]
    if figures.ours:
        most = max(figures.ours)
        parts += [
            f"Multiplied from {most} agents to {CLUSTER_NODES:,} nodes, not measured:",
            _multiplied(figures.ours[most]),
        ]
    parts += ["Requests:", _requests(figures)]
    return "\n\n".join(parts)


def _costs(rows: list[tuple[str, Phase]]) -> str:
    lines = [
        "| what happens | whose | writes | reads | watches begun | KiB in | KiB out "
        "| server CPU ms | etcd CPU ms | server KiB |",
        SHAPE + "---|" * 8,
    ]
    for side, one in rows:
        numbers = (one.writes, one.reads, one.count("WATCH"), one.bytes_in / 1024, one.bytes_out / 1024)
        more = (one.cpu_seconds * 1000, one.etcd_cpu_seconds * 1000)
        row = [*(f"{n:.2f}" for n in numbers), *(f"{n:.1f}" for n in more), f"{one.live_bytes / 1024:.0f}"]
        lines.append(f"| {one.name} | {side} | {' | '.join(row)} |")
    return "\n".join(lines)


GROWING: Mapping[str, Callable[[Phase], float]] = {
    "requests": lambda one: sum(one.requests.values()),
    "KiB in and out": lambda one: (one.bytes_in + one.bytes_out) / 1024,
    "server CPU ms": lambda one: one.cpu_seconds * 1000,
    "server KiB": lambda one: one.live_bytes / 1024,
}


def _growth(figures: Figures) -> str:
    sizes = sorted(figures.ours)
    lines = [f"| what happens | figure | whose | {' | '.join(f'{size} nodes' for size in sizes)} |"]
    lines += [SHAPE + "---|" * (len(sizes) + 1)]
    for index, first in enumerate(figures.ours[sizes[0]]):
        for name, figure in GROWING.items():
            for side, measured in ((OURS, figures.ours), (GO, figures.go)):
                numbers = [f"{figure(measured[size][index]):.1f}" if size in measured else "" for size in sizes]
                if any(numbers):
                    lines.append(f"| {first.name} | {name} | {side} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def _large(phases: list[Phase]) -> str:
    lines = [
        "| node | writes | reads | KiB in | KiB out | server CPU ms | agent CPU ms | agent MiB |",
        SHAPE + "---|" * 6,
    ]
    for one in phases:
        numbers = (one.bytes_in / 1024, one.bytes_out / 1024, one.cpu_seconds * 1000, one.agent_cpu_seconds * 1000)
        row = " | ".join(f"{number:,.0f}" for number in numbers)
        lines.append(f"| {one.name} | {one.writes:.0f} | {one.reads:.0f} | {row} | {one.agent_bytes / 2**20:.1f} |")
    return "\n".join(lines)


def _multiplied(phases: list[Phase]) -> str:
    lines = ["| what happens | writes | reads | MiB in | MiB out | server CPU s |", SHAPE + "---|" * 4]
    for one in phases:
        numbers = (one.writes, one.reads, one.bytes_in / 2**20, one.bytes_out / 2**20, one.cpu_seconds)
        lines.append(f"| {one.name} | {' | '.join(f'{number * CLUSTER_NODES:,.0f}' for number in numbers)} |")
    return "\n".join(lines)


def _requests(figures: Figures) -> str:
    rows = [
        (side, one) for side, sizes in ((OURS, figures.ours), (GO, figures.go)) if sizes for one in sizes[max(sizes)]
    ]
    lines = []
    for side, one in (*rows, *figures.claims.items()):
        told = ", ".join(f"{count:.2f} {what}" for what, count in one.requests.items() if count >= 0.005)
        lines.append(f"- {side}, {one.name}: {told or 'none'}")
    return "\n".join(lines)
