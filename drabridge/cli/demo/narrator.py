"""Print the demo's text: numbered steps, what was sent, what came back, how long it took."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager

_STYLES = {"step": "1;36", "out": "33", "in": "32", "time": "35", "note": "2", "head": "1"}


class Narrator:
    """Writes to standard output; colours only for a terminal (and never with NO_COLOR set)."""

    def __init__(self, *, pause_seconds: float = 0.0) -> None:
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._pause = pause_seconds
        self._step = 0

    def _print(self, style: str, text: str) -> None:
        if self._colour:
            text = f"\x1b[{_STYLES[style]}m{text}\x1b[0m"
        print(text, flush=True)

    def head(self, text: str) -> None:
        self._print("head", text)

    def step(self, title: str) -> None:
        """Begin a numbered step, after a pause for the reader."""
        if self._pause:
            time.sleep(self._pause)
        self._step += 1
        print()
        self._print("step", f"{self._step}. {title}")

    def note(self, text: str) -> None:
        """Print an explanation, wrapped."""
        for line in textwrap.wrap(" ".join(text.split()), 96):
            self._print("note", f"   {line}")

    def sent(self, who: str, what: str) -> None:
        self._print("out", f"   -> {who}: {what}")

    def came(self, who: str, what: str) -> None:
        self._print("in", f"   <- {who}: {what}")

    def block(self, text: str) -> None:
        """Print text unchanged but indented: a file, a table."""
        for line in text.rstrip("\n").splitlines():
            print(f"      {line}", flush=True)

    def took(self, what: str, seconds: float) -> None:
        shown = f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
        self._print("time", f"   {what}: {shown}")

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.took(what, time.monotonic() - started)
