"""Describe one reader of foreign bytes, and find the good inputs that are known for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
CRASH = "crash-"  # begins the name of an input that a reader once failed on
MOST_SEED_BYTES = 100_000

Read = Callable[[bytes], None]
"""Reads one input. Whatever it raises is a failure: it keeps the reader's own documented errors to itself."""


class Form(Enum):
    """How an input is changed, so that most of it is still understood."""

    JSON = "JSON"
    LINES = "JSON, one object a line"
    LEDGER = "JSON, one object a line, each with its checksum"
    YAML = "YAML"
    MESSAGE = "protobuf, after the name of a method and a line break"
    HTTP = "HTTP"


class Reader(Struct, frozen=True):
    """One reader. ``open``: begins it in an empty folder. ``recorded``: good inputs that the repository has anyway."""

    name: str
    form: Form
    what: str
    open: Callable[[Path], AbstractContextManager[Read]]
    recorded: tuple[str, ...] = ()
    processes: bool = False  # it starts an agent: what it costs is not this process's

    def seeds(self) -> dict[str, bytes]:
        """Return the good inputs, and those that once were failures, by name."""
        paths = [*sorted((CORPUS / self.name).glob("*"))]
        for pattern in self.recorded:
            paths += sorted(ROOT.glob(pattern))
        return {str(one.relative_to(ROOT)): one.read_bytes() for one in paths if one.stat().st_size < MOST_SEED_BYTES}
