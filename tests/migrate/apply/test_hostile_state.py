"""A plan whose state file somebody else wrote: a rollback writes manifests of the plan, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from drabridge.errors import ConfigError, DrabridgeError, HostError
from drabridge.migrate.apply import manifests
from drabridge.migrate.apply.manifests import restore
from drabridge.migrate.apply.state import FileBefore, State, alone, state_path
from drabridge.migrate.plan.document import Plan

PLAN = Plan(
    apiVersion="drabridge.migration/v1alpha1",
    cluster="uid",
    resource="nvidia.com/gpu",
    device_class="gpu.example.com",
    driver="gpu.example.com",
    manifests=("apps",),
)
KNOWN = "# known to everybody\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "theirs"
    (folder / "apps").mkdir(parents=True)
    (folder / "apps/a.yaml").write_text("kind: Pod\n")
    return folder


# path in the state file; link beside the plan to a file elsewhere, or to its folder
WAYS = [
    ("ELSEWHERE/victim.yaml", ""),
    ("../victim.yaml", ""),
    ("apps/../../victim.yaml", ""),
    ("apps/b.yaml", "apps/b.yaml"),
    ("apps/more/victim.yaml", "apps/more"),
    ("Makefile", ""),
    ("apps/run.sh", ""),
    (f"{manifests.FOLDER}/x.yaml", ""),
]


@pytest.mark.parametrize(("path", "link"), WAYS)
@pytest.mark.parametrize("before", ["evil\n", ""])
def test_a_rollback_touches_no_file_that_is_not_the_plan_s(folder: Path, path: str, link: str, before: str) -> None:
    victim = folder.parent / "victim.yaml"
    victim.write_text(KNOWN)
    path = path.replace("ELSEWHERE", str(victim.parent))
    if link:
        (folder / link).symlink_to(victim if link == path else victim.parent)
    elif not (folder / path).exists():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(KNOWN)
    if path.startswith(manifests.FOLDER):
        before = "evil\n"  # what was written for owners may be removed
    mine = FileBefore("apps/a.yaml", "kind: Job\n", "kind: Pod\n")
    with pytest.raises(ConfigError, match="no manifest of this plan"):
        restore(PLAN, folder, [mine, FileBefore(path, before, KNOWN)], lambda *_: None)
    assert (folder / path).read_text() == KNOWN
    assert (folder / "apps/a.yaml").read_text() == "kind: Pod\n", "all are looked at before the first is written"


def test_a_rollback_writes_manifests_and_removes_what_owners_got(folder: Path) -> None:
    said: list[str] = []
    made = f"{manifests.FOLDER}/release/kustomization.yaml"
    (folder / made).parent.mkdir(parents=True)
    (folder / made).write_text("x")
    written = [FileBefore("apps/a.yaml", "kind: Job\n", "kind: Pod\n"), FileBefore(made, "", "x")]
    restore(PLAN, folder, written, lambda *words: said.append(" ".join(words)))
    assert said == ["apps/a.yaml as it was", f"{made} removed"]
    assert (folder / "apps/a.yaml").read_text() == "kind: Job\n"
    assert not (folder / made).exists()


def test_a_manifest_that_was_changed_since_is_left(folder: Path) -> None:
    with pytest.raises(HostError, match="was changed since"):
        restore(PLAN, folder, [FileBefore("apps/a.yaml", "kind: Job\n", "kind: Cron\n")], lambda *_: None)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_fifo, _to_zero, Path.mkdir])
def test_a_state_file_that_is_none_is_an_error(folder: Path, make: Callable[[Path], None]) -> None:
    plan = folder / "plan.yaml"
    make(state_path(plan))
    with pytest.raises(DrabridgeError, match="cannot be read"):
        State(state_path(plan), PLAN)
    make(plan)
    if make is _fifo:
        with alone(plan):
            pass  # it does not wait for a writer; what reads the plan refuses it
