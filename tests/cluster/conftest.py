"""The bed of a module's scenarios: one agent for all of them, made anew after one that failed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import pytest_asyncio

from tests.cluster.bed import CONFIG, Bed, at_the_beginning, clear, failed
from tests.cluster.real_bed import real
from tests.cluster.sim_bed import simulated

BEDS: dict[str, Callable[[Any], AbstractAsyncContextManager[Bed]]] = {"simulated": simulated, "real": real}
_failed = pytest.StashKey[bool]()


class Beds:
    """Gives each scenario a bed as it is at the beginning: a ready agent, its devices in their lanes, no workloads."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[Bed]]) -> None:
        self._make = make
        self._stack = contextlib.AsyncExitStack()
        self._bed: Bed | None = None
        self._current: Bed | None = None

    async def begin(self) -> Bed:
        """The bed of the scenario before, if :meth:`end` has found it in order; else a new one."""
        if self._bed is None:
            bed = await self._stack.enter_async_context(self._make())
        else:
            bed = self._bed
        self._bed = None
        if not await bed.ready():
            await bed.install()
        await at_the_beginning(bed)
        self._current = bed
        return bed

    async def end(self) -> None:
        """Judge the scenario and take its workloads away."""
        bed = self._current
        assert bed is not None, "no scenario has begun"
        if conflicts := await bed.conflicts():
            raise await failed(bed, f"double holds: {conflicts}")
        await clear(bed)
        self._bed = bed

    async def give_up(self) -> None:
        """After a scenario that failed nothing is believed: all that there is goes."""
        await self._stack.aclose()
        self._bed = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    return report


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["simulated", pytest.param("real", marks=pytest.mark.cluster)]
)
async def beds(request: pytest.FixtureRequest) -> AsyncIterator[Beds]:
    """On each kind of cluster. A module with another configuration names it ``CONFIG``."""
    config = getattr(request.module, "CONFIG", CONFIG)
    made = Beds(lambda: BEDS[request.param](config))
    try:
        yield made
    finally:
        await made.give_up()


@pytest_asyncio.fixture(loop_scope="module")
async def bed(beds: Beds, request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    """A cluster with a ready agent; afterwards no workload may have found its device's lock taken."""
    good = False
    try:
        yield await beds.begin()
        if not request.node.stash.get(_failed, True):
            await beds.end()
            good = True
    finally:
        if not good:
            await beds.give_up()
