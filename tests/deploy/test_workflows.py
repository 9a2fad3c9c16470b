"""What can be checked of ``.github`` without GitHub: schemas, make targets, Python versions, limits and permissions."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from deploy.helm import ROOT

FOLDER = ROOT / ".github/workflows"
FILES = sorted(FOLDER.glob("*.yml"))
DEPENDABOT = ROOT / ".github/dependabot.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ACTIONS = {"actions/checkout", "actions/setup-python", "helm/kind-action"}
CLASSIFIER = "Programming Language :: Python :: "
Json = dict[str, Any]

if not FILES:
    pytest.skip("no .github: this is no checkout", allow_module_level=True)


def load(path: Path) -> Json:
    """A workflow. YAML 1.1 reads the key ``on`` as true."""
    found: Json = yaml.safe_load(path.read_text())
    return found


JOBS = [
    pytest.param(job, id=f"{path.stem}-{name}") for path in FILES for name, job in load(path).get("jobs", {}).items()
]
STEPS: list[Json] = [step for path in FILES for job in load(path)["jobs"].values() for step in job["steps"]]
each_job = pytest.mark.parametrize("job", JOBS)


@pytest.mark.parametrize("path", [*FILES, DEPENDABOT], ids=lambda path: path.name)
def test_files_follow_the_schemas_of_github(path: Path) -> None:
    schema = "vendor.dependabot" if path == DEPENDABOT else "vendor.github-workflows"
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_may_only_read_and_runs_once_for_each_branch(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "${{ github.ref }}" in workflow["concurrency"]["group"]


@each_job
def test_a_job_is_limited_in_time_and_in_what_it_may(job: Json) -> None:
    assert 0 < job["timeout-minutes"] <= 90
    writes = {what for what, access in job.get("permissions", {}).items() if access == "write"}
    makes_release = any(step.get("run") == "make upload" for step in job["steps"])
    assert writes == ({"contents"} if makes_release else set())


@each_job
def test_a_step_is_an_action_that_sets_up_or_a_make_target(job: Json) -> None:
    """By name and major version; dependabot renews them."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for step in job["steps"]:
        if "uses" in step:
            name, _, version = step["uses"].partition("@")
            assert name in ACTIONS
            assert re.fullmatch(r"v[0-9]+", version), step["uses"]
        else:
            made = re.fullmatch(r"make ([a-z]+)( [^;&|\n]*)?", step["run"])
            assert made, f"{step['run']!r} is more than a make target"
            assert made[1] in targets


def test_every_secret_is_explained() -> None:
    text = "".join(path.read_text() for path in FILES)
    named = set(re.findall(r"\b(?:secrets|vars)\.([A-Z_]+)", text))
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Release")[2]
    assert len(named) >= 3
    assert sorted(name for name in named if f"`{name}`" not in section) == []


def test_the_unit_tests_run_with_every_python_that_is_promised() -> None:
    promised = [
        one.removeprefix(CLASSIFIER)
        for one in PROJECT["classifiers"]
        if one.startswith(CLASSIFIER) and one[-1].isdigit()
    ]
    assert load(FOLDER / "ci.yml")["jobs"]["unit"]["strategy"]["matrix"]["python"] == promised
    minors = [int(one.removeprefix("3.")) for one in promised]
    assert minors == list(range(minors[0], minors[-1] + 1))
    range_ = SpecifierSet(PROJECT["requires-python"])
    assert f"3.{minors[0]}" in range_
    assert f"3.{minors[0] - 1}" not in range_


def test_a_set_up_python_is_the_oldest_promised() -> None:
    """The locks of the image have wheels for it, and a type check with it holds for all."""
    used = {step["with"]["python-version"] for step in STEPS if "setup-python" in step.get("uses", "")}
    assert [f">={one}" for one in used] == [PROJECT["requires-python"]]


def test_dependabot_knows_no_go_modules() -> None:
    """They are the releases of Kubernetes that are tested."""
    updates = yaml.safe_load(DEPENDABOT.read_text())["updates"]
    assert {one["package-ecosystem"] for one in updates} == {"pip", "github-actions"}


def test_dependabot_leaves_the_pins_of_the_build_alone() -> None:
    (pip,) = (one for one in yaml.safe_load(DEPENDABOT.read_text())["updates"] if one["package-ecosystem"] == "pip")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    pinned = {one.partition("==")[0] for one in build if "==" in one}
    assert {one["dependency-name"] for one in pip["ignore"]} == pinned


def test_the_page_has_the_commands_of_make_kind() -> None:
    """The page leaves the kubeconfig where kind puts it; ``make kind`` has one of its own."""
    makefile, page = ((ROOT / name).read_text() for name in ("Makefile", "docs/testing.md"))
    (image,) = re.findall(r"^IMAGE := (.*)$", makefile, re.MULTILINE)
    recipe = makefile.partition("\nkind:")[2].partition("\n\n")[0].replace("$(IMAGE)", image)
    for command in ("kind create cluster", "kind load image-archive build/image.tar"):
        assert command in recipe
        assert command in page
    variables = re.findall(r"DRABRIDGE_TEST_\w+=\S+", recipe)
    assert len(variables) == 2
    assert re.findall(r"DRABRIDGE_TEST_\w+=\S+", page) == variables
