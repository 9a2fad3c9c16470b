"""``python -m tests.agent.full_disk FILE run ...``: the agent on a disk that is full for as long as FILE exists."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path


def fill(flag: Path) -> None:
    """Replace ``os.fsync`` of this process, before the agent is imported."""
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if flag.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    vars(os)["fsync"] = full


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
    from drabridge.cli import main

    sys.exit(main(sys.argv[2:]))
