"""``drabridge record`` of devices of the shelf, with all that hangs on the same hardware: ``... record NAME...``."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator

import pyudev

from drabridge.cli import main
from tests.lab.inside.found import find


def related(syspath: str) -> Iterator[str]:
    """The device, and what is below it: a sound card's nodes, a disk's partitions."""
    context = pyudev.Context()
    device = pyudev.Devices.from_sys_path(context, syspath)
    yield syspath
    for child in device.children:
        yield child.sys_path


if __name__ == "__main__":
    paths = dict.fromkeys(path for name in sys.argv[1:] for path in related(find(name)))
    with contextlib.redirect_stderr(io.StringIO()):  # the host takes both streams as one
        code = main(["record", "--keep-serials", *paths])
    sys.exit(code)
