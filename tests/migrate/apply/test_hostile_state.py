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


def _victim(folder: Path) -> Path:
    victim = folder.parent / "victim.yaml"
    victim.write_text(KNOWN)
    return victim


def _absolute(folder: Path) -> str:
    return str(_victim(folder))


def _upwards(folder: Path) -> str:
    return os.path.relpath(_victim(folder), folder)


def _through_manifests(folder: Path) -> str:
    _victim(folder)
    return "apps/../../victim.yaml"


def _link(folder: Path) -> str:
    (folder / "apps/b.yaml").symlink_to(_victim(folder))
    return "apps/b.yaml"


def _linked_folder(folder: Path) -> str:
    victim = _victim(folder)
    (folder / "apps/more").symlink_to(victim.parent)
    return f"apps/more/{victim.name}"


def _beside_the_plan(folder: Path) -> str:
    (folder / "Makefile").write_text(KNOWN)
    return "Makefile"


def _no_manifest(folder: Path) -> str:
    (folder / "apps/run.sh").write_text(KNOWN)
    return "apps/run.sh"


def _for_owners(folder: Path) -> str:
    (folder / manifests.FOLDER).mkdir()
    (folder / manifests.FOLDER / "x.yaml").write_text(KNOWN)
    return f"{manifests.FOLDER}/x.yaml"


WAYS = [_absolute, _upwards, _through_manifests, _link, _linked_folder, _beside_the_plan, _no_manifest, _for_owners]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", ["evil\n", ""])
def test_a_rollback_touches_no_file_that_is_not_the_plan_s(
    folder: Path, way: Callable[[Path], str], before: str
) -> None:
    path = way(folder)
    if way is _for_owners:
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
