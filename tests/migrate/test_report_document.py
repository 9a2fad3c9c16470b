"""The report in docs/migration.md and the plan in docs/migration-plan.md are the real ones."""

from __future__ import annotations

from drabridge.migrate.report.text import Layout, text
from tests.docs.pages import ROOT, blocks
from tests.migrate.cluster_objects import asked, report_of
from tests.migrate.example_cluster import example_cluster


async def test_the_documents_output_is_real() -> None:
    command = "$ drabridge migrate report\n"
    shown = next(one for one in blocks(ROOT / "docs/migration.md", "console") if one.startswith(command))
    report = await report_of(*example_cluster())
    assert shown.removeprefix(command).rstrip() == text(report, Layout(100, wide=False)).rstrip()


async def test_the_documents_plan_is_real() -> None:
    command = "$ drabridge migrate plan --class nvidia.com/gpu=gpu.example.com --driver gpu.example.com\n"
    (shown,) = (one for one in blocks(ROOT / "docs/migration-plan.md", "console") if one.startswith(command))
    _, out, _ = await asked(example_cluster(), *command.removeprefix("$ drabridge migrate ").split())
    assert shown.removeprefix(command).rstrip() == out.rstrip()
