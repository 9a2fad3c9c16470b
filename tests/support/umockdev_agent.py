"""Run the agent under umockdev: ``python -m tests.support.umockdev_agent run ...``.

The threads of the agent look at /dev and /sys one after the other here. libumockdev 0.17 keeps the path of a call in a
buffer that all threads share, and after a ``stat`` of a link in /dev it reads that buffer once more without its lock:
where another thread's path is in it by then, ``is_emulated_device`` ends the process (src/libumockdev-preload.c).
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

from drabridge.cli import main
from drabridge.inventory.host import Host


@functools.cache
def look_one_after_the_other() -> None:
    """Make the methods of every Host of this process wait for each other, from the first call on."""
    lock = threading.Lock()
    for name in ("node", "exists", "first_line", "own_node"):
        method = getattr(Host, name)

        @functools.wraps(method)
        def alone(self: Host, path: str, method: Any = method) -> Any:
            with lock:
                return method(self, path)

        setattr(Host, name, alone)


if __name__ == "__main__":
    look_one_after_the_other()
    sys.exit(main(sys.argv[1:]))
