"""Run the agent with mounts and network of a pod: ``python -m tests.lab.inside.pod_agent mounted|hidden run ...``."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

from drabridge.cli import main

CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000


def enter(hidden: bool) -> None:
    """Mounts and network of its own; with ``hidden``, /run/udev is not there, as where a pod does not mount it."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(CLONE_NEWNS | CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if hidden:
        subprocess.run(["mount", "-t", "tmpfs", "hidden", "/run"], check=True)
        assert not os.path.exists("/run/udev")


if __name__ == "__main__":
    enter(sys.argv[1] == "hidden")
    sys.exit(main(sys.argv[2:]))
