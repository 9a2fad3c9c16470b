"""The bed of a module's scenarios: one agent for all, installed anew after a scenario that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio

from tests.cluster.bed import CONFIG, Bed
from tests.cluster.beds import BEDS, Beds

_failed = pytest.StashKey[bool]()


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
