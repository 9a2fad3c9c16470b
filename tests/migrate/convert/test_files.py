"""Which files paths stand for, and which of them share templates."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.migrate.convert.files import find
from drabridge.migrate.convert.settings import Level

RESOURCES = ("nvidia.com/gpu",)
ASKS = "limits: {nvidia.com/gpu: 1}\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Files by name, in a work tree of git."""
    (tmp_path / ".git").mkdir()
    texts = {
        "plain/a.yaml": ASKS,
        "plain/b.yml": ASKS,
        "plain/c.txt": ASKS,
        "plain/.hidden/d.yaml": ASKS,
        "plain/deeper/e.yaml": ASKS,
        "base/kustomization.yaml": "resources: [one.yaml, ../shared]\npatches: [{path: patch.yaml}]\n",
        "base/one.yaml": ASKS,
        "base/patch.yaml": ASKS,
        "base/unnamed.yaml": ASKS,
        "shared/kustomization.yml": "resources:\n- two.yaml\n- https://example.com/three.yaml\n",
        "shared/two.yaml": ASKS,
        "overlay/kustomization.yaml": "resources: [../base]\nnamePrefix: dev-\n",
        "inline/kustomization.yaml": "patches: [{patch: '[{op: add, path: /limits/nvidia.com~1gpu, value: 1}]'}]\n",
        "missing/kustomization.yaml": "resources: [nothing.yaml]\n",
        "broken/kustomization.yaml": "resources: [\n",
        "chart/Chart.yaml": "name: x\n",
        "chart/templates/a.yaml": "{{ if .x }}\n" + ASKS,
        "other-chart/Chart.yaml": "name: y\n",
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def groups(tree: Path, *names: str) -> list[list[str]]:
    found = find([tree / name for name in names], RESOURCES)
    return [[str(path.relative_to(tree)) for path in group] for group in found.groups]


def said(tree: Path, *names: str) -> list[tuple[Level, str]]:
    return [(one.level, one.message) for one in find([tree / name for name in names], RESOURCES).findings]


def test_each_folder_is_a_place_of_its_own(tree: Path) -> None:
    assert groups(tree, "plain") == [["plain/a.yaml", "plain/b.yml"], ["plain/deeper/e.yaml"]]
    assert said(tree, "plain") == []


def test_a_file_stands_for_itself_and_counts_once(tree: Path) -> None:
    assert groups(tree, "plain/c.txt", "plain/a.yaml", "plain") == [
        ["plain/c.txt", "plain/a.yaml", "plain/b.yml"],
        ["plain/deeper/e.yaml"],
    ]


@pytest.mark.parametrize("name", ["base", "base/kustomization.yaml"])
def test_a_kustomization_stands_for_what_it_names(tree: Path, name: str) -> None:
    assert groups(tree, name) == [["base/one.yaml", "shared/two.yaml"]]
    assert said(tree, name) == [
        (Level.NOTE, "https://example.com/three.yaml is somewhere else and is not read"),
        (Level.LEFT, "a patch that speaks of the resource"),
    ]


def test_a_kustomization_that_is_named_twice_is_read_once(tree: Path) -> None:
    assert groups(tree, "base", "shared", "base") == [["base/one.yaml", "shared/two.yaml"]]
    assert said(tree, "base", "base") == said(tree, "base")


def test_an_overlay_that_renames_templates_is_named(tree: Path) -> None:
    assert groups(tree, "overlay") == [["base/one.yaml", "shared/two.yaml"]]
    assert (Level.LEFT, "namePrefix and nameSuffix rename templates, but not where pods name them") in said(
        tree, "overlay"
    )


def test_patches_in_a_kustomization_are_named(tree: Path) -> None:
    assert said(tree, "inline") == [(Level.LEFT, "a patch or chart in it speaks of the resource")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "names it, and it is not there"),
        ("broken", "the kustomization cannot be read"),
        ("nowhere", "there is no such file or folder"),
    ],
)
def test_what_cannot_be_read_is_an_error(tree: Path, name: str, message: str) -> None:
    ((level, found),) = said(tree, name)
    assert level is Level.ERROR
    assert message in found


def test_a_chart_is_refused_if_it_asks_for_devices(tree: Path) -> None:
    assert groups(tree, "chart") == []
    (finding,) = find([tree / "chart"], RESOURCES).findings
    assert finding.level is Level.LEFT
    assert "--post-renderer" in finding.hint
    assert said(tree, "other-chart") == []
