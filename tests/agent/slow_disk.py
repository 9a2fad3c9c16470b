"""``python -m tests.agent.slow_disk FILE run ...``: the agent on a disk that takes no write for as long as FILE exists.

An fsync that does not return is what a disk of a node under load looks like; everything else of the agent is as it is.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

POLL_SECONDS = 0.005


def stand_still(hold: Path) -> None:
    """Replace ``os.fsync`` of this process, before the agent is imported."""
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        while hold.exists():
            time.sleep(POLL_SECONDS)
        fsync(descriptor)

    vars(os)["fsync"] = slow


if __name__ == "__main__":
    stand_still(Path(sys.argv[1]))
    from drabridge.cli import main

    sys.exit(main(sys.argv[2:]))
