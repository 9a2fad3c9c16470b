"""``drabridge record``: write an umockdev dump of devices, for a bug report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from drabridge.cli.options import add_config
from drabridge.config.loader import load
from drabridge.config.schema import Config
from drabridge.errors import HostError
from drabridge.inventory.dump import dump
from drabridge.inventory.match import matches
from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import scope_of


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--output", "-o", type=Path, metavar="FILE", help="default: standard output")
    parser.add_argument("--keep-serials", action="store_true", help="do not replace serial numbers")
    parser.add_argument("device", nargs="*", metavar="DEVICE", help="these instead of what the configuration matches")
    parser.epilog = (
        "The dump holds the devices with their parents as udev shows them; umockdev-run plays it back on any machine.\n"
        "Serial numbers are replaced unless you keep them: rules that name one, as those of `drabridge suggest`,\n"
        "find nothing in it then. Read it before you attach it to a bug report.\n\n"
        "examples:\n"
        "  drabridge record -c radios.yaml -o radios.umockdev\n"
        "  drabridge record -c radios.yaml --keep-serials -o mine.umockdev\n"
        "  umockdev-run --device mine.umockdev -- drabridge devices -c radios.yaml"
    )


def _shared_nodes(udev: Udev, config: Config) -> list[UdevDevice]:
    """Return the devices of nodes that the configuration names by path, such as /dev/kfd with AMD's topology."""
    paths = {node.path.literal for resource in config.resources for node in resource.nodes if node.path}
    return [record for path in sorted(filter(None, paths)) if (record := udev.find(path))]


def run(arguments: argparse.Namespace) -> int:
    if arguments.device:
        udev = Udev()
        records = [udev.find(name) or udev.read(name) for name in arguments.device]
        missing = [name for name, record in zip(arguments.device, records, strict=True) if record is None]
        if missing:
            raise HostError(f"udev knows no device {', '.join(missing)}")
        chosen = [record for record in records if record is not None]
    else:
        config = load(arguments.config)
        udev = Udev(scope_of(config))
        everything = udev.enumerate().values()
        chosen = [record for record in everything if any(matches(record, r.match) for r in config.resources)]
        chosen += _shared_nodes(udev, config) if chosen else []
    chosen = list({record.syspath: record for record in chosen}.values())
    text = dump(udev, chosen, anonymous=not arguments.keep_serials)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    print(f"recorded {len(chosen)} devices and their parents", file=sys.stderr)
    return 0 if chosen else 1
