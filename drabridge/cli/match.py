"""``drabridge match``: say which udev devices match a configuration's rules, and why."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drabridge.cli.hardware import resources_named
from drabridge.cli.options import add_config, add_output
from drabridge.cli.output import show
from drabridge.config.loader import load
from drabridge.config.matcher import any_of
from drabridge.config.schema import Config
from drabridge.errors import HostError
from drabridge.inventory import nvidia
from drabridge.inventory.match import explain, holds
from drabridge.inventory.mig import with_capabilities, with_instances
from drabridge.inventory.udev import Udev
from drabridge.inventory.udev_device import UdevDevice
from drabridge.inventory.udev_scope import MIG, needs_nvidia, scope_of


def configure(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--resource", metavar="NAME", help="only the rules of this resource")
    parser.add_argument("--explain", action="store_true", help="say for every rule why it holds or not")
    parser.add_argument("--all", action="store_true", help="also devices that do not match")
    parser.add_argument("device", nargs="*", metavar="DEVICE", help="only these: /dev/... or /sys/devices/...")
    add_output(parser)
    parser.epilog = (
        "examples:\n"
        "  drabridge match -c radios.yaml                           # what matches\n"
        "  drabridge match -c radios.yaml --explain /dev/ttyUSB0    # why this one does, or does not"
    )


def _records(arguments: argparse.Namespace, config: Config) -> Iterator[UdevDevice]:
    udev = Udev(scope_of(config))
    instances: Mapping[str, UdevDevice] = {}
    if needs_nvidia(config):
        instances = with_instances(udev.enumerate(), with_capabilities(nvidia.read(), Path("/proc")))
    if not arguments.device:
        yield from (instances or udev.enumerate()).values()
    for name in arguments.device:
        record = instances.get(name) or (udev.read(name) if name.startswith("/sys/") else udev.find(name))
        if record is None:
            raise HostError(f"udev knows no device {name}", hint="Give a node under /dev or a path under /sys/devices")
        yield record


def _shown(row: Mapping[str, Any]) -> str:
    """Return the device's name in the table; a MIG instance with its GPU, as several GPUs have one named gi1-ci0."""
    name = str(row["device"])
    return f"{row['syspath'].split('/')[-3]}/{name}" if row["subsystem"] == MIG else name


def run(arguments: argparse.Namespace) -> int:
    config = load(arguments.config)
    resources = resources_named(config, arguments.resource)
    rows: list[dict[str, Any]] = []
    shown = bool(arguments.device) or arguments.all
    rules = [(resource, any_of(resource.match)) for resource in resources]
    for record in _records(arguments, config):
        for resource, predicate in rules:
            if not shown and not holds(predicate, record):
                continue
            answer = explain(record, resource.match)
            rows.append(
                {
                    "resource": resource.name,
                    "matches": answer.ok,
                    "device": record.sysname,
                    "subsystem": record.subsystem,
                    "node": record.devnode,
                    "syspath": record.syspath,
                    "why": str(answer).splitlines(),
                }
            )
    if arguments.explain and arguments.output == "table":
        for row in rows:
            print(f"{row['syspath']} {'is' if row['matches'] else 'is not'} {row['resource']}")
            print("\n".join(f"  {line}" for line in row["why"]))
    else:
        if arguments.output in ("table", "wide"):
            rows = [row | {"device": _shown(row)} for row in rows]
        show(
            rows,
            arguments.output,
            columns=("resource", "matches", "device", "subsystem", "node"),
            wide=("syspath",),
            empty="nothing matches; add --all --explain to see why",
        )
    return 0 if any(row["matches"] for row in rows) else 1
