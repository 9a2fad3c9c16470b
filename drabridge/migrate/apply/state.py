"""Keep the done steps of a plan, and the state before them, in a file beside it. One command may use it at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict

from drabridge.errors import ConfigError, HostError
from drabridge.migrate.plan.document import Plan, Step
from drabridge.system.files import write_atomically
from podresources.resolve.files import UnreadableFileError, read

SUFFIX = ".state.json"
VERSION = 1
MOST_BYTES = 256 << 20  # the texts of all manifests that steps have changed, twice


class Progress(StrEnum):
    """How far a step is. A step that was begun can be done again and then continues."""

    BEGUN = "begun"
    DONE = "done"
    GOING_BACK = "going back"


class FileBefore(Struct, rename="camel"):
    """A manifest that a step converted: its text before ("": no file), and the text that the step wrote.

    ``path``: relative to the plan if it is below the plan's folder, so that both can be moved together.
    """

    path: str
    before: str
    after: str


class Record(Struct, rename="camel"):
    """One step. ``annotations``: Node -> annotation before the step, None if there was none. ``switches``: the step
    switched its namespace, which was not switched before. ``converts``: it brings manifests to the cluster.

    ``restarts``: workload -> when its rollout was asked for, so that it is asked for only once; ``undo_restarts``: the
    same for the undo.
    """

    digest: str
    progress: Progress
    since: str
    annotations: dict[str, str | None] = field(default_factory=dict)
    switches: bool = False
    converts: bool = False
    restarts: dict[str, str] = field(default_factory=dict)
    undo_restarts: dict[str, str] = field(default_factory=dict)
    files: list[FileBefore] = field(default_factory=list)


class _Document(Struct, rename="camel"):
    version: int
    cluster: str
    steps: dict[str, Record]


class State:
    """The state file. ``records`` has a step from its begin until it is undone."""

    def __init__(self, path: Path, plan: Plan) -> None:
        """Read the file. Raises ConfigError if it is damaged or of another plan."""
        self._path = path
        self._plan = plan
        self.records: dict[str, Record] = {}
        try:
            data = read(path, MOST_BYTES)
        except UnreadableFileError as error:
            raise HostError(f"{path} cannot be read: {error.reason}") from error
        if data is None:
            return
        try:
            found = msgspec.json.decode(data, type=_Document)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            hint = "It says what was there before each step: restore it from a backup"
            raise ConfigError(f"{path} is damaged: {error}", hint=hint) from error
        if found.version != VERSION or found.cluster != plan.cluster:
            raise ConfigError(f"{path} is not of this plan", hint="Give each plan a folder or a name of its own")
        self.records = found.steps
        self._check_steps()

    def of(self, step: Step) -> Record | None:
        return self.records.get(step.name)

    def begin(self, step: Step) -> Record:
        """Return the step's record, made now if there is none."""
        record = self.records.get(step.name)
        if record is None:
            record = self.records[step.name] = Record(_digest(step), Progress.BEGUN, now())
        return record

    def set(self, step: Step, progress: Progress) -> None:
        """Set a step's progress, and save it."""
        record = self.records[step.name]
        if record.progress is not progress:
            record.progress, record.since = progress, now()
        self.save()

    def forget(self, step: Step) -> None:
        """Forget a step that is undone."""
        del self.records[step.name]
        self.save()

    def save(self) -> None:
        """Write the file. Raises HostError."""
        data = msgspec.json.format(msgspec.json.encode(_Document(VERSION, self._plan.cluster, self.records)), indent=1)
        try:
            write_atomically(self._path, data, mode=0o600)
        except OSError as error:
            raise HostError(
                f"{self._path} cannot be written: {error.strerror}", hint="Make room, then run the command again"
            ) from error

    def _check_steps(self) -> None:
        """Raise ConfigError if the plan has changed a step since it was begun."""
        known = {step.name: _digest(step) for step in self._plan.steps}
        for name, record in self.records.items():
            if known.get(name) != record.digest:
                raise ConfigError(
                    f"step {name} was begun with another text",
                    hint=f"Give the plan the step as it was; {self._path.name} is about that one",
                )


def state_path(plan: Path) -> Path:
    """Return where the state of a plan is: ``plan.yaml.state.json``."""
    return plan.with_name(plan.name + SUFFIX)


@contextmanager
def alone(plan: Path) -> Iterator[None]:
    """Hold the lock of a plan. Raises HostError while another command has it."""
    try:
        lock = os.open(plan, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise HostError(f"{plan} cannot be read: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise HostError(f"another command follows {plan} now", hint="Wait for it, or end it") from error
    finally:
        os.close(lock)


def now() -> str:
    """Return the present time as Kubernetes writes it, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _digest(step: Step) -> str:
    """Return a hash of the step's actions, without its remarks."""
    data = asdict(step)
    del data["missing"], data["notes"]
    return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()[:16]
