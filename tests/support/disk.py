"""Record what a file system was asked to do below a directory, and what a power cut may undo of it.

A file's content is there after a power cut once the file was synced, its name once its directory was; until then
either may be missing, each without the other. The calls themselves are the real ones.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_SERIAL = re.compile(r"\.\d+-\d+-\d+\.tmp$")  # of a temporary file's name, see drabridge.system.files


class Disk:
    """Notes what is done below ``directory`` from now on."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = str(directory)
        self._data: set[str] = set()  # files with content that was not synced
        self._names: dict[str, str] = {}  # names that were not synced -> how they changed
        self.torn: list[str] = []  # files that were given their name before their content was synced
        self.synced = 0
        self.before_sync: Callable[[], None] = lambda: None
        for name in ("write", "fsync"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name), getattr(self, f"_{name}")))
        for name in ("replace", "rename", "link", "unlink"):
            monkeypatch.setattr(os, name, self._noting(getattr(os, name), getattr(self, f"_{name}")))

    @property
    def undone(self) -> list[str]:
        """What a power cut now might undo."""
        return sorted([*(f"content of {name}" for name in self._data), *self._names.values()])

    def _noting(self, call: Any, note: Any) -> Any:
        def noting(first: Any, *rest: Any, **options: Any) -> Any:
            if call is _FSYNC:
                self.before_sync()
            paths = [self._short(path) for path in (first, *(rest if call in _OF_TWO else ()))]
            done = call(first, *rest, **options)
            if all(path is not None for path in paths):
                note(*paths)
            return done

        return noting

    def _short(self, what: Any) -> str | None:
        path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else os.path.abspath(what)
        if path != self._directory and not path.startswith(f"{self._directory}/"):
            return None
        return _SERIAL.sub(".tmp", os.path.relpath(path, self._directory))

    def _write(self, path: str) -> None:
        self._data.add(path)

    def _fsync(self, path: str) -> None:
        self.synced += 1
        self._data.discard(path)
        self._names = {name: change for name, change in self._names.items() if (os.path.dirname(name) or ".") != path}

    def _replace(self, source: str, target: str) -> None:
        self._data.discard(target)
        if source in self._data:
            self._data.remove(source)
            self._data.add(target)
            self.torn.append(target)
        self._names.pop(source, None)
        self._names[target] = f"rename to {target}"

    _rename = _replace

    def _link(self, source: str, target: str) -> None:
        self._names[target] = f"link to {target}"

    def _unlink(self, path: str) -> None:
        self._data.discard(path)
        self._names[path] = f"removal of {path}"


_FSYNC = os.fsync
_OF_TWO = (os.replace, os.rename, os.link)
