"""The report in docs/migration.md is the real one."""

from __future__ import annotations

from drabridge.migrate.report.text import Layout, text
from tests.docs.pages import ROOT, blocks
from tests.migrate.cluster_objects import report_of
from tests.migrate.example_cluster import example_cluster


async def test_the_documents_output_is_real() -> None:
    command = "$ drabridge migrate report\n"
    (shown,) = (one for one in blocks(ROOT / "docs/migration.md", "console") if one.startswith(command))
    report = await report_of(*example_cluster())
    assert shown.removeprefix(command).rstrip() == text(report, Layout(100, wide=False)).rstrip()
