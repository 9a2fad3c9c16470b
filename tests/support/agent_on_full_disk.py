"""Run the agent on a disk that is full while FILE exists: ``-m tests.support.agent_on_full_disk FILE run ...``."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from drabridge.cli import main
from drabridge.ledger.store import Store


def fill(flag: Path) -> None:
    """Replace ``os.fsync`` of this process."""
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if flag.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    vars(os)["fsync"] = full
    defaults = Store.__init__.__kwdefaults__ or {}
    defaults["fsync"] = full  # it has taken the real one


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
