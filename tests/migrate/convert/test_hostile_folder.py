"""Manifests that somebody else wrote: the commands read what is below the folder, in bounded time, and write there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drabridge.cli import main
from drabridge.migrate.convert import files
from drabridge.migrate.convert.files import find
from drabridge.migrate.convert.post_render import FOLDER_SUFFIX
from drabridge.migrate.convert.settings import Level

NAMES = ("nvidia.com/gpu",)
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: m, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


# name of a link in the folder -> where it leads, or the text of its kustomization. UP is the way to another folder.
WAYS_OUT: list[dict[str, str]] = [
    {"b.yaml": "UP/prod.yaml"},
    {"b": "UP"},
    {"b.yaml": "c.txt", "c.txt": "UP/prod.yaml"},
    {"b.yaml": "/dev/zero"},
    {"kustomization.yaml": "resources: [UP/prod.yaml, a.yaml]"},
    {"kustomization.yaml": "bases: [UP]\nresources: [a.yaml]"},
    {"kustomization.yaml": "resources: [ROOT/prod.yaml, a.yaml]"},
]


@pytest.mark.parametrize("ways", WAYS_OUT, ids=str)
@pytest.mark.parametrize("git", [False, True])
def test_what_leads_out_of_the_folder_is_not_read(tmp_path: Path, ways: dict[str, str], git: bool) -> None:
    other, folder = tmp_path / "elsewhere", tmp_path / "theirs/apps"
    for one in other, folder:
        one.mkdir(parents=True)
    (other / "prod.yaml").write_text(POD)
    (other / "kustomization.yaml").write_text("resources: [prod.yaml]\n")
    (folder / "a.yaml").write_text(POD)
    if git:
        (folder.parent / ".git").mkdir()
    for name, way in ways.items():
        to = way.replace("UP", os.path.relpath(other, folder)).replace("ROOT", str(other))
        if name == "kustomization.yaml":
            (folder / name).write_text(to)
        else:
            (folder / name).symlink_to(to)
    found = find([folder], NAMES)
    assert [path for group in found.groups for path in group] == [folder / "a.yaml"]
    (said,) = found.findings
    assert said.level is Level.ERROR
    assert "leads out of" in said.message


def test_what_is_in_the_same_work_tree_is_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("base", "overlays/prod", "shared"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "base/kustomization.yaml").write_text("resources: [a.yaml]\n")
    (tmp_path / "shared/a.yaml").write_text(POD)
    (tmp_path / "base/a.yaml").symlink_to("../shared/a.yaml")
    (tmp_path / "overlays/prod/kustomization.yaml").write_text("resources: [../../base]\n")
    found = find([tmp_path / "overlays/prod"], NAMES)
    assert not found.findings
    assert [path for group in found.groups for path in group] == [tmp_path / "base/a.yaml"]


def test_nothing_is_written_through_a_linked_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = tmp_path / "nim.yaml"
    values.write_text("model:\n  ngcAPISecret: s\nresources:\n  limits:\n    nvidia.com/gpu: 4\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"nim.yaml{FOLDER_SUFFIX}").symlink_to("elsewhere")
    arguments = ["migrate", "convert", "--class", "nvidia.com/gpu=gpu.example.com", "--in-place"]
    assert main([*arguments, str(values)]) == 1
    assert "symbolic link" in capsys.readouterr().err
    assert not any((tmp_path / "elsewhere").iterdir())


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "b.yaml")


def _fifo_of_kustomization(folder: Path) -> None:
    os.mkfifo(folder / "b.yaml")
    (folder / "kustomization.yaml").write_text("resources: [a.yaml, b.yaml]\n")


def _large(folder: Path) -> None:
    with (folder / "b.yaml").open("wb") as file:
        file.truncate(files.MOST_BYTES + 1)


@pytest.mark.parametrize(("make", "said"), [(_fifo, "no regular file"), (_fifo_of_kustomization, "no regular file")])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, make: Callable[[Path], None], said: str) -> None:
    (tmp_path / "a.yaml").write_text(POD)
    make(tmp_path)
    paths = [path for group in find([tmp_path], NAMES).groups for path in group]
    assert [path.name for path in paths] == ["a.yaml", "b.yaml"]
    assert said in str(files.text_of(paths[1]))


def test_a_file_that_is_too_large_is_said(tmp_path: Path) -> None:
    _large(tmp_path)
    assert "larger than" in str(files.text_of(tmp_path / "b.yaml"))


def test_links_in_a_circle_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POD)
    (tmp_path / "b").mkdir()
    for name in ("l1", "l2", "l3", "b/up"):
        (tmp_path / name).symlink_to(tmp_path)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    found = find([tmp_path], NAMES)
    assert [path.name for group in found.groups for path in group] == ["a.yaml", "loop.yaml"]


def test_kustomizations_that_name_each_other_are_read_once(tmp_path: Path) -> None:
    for name, other in ("a", "b"), ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kustomization.yaml").write_text(f"resources: [../{other}, p.yaml]\n")
        (tmp_path / name / "p.yaml").write_text(POD)
    found = find([tmp_path], NAMES)
    assert [path.parent.name for group in found.groups for path in group] == ["b", "a"]
    assert not found.findings


@pytest.mark.parametrize("how", ["folders", "kustomizations"])
def test_what_is_nested_very_deep_is_said(tmp_path: Path, how: str) -> None:
    deep, count = tmp_path, 300 if how == "folders" else 1_500
    for number in range(count):
        if how == "folders":
            deep = deep / "d"
            deep.mkdir()
        else:
            (tmp_path / f"k{number}").mkdir()
            (tmp_path / f"k{number}/kustomization.yaml").write_text(f"resources: [../k{number + 1}]\n")
    found = find([tmp_path if how == "folders" else tmp_path / "k0", tmp_path], NAMES)
    assert "deeper than 50" in found.findings[0].message
    assert found.findings[0].level is Level.ERROR


@pytest.mark.parametrize(
    "text",
    [
        'resources: ["a\\0b"]\n',
        f"resources: [{'a' * 5000}]\n",
        'patches: [{path: "a\\0b"}]\n',
        f"patchesStrategicMerge: [{'a' * 5000}]\n",
        "resources: &a [*a]\n",
        "resources: [7, null, {a: b}, [x]]\nbases: x\n",
        "x: " + "[" * 2000 + "]" * 2000,
        "x: 2001-99-99\n",
        "x: !!binary '*'\n",
        '{"resources": ' + "[" * 5000,
    ],
)
def test_a_strange_kustomization_is_a_finding_at_most(tmp_path: Path, text: str) -> None:
    (tmp_path / "kustomization.yaml").write_text(text)
    for one in find([tmp_path], NAMES).findings:
        assert one.message


def test_very_many_files_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 3)
    for number in range(6):
        (tmp_path / f"{number}.yaml").write_text(POD)
    found = find([tmp_path], NAMES)
    assert [len(group) for group in found.groups] == [3]
    (said,) = found.findings
    assert "more than 3 files" in said.message


@pytest.mark.parametrize("way", ["--check", "--diff", "--in-place"])
def test_a_file_name_does_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str) -> None:
    text = Path("tests/migrate/manifests/pod-vectoradd.yaml").read_text()
    (tmp_path / "a\x1b[31mred\nforged line.yaml").write_text(text)
    main(["migrate", "convert", "--class", "nvidia.com/gpu=gpu.example.com", way, str(tmp_path)])
    out = capsys.readouterr().out
    assert "\\x1b[31mred\\nforged" in out
    assert "\x1b" not in out
