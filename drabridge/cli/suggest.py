"""``drabridge suggest``: print a resource entry that matches a device of this machine, or what could be offered."""

from __future__ import annotations

import argparse

from drabridge.cli.options import add_output
from drabridge.cli.output import show
from drabridge.config.nvidia_profile import nvidia_profile
from drabridge.errors import HostError
from drabridge.inventory.offerable import offerable, row
from drabridge.inventory.suggest import SUGGESTED, suggest
from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_scope import UdevScope


def configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("device", metavar="DEVICE", nargs="?", help="a node under /dev, or a path under /sys/devices")
    what.add_argument("--all", action="store_true", help="list what of this machine could be offered, as a table")
    add_output(parser)
    parser.add_argument("--entry", action="store_true", help="only the item of resources:, without a head")
    parser.epilog = (
        "The entry matches this device and no other of this machine: by what does not change when it is plugged in\n"
        "elsewhere or renumbered, and where its like are there too, by its place.\n\n"
        "--all lists hardware that has a node under /dev or is an interface, and nodes as /dev/kvm. MATCHED BY says\n"
        "how an entry tells it from its like; `drabridge suggest` with what DEVICE says writes the entry.\n\n"
        "examples:\n"
        "  drabridge suggest --all\n"
        "  drabridge suggest /dev/ttyUSB0 > radio.yaml && drabridge match -c radio.yaml"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.all:
        everything = Udev(UdevScope(attributes=SUGGESTED)).enumerate()
        rows = [row(device, everything.values()) for device in offerable(everything)]
        columns = ("device", "resource", "model", "matched_by")
        show(rows, arguments.output, columns=columns, wide=("container_gets", "driver"), empty="nothing to offer here")
        return 0
    udev = Udev(UdevScope())
    device: str = arguments.device
    record = udev.read(device) if device.startswith("/sys/") else udev.find(device)
    if record is None:
        raise HostError(
            f"udev knows no device {device}",
            hint="Give a node under /dev or a path under /sys/devices; NVIDIA's /dev/nvidia* are none of udev's: "
            "give the GPU's path, as lspci names it: /sys/bus/pci/devices/0000:3b:00.0",
        )
    udev.scope = UdevScope(attributes=SUGGESTED)
    everything = udev.enumerate()
    entry, profile = suggest(everything.get(record.syspath) or record, everything.values()), nvidia_profile()
    if not arguments.entry:
        entry = profile if profile.endswith(entry) else HEAD + entry
    print(entry, end="")
    return 0


HEAD = """\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: devices.example.com  # a domain of yours
resources:
"""
