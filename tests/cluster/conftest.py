"""The bed of a module's scenarios: one agent for all, installed anew after a scenario that failed.

Tests of a feature that a real cluster has not are skipped here, before anything is installed for them. With
``DRABRIDGE_TEST_KEEP`` what each test on a real cluster came to is kept in that file.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.bed import CONFIG, Bed
from tests.cluster.beds import BEDS, Beds
from tests.cluster.real_bed import ask
from tests.cluster.releases import seen
from tests.cluster.releases.features import missing, version

_failed = pytest.StashKey[bool]()
_outcomes: dict[str, str] = {}
KEEP = "DRABRIDGE_TEST_KEEP"
HERE = Path(__file__).parent
# They show that the scenarios themselves work, and what the comparison says of takeover.
IN_EVERY_RUN = (
    "test_agent_life.py",
    "test_claims.py",
    "test_pods.py",
    "test_takeover_cdi.py",
    "test_bed_after_failure.py",
)
OUTCOME = {"passed": seen.PASSED, "failed": seen.FAILED}


@functools.cache
def _missing(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(missing(names, ask))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On the simulated cluster few files run each time: what tests/agent shows there in small needs no second test.

    Before pytest leaves out what is deep.
    """
    for item in items:
        if item.path.is_relative_to(HERE) and "[simulated" in item.name and item.path.name not in IN_EVERY_RUN:
            item.add_marker(pytest.mark.deep)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cluster") and os.environ.get("KUBECONFIG"):
        names = tuple(name for mark in item.iter_markers("needs") for name in mark.args)
        if names and version(ask) and (lacking := _missing(names)):  # one that does not answer lacks nothing
            pytest.skip(f"{seen.NOT_THERE}{', '.join(lacking)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_failed] = report.failed
    if item.get_closest_marker("cluster") and (report.when == "call" or report.outcome != "passed"):
        reason = str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""
        said = OUTCOME.get(report.outcome, reason.removeprefix("Skipped: "))
        if _outcomes.get(report.nodeid) != seen.FAILED:  # what fails when it is taken down has failed
            _outcomes[report.nodeid] = said
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (path := os.environ.get(KEEP)) and _outcomes:
        if of := version(ask):
            seen.keep(Path(path), of, _outcomes)
        else:
            print("\nthe API server does not answer: what the tests came to is not kept")


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
