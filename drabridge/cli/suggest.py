"""``drabridge suggest``: print a resource entry that matches a device of this machine."""

from __future__ import annotations

import argparse

from drabridge.errors import HostError
from drabridge.inventory.suggest import SUGGESTED, suggest
from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_scope import UdevScope


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help="a node under /dev, or a path under /sys/devices")
    parser.add_argument("--entry", action="store_true", help="only the item of resources:, without a head")
    parser.epilog = (
        "The entry matches this device and no other of this machine: by what does not change when it is plugged in\n"
        "elsewhere or renumbered, and where its like are there too, by its place.\n\n"
        "example: drabridge suggest /dev/ttyUSB0 > radio.yaml && drabridge match -c radio.yaml"
    )


def run(arguments: argparse.Namespace) -> int:
    udev = Udev(UdevScope())
    device: str = arguments.device
    record = udev.read(device) if device.startswith("/sys/") else udev.find(device)
    if record is None:
        raise HostError(
            f"udev knows no device {device}",
            hint="Give a node under /dev or a path under /sys/devices; NVIDIA's /dev/nvidia* are none of udev's: "
            "see the example nvidia-gpu.yaml",
        )
    udev.scope = UdevScope(attributes=SUGGESTED)
    everything = udev.enumerate()
    if not arguments.entry:
        print(HEAD, end="")
    print(suggest(everything.get(record.syspath) or record, everything.values()), end="")
    return 0


HEAD = """\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: devices.example.com  # a domain of yours
resources:
"""
