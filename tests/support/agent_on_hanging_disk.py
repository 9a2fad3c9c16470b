"""Run the agent on a disk that hangs while FILE exists: ``-m tests.support.agent_on_hanging_disk FILE run ...``.

An fsync that does not return is what a disk of a node under load looks like; everything else of the agent is as it is.
Where FILE has a text, what hangs is every change of a file, and every sync, whose path has that text in it.
``FILE.hung`` is made when a call hangs for the first time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drabridge.cli import main
from drabridge.ledger.store import Store

POLL_SECONDS = 0.005
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def stand_still(hold: Path) -> None:
    """Replace calls of this process."""
    hung = Path(f"{hold}.hung")

    def hangs(path: str) -> bool:
        try:
            return hold.read_text().strip() in path
        except FileNotFoundError:
            return False

    def slow(name: str, concerned: Callable[..., bool]) -> None:
        real = vars(os)[name]

        def call(first: Any, *rest: Any, **more: Any) -> Any:
            while concerned(first, *rest):
                path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else os.fspath(first)
                if not hangs(str(path)):
                    break
                hung.touch()
                time.sleep(POLL_SECONDS)
            return real(first, *rest, **more)

        vars(os)[name] = call

    def told(*_: Any) -> bool:
        return hold.exists() and bool(hold.read_text().strip())

    slow("fsync", lambda *_: hold.exists())
    slow("open", lambda path, flags=0, *_: bool(flags & CHANGES) and told())
    for name in ("replace", "rename", "unlink", "mkdir"):
        slow(name, told)
    defaults = Store.__init__.__kwdefaults__ or {}
    defaults["fsync"] = os.fsync  # it has taken the real one


if __name__ == "__main__":
    stand_still(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
