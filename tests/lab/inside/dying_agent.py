"""An agent that dies at a step of a bind: ``python -m tests.lab.inside.dying_agent NUMBER before|after run ...``."""

from __future__ import annotations

import os
import signal
import sys

from drabridge.cli import main
from drabridge.system.pci_driver import Binding, PciDrivers, Step

_write = PciDrivers.do


def die_at(number: int, when: str) -> None:
    """Kill this process before or after so many writes to sysfs."""
    steps = []

    def do(self: PciDrivers, address: str, step: Step, wanted: Binding) -> None:
        steps.append(step)
        if len(steps) == number and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        _write(self, address, step, wanted)
        if len(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    PciDrivers.do = do  # type: ignore[method-assign]


if __name__ == "__main__":
    die_at(int(sys.argv[1]), sys.argv[2])
    sys.exit(main(sys.argv[3:]))
