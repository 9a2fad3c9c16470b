"""The documents are true: links lead somewhere, paths, commands and targets exist, YAML loads, PromQL parses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from drabridge.cli import COMMANDS
from drabridge.config import load
from drabridge.config.advice import advice
from podresources.cli import parser as podresources_parser
from tests.docs.pages import NAMES, PAGES, README, ROOT, anchors, blocks, prose
from tests.support.agent_promql import faults

each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)
FOLDERS = "drabridge|deviceplugin|podresources|tests|deploy|docs|proto"
LANGUAGES = ("console", "yaml", "python", "text")  # diagrams have a test of their own
HEAD = "apiVersion: drabridge/v1alpha1\nkind: AgentConfig\ndriver: devices.test\n"
NO_PATHS = {"drabridge/v1alpha1"}  # the configuration's apiVersion


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) < 10_000


CONTRIBUTORS = {"architecture", "debugging", "deviceplugin", "glossary", "recipes", "testing"}
FOR_USERS = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.stem not in CONTRIBUTORS]
MOST_WORDS = 18_000
"""What a user can read in an hour. Before a page grows, another one is cut."""


def words(path: Path) -> int:
    """Words that a person reads: without blocks of code, and without the targets of links."""
    text = re.sub(r"\]\([^)]*\)", "]", prose(path))
    return sum(any(map(str.isalnum, word)) for word in text.split())


def test_the_pages_for_users_are_short_enough_to_be_read() -> None:
    counts = {path.name: words(path) for path in FOR_USERS}
    assert sum(counts.values()) <= MOST_WORDS, f"{sum(counts.values())} words: {counts}"
    assert counts["benchmarks.md"] <= 500


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_says_first_for_whom_it_is(path: Path) -> None:
    """Who is not meant goes on at once."""
    title, blank, first = path.read_text().splitlines()[:3]
    assert title.startswith("# ")
    assert not blank
    assert first.startswith("For ")


@each_page
def test_nothing_is_left_to_be_filled_in(page: Path) -> None:
    assert re.findall(r"<!-- include|TODO|TBD|FIXME|XXX", page.read_text()) == []


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    """Within the repository: the file exists, and has the title that the link names."""
    dead = []
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)", prose(page)):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            dead.append(target)
    assert dead == []


@each_page
def test_pages_of_the_site_link_only_within_it(page: Path) -> None:
    if page.is_relative_to(ROOT / "docs"):
        targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", prose(page))
        assert [t for t in targets if not (page.parent / t).resolve().is_relative_to(ROOT / "docs")] == []


@each_page
def test_paths_of_the_repository_exist(page: Path) -> None:
    text = "\n".join([prose(page), *(block for name in LANGUAGES for block in blocks(page, name))])
    named = set(re.findall(rf"(?<![\w./<>@-])(?:{FOLDERS})/[\w./*-]*[\w*]", text)) - NO_PATHS
    assert sorted(path for path in named if not list(ROOT.glob(path))) == []


@each_page
def test_modules_that_are_run_exist(page: Path) -> None:
    named = {
        name.replace(".", "/")
        for name in re.findall(r"python\s+-m\s+((?:tests|docs|deploy)[\w.]*\w)", page.read_text())
    }
    assert [
        name for name in named if not ((ROOT / f"{name}.py").exists() or (ROOT / name / "__main__.py").exists())
    ] == []


@each_page
def test_nothing_is_swallowed_as_a_tag(page: Path) -> None:
    """``<driver>`` outside of code is shown by no browser."""
    text = re.sub(r"``.*?``|`[^`]*`|<!--.*?-->|<https?://[^>]*>", "", prose(page), flags=re.DOTALL)
    assert re.findall(r"<(?!/?(?:br|details|summary)\b)[a-zA-Z][^>\n]*>", text) == []


@each_page
def test_configurations_load(page: Path) -> None:
    """Whole files, and what is under ``config:`` of the chart's values, as the chart completes it; Helm takes both."""
    schema = json.loads((ROOT / "deploy/chart/values.schema.json").read_text())
    for text in blocks(page, "yaml"):
        if "kind: AgentConfig" in text:
            load(text)
            jsonschema.validate(
                {"config": yaml.safe_load(text)}, schema
            )  # Helm reads 2832 as a number, the agent as text
        elif "\nconfig:\n" in f"\n{text}":
            values: dict[str, Any] = yaml.safe_load(text)
            whole = {"apiVersion": "drabridge/v1alpha1", "kind": "AgentConfig", **values["config"]}
            load(yaml.safe_dump(whole))
            jsonschema.validate({"config": whole}, schema)
        elif text.startswith("- name: ") and "\n  match:" in text:
            config = load(f"{HEAD}resources:\n{text}")
            assert advice(config) == ()
            jsonschema.validate({"config": yaml.safe_load(f"{HEAD}resources:\n{text}")}, schema)
        else:
            list(yaml.safe_load_all(text))


@each_page
def test_commands_exist(page: Path) -> None:
    lines = [line.split(" #")[0] for block in blocks(page, "console") for line in block.splitlines()]
    called = [line.partition(" -- ")[2] or line.removeprefix("$ ") for line in lines if "drabridge " in line]
    called += re.findall(r"`(drabridge [a-z-]+[^`]*)`", prose(page))
    words = [shlex.split(" ".join(line.split())) for line in called]
    ours = [line for line in words if line[:1] == ["drabridge"] and len(line) > 1 and re.fullmatch("[a-z-]+", line[1])]
    assert [line for line in ours if line[1] not in COMMANDS] == []


@each_page
def test_commands_of_podresources_exist(page: Path) -> None:
    (choices,) = (
        action.choices for action in podresources_parser.build_parser()._actions if action.dest == "==SUPPRESS=="
    )
    assert choices is not None
    assert set(re.findall(r"(?:`|\$ )podresources ([a-z]+)", page.read_text())) <= set(choices)


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"(?:`|\$ )make ([a-z]+)", page.read_text())) <= targets


@each_page
def test_queries_are_about_metrics_that_exist(page: Path) -> None:
    """Of the agent; those of the podresources exporter are run by its own tests."""
    for query in blocks(page, "promql"):
        if "drabridge_" in query:
            assert faults(query) == []


def test_the_documents_have_what_these_tests_look_at() -> None:
    assert len(PAGES) > 20
    assert sum("kind: AgentConfig" in text for page in PAGES for text in blocks(page, "yaml")) >= 1
    assert sum("drabridge_" in text for page in PAGES for text in blocks(page, "promql")) >= 3
    assert (
        sum(
            line.startswith("$ drabridge ")
            for page in PAGES
            for b in blocks(page, "console")
            for line in b.splitlines()
        )
        >= 4
    )


def test_pre_commit_runs_what_make_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = {hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude") for hook in hooks}
    recipe = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert entries == set(re.findall(r"\$\(BIN\)/([a-z -]*[a-z])", recipe.replace(" --check", "").replace(" .", "")))


def test_who_reports_a_fault_is_asked_for_what_shows_it() -> None:
    bug, device = ((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text() for name in ("bug", "device"))
    pull = (ROOT / ".github/PULL_REQUEST_TEMPLATE.md").read_text()
    assert all("drabridge record" in text for text in (bug, device, pull))
    assert all("drabridge status -o json" in text for text in (bug, pull))


def test_issue_templates_are_forms() -> None:
    templates = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert len(templates) == 3
    for path in templates:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} == form.keys()
        assert all(item["type"] == "markdown" or item["attributes"]["label"] for item in form["body"])
        assert sorted(re.findall(r"docs/[\w/.-]+md", path.read_text())) == sorted(
            name for name in re.findall(r"docs/[\w/.-]+md", path.read_text()) if (ROOT / name).exists()
        )
