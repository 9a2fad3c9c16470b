"""An agent that dies after so many steps of a bind: ``python -m tests.lab.inside.dying_agent NUMBER run ...``."""

from __future__ import annotations

import os
import signal
import sys

from drabridge.cli import main
from drabridge.system.pci_driver import Binding, PciDrivers, Step

_write = PciDrivers.do


def die_after(number: int) -> None:
    """Kill this process after so many writes to sysfs."""
    steps = []

    def do(self: PciDrivers, address: str, step: Step, wanted: Binding) -> None:
        steps.append(step)
        _write(self, address, step, wanted)
        if len(steps) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    PciDrivers.do = do  # type: ignore[method-assign]


if __name__ == "__main__":
    die_after(int(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
