"""What every area shares: the gate that turns skips into failures where nothing may be skipped, and what is told at the
end of a run.

``DRABRIDGE_REQUIRE_MARKERS="root podman"`` says that this machine has what those markers stand for: then a test with
such a marker that skips itself fails the run, and so does a marker that no test carried.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator

import pytest
from hypothesis import settings

# Shared machines stall now and then; a time limit for one example would make good tests fail.
settings.register_profile("drabridge", deadline=None, max_examples=50)
settings.register_profile("many", deadline=None, max_examples=1000)  # make deep
settings.load_profile("drabridge")

gc.disable()  # until all tests are collected: of a hundred thousand new objects none is garbage

REQUIRED = frozenset(os.environ.get("DRABRIDGE_REQUIRE_MARKERS", "").split())
_ran: Counter[str] = Counter()
_skipped: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that are marked ``long`` come first: one that came last would keep one worker busy and all others waiting.

    Workers take files in this order only with ``--no-loadscope-reorder``; else those with one test, however long, last.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """No later collection of garbage looks at thousands of tests and modules, which stay."""
    gc.freeze()
    gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Also called in the controller of a distributed run, with every worker's reports."""
    marked = REQUIRED.intersection(report.keywords)
    if marked and report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(f"{report.nodeid} [{' '.join(sorted(marked))}]: {report.longrepr}")
    elif report.when == "call" and report.passed:
        _ran.update(marked)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        return  # the controller decides
    partial = bool(session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS)
    missing = [] if partial else sorted(REQUIRED - set(_ran))
    if (_skipped or missing) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    """After pytest's own summary, so that the reason why a run without a failed test fails is among the last lines."""
    yield
    for line in _skipped:
        terminalreporter.write_line(f"REQUIRED HERE, BUT SKIPPED: {line}", red=True)
    if REQUIRED:
        counts = ", ".join(f"{name} {_ran[name]}" for name in sorted(REQUIRED))
        terminalreporter.write_line(f"tests that ran on the real thing: {counts}")
    _tell_searches(terminalreporter)


def _tell_searches(terminalreporter: pytest.TerminalReporter) -> None:
    """What the search of small worlds explored: one line for each world and each mutant.

    Here and not beside those tests: the controller of a distributed run loads no conftest but this one.
    """
    lines = [
        str(value)
        for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for key, value in report.user_properties
        if key == "search"
    ]
    if lines:
        terminalreporter.section("ledger: search of small worlds")
        for line in lines:
            terminalreporter.line(line)
