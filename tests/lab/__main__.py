"""``python -m tests.lab``: run the lab's tests, or look into the guest.

``python -m tests.lab [test] [PYTEST ARGUMENTS]``; ``build``; ``boot`` (tells what the guest shows and how long it
took); ``shell`` (commands for the guest from standard input, and ``!plug NAME``, ``!unplug NAME``); ``record``.
DRABRIDGE_LAB_KERNEL=ubuntu boots Ubuntu's kernel instead of Debian's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.lab.guest import Guest
from tests.lab.image import ROOT, LabError, build

SHOW = """\
echo "kernel $(uname -r), $(nproc) processors, $(ls /sys/kernel/iommu_groups | wc -l) IOMMU groups"
echo "NUMA nodes: $(cat /sys/devices/system/node/online)"
lspci -nn
lsusb
ls /dev/disk/by-id /dev/serial/by-id /sys/class/net /dev/snd
"""


def main(words: list[str]) -> int:
    match words[:1]:
        case ["build"]:
            print(build())
            return 0
        case ["boot"]:
            with Guest() as guest:
                print(guest.run(SHOW).out, end="")
                print(f"booted in {guest.boot_seconds:.0f} s, {guest.cpu_seconds():.0f} s of processor time")
            return 0
        case ["shell"]:
            return _shell()
        case ["record"]:
            from tests.lab.records import write

            return write()
    return _test(words[1:] if words[:1] == ["test"] else words)


def _test(words: list[str]) -> int:
    files = [] if any((ROOT / word.partition("::")[0]).exists() for word in words) else ["tests/lab"]
    environment = os.environ | {"DRABRIDGE_LAB": "1"}
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "lab", *words, *files]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _shell() -> int:
    with Guest() as guest:
        print(f"booted in {guest.boot_seconds:.0f} s; end with Ctrl-D", file=sys.stderr)
        while True:
            print("lab# ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                return 0
            try:
                match line.split():
                    case []:
                        continue
                    case ["!plug", name]:
                        guest.plug(name)
                    case ["!unplug", name]:
                        guest.unplug(name)
                    case ["!qmp", command, *rest]:
                        print(json.dumps(guest.qmp(command, **json.loads(" ".join(rest) or "{}"))))
                    case _:
                        print(guest.run(line, seconds=600).out, end="", flush=True)
            except LabError as error:
                print(error, file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except LabError as error:
        sys.exit(f"lab: {error}")
