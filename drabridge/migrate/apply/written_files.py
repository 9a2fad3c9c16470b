"""Bring the files that a step wrote back to what they were.

The state file may have come with the plan from somebody else. So it is believed about two kinds of files: manifests
that this plan names, and what ``apply`` writes beside the plan for owners.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from drabridge.errors import ConfigError, HostError
from drabridge.migrate.apply import for_owners
from drabridge.migrate.apply.state import FileBefore
from drabridge.migrate.convert import files
from drabridge.migrate.convert.settings import Finding
from drabridge.migrate.plan.document import Plan
from drabridge.system.files import Care, write_atomically
from podresources.resolve.files import leads_out

Say = Callable[[str, str], None]


def restore(plan: Plan, folder: Path, written: Sequence[FileBefore], say: Say) -> None:
    """Write the files as they were before the step. ``folder``: where the plan is.

    Raises ConfigError where one is no file of this plan, and HostError where one was changed since or cannot be
    written. All are looked at before the first is written.
    """
    named = manifests_of(plan, folder) if any(one.before for one in written) else frozenset()
    for one in written:
        _check(one, folder, named)
    for one in written:
        path = folder / one.path
        if one.before:
            write(path, one.before)
            say(one.path, "as it was")
        else:
            for_owners.remove(path)
            say(one.path, "removed")


def manifests_of(plan: Plan, folder: Path) -> frozenset[Path]:
    """Return every file that the plan's manifests stand for, without symbolic links. Raises ConfigError."""
    found = files.find([folder / one for one in plan.manifests], ())
    return frozenset(Path(os.path.realpath(path)) for group in found.groups for path in group.files)


def write(path: Path, text: str) -> None:
    """Write a manifest over. Raises HostError."""
    try:
        write_atomically(path, text.encode(), mode=path.stat().st_mode & 0o777, care=Care.WHOLE)
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror}") from error


def _check(one: FileBefore, folder: Path, named: Collection[Path]) -> None:
    """Raise where a file is not the plan's, or has another text than the step found or left there."""
    path = Path(os.path.normpath(folder / one.path))
    root = Path(os.path.realpath(folder)) / for_owners.FOLDER
    mine = not leads_out(path, [root]) if not one.before else path in named or Path(os.path.realpath(path)) in named
    if not mine or path.is_symlink():
        raise ConfigError(
            f"{path} is no manifest of this plan, though its state says that a step wrote it",
            hint="Take the plan's state file from where you applied the plan: this one was changed",
        )
    if not one.before:
        return
    text = files.text_of(path)
    if isinstance(text, Finding):
        raise HostError(f"{path}: {text.message}")
    if text not in (one.before, one.after):
        raise HostError(
            f"{path} was changed since it was converted",
            hint="drabridge migrate convert --reverse, or your version control, gives you what it was",
        )
