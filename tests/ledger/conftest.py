"""Shows what the search of small worlds explored, in the summary of every run."""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """One line for each world and each mutant."""
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
