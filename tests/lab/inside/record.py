"""``drabridge record`` of devices of the shelf, with all that hangs on the same hardware: ``... record NAME...``."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pyudev

from drabridge.cli import main
from tests.lab.inside.found import find
from tests.lab.inside.nodes import make_functions

FUNCTIONS = {"functions": 2, "nic": 4}
"""How many virtual functions are recorded with their physical one, given to vfio-pci."""


def related(name: str) -> Iterator[str]:
    """The device, the other ports of its card, and what is below it: a sound card's nodes, virtual functions."""
    device = pyudev.Devices.from_sys_path(pyudev.Context(), find(name))
    yield device.sys_path
    if name in FUNCTIONS:
        yield str(Path("/sys/class/misc/vfio").resolve())
        for address in make_functions(FUNCTIONS[name], name):
            function = Path("/sys/bus/pci/devices", address).resolve()
            yield str(function)
            yield str((Path("/sys/class/vfio") / (function / "iommu_group").resolve().name).resolve())
    for near in [*device.children, *(device.parent.children if device.subsystem == "tty" else ())]:
        yield near.sys_path


if __name__ == "__main__":
    paths = dict.fromkeys(path for name in sys.argv[1:] for path in related(name))
    with contextlib.redirect_stderr(io.StringIO()):  # the host takes both streams as one
        code = main(["record", "--keep-serials", *paths])
    sys.exit(code)
