"""What a benchmark is: its name, budget and measurement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal


class NotHere(Exception):
    """A benchmark cannot be measured on this machine; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One number with a budget. ``run`` measures and returns it, in ``unit``; it may start processes, and ends them.

    It raises NotHere where that is not possible.
    """

    name: str
    unit: str
    budget: float
    run: Callable[[], float]
    better: Literal["lower", "higher"] = "lower"


@dataclass(frozen=True, slots=True)
class Result:
    """What a run gave; the JSON form is ``{name, value, unit, budget, ok}``."""

    name: str
    value: float
    unit: str
    budget: float
    ok: bool


def awaited(work: Callable[[], Awaitable[float]]) -> Callable[[], float]:
    """A coroutine function as a benchmark's ``run``."""

    async def whole() -> float:
        return await work()

    return lambda: asyncio.run(whole())


def measure(benchmark: Benchmark) -> Result:
    """Run one benchmark and hold its value against the budget."""
    value = benchmark.run()
    ok = value <= benchmark.budget if benchmark.better == "lower" else value >= benchmark.budget
    return Result(benchmark.name, round(value, 3), benchmark.unit, benchmark.budget, ok)
