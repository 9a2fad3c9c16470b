"""Run the agent under umockdev: ``python -m tests.support.umockdev_agent run ...``.

The threads of the agent look at /dev and /sys one after the other here. libumockdev 0.17 keeps the path of a call in a
buffer that all threads share, and after a ``stat`` of a link in /dev it reads that buffer once more without its lock:
where another thread's path is in it by then, ``is_emulated_device`` ends the process (src/libumockdev-preload.c).

Its kubeconfig is read here: the program that reads any kubeconfig takes longer to start than the agent.
"""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from typing import Any

import yaml

from drabridge.cli import main
from drabridge.inventory.host import Host
from drabridge.kube import client
from drabridge.kube.access import Access


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


def simulated_access(path: Path, context: str | None = None) -> Access:
    """Return the access to a simulated API server without TLS."""
    data = yaml.safe_load(path.read_text())
    (cluster,), (user,) = data["clusters"], data["users"]
    return Access(cluster["cluster"]["server"], authorization=f"Bearer {user['user']['token']}")


if __name__ == "__main__":
    look_one_after_the_other()
    vars(client)["of_kubeconfig"] = simulated_access
    sys.exit(main(sys.argv[1:]))
