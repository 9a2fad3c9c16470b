"""``drabridge check-config``: report every error of a configuration, or convert one of another format."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from msgspec.structs import asdict

from drabridge.cli.options import add_output
from drabridge.cli.output import show
from drabridge.config.advice import advice
from drabridge.config.loader import load
from drabridge.config.problems import ConfigErrors, Fault

FORMATS = ("drabridge", "generic-device-plugin", "nvidia-device-plugin", "sriov-network-device-plugin")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="what to check")
    parser.add_argument("--config", "-c", type=Path, metavar="FILE", help="the same, as other commands have it")
    parser.add_argument("--from", dest="source", choices=FORMATS, default="drabridge", help="convert FILE from this")
    parser.add_argument("--json-schema", action="store_true", help="print the schema of the configuration, and no more")
    add_output(parser)
    parser.epilog = (
        "examples:\n"
        "  drabridge check-config config.yaml\n"
        "  drabridge check-config --from generic-device-plugin old.yaml > config.yaml\n"
        "  drabridge check-config --from nvidia-device-plugin time-slicing.yaml > config.yaml\n"
        "  drabridge check-config --from sriov-network-device-plugin config.json > config.yaml\n"
        "  drabridge check-config --json-schema > drabridge.schema.json"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.json_schema:
        from drabridge.config.json_schema import json_schema

        print(json.dumps(json_schema(), indent=2))
        return 0
    files = [*arguments.files, *filter(None, [arguments.config])]
    if not files:
        print("drabridge check-config: name a FILE, or --json-schema", file=sys.stderr)
        return 2
    if arguments.source != "drabridge":
        return _convert(files, arguments.source)
    faults: list[Fault] = []
    for path in files:
        try:
            config = load(path)
        except ConfigErrors as errors:
            faults += errors.faults
        else:
            if arguments.output in ("table", "wide"):
                names = ", ".join(resource.name for resource in config.resources)
                print(f"{path}: fine ({len(config.resources)} resources: {names})")
                for hint in advice(config):
                    print(f"{path}: note: {hint}", file=sys.stderr)
    if arguments.output in ("table", "wide"):
        for fault in faults:
            print(fault, file=sys.stderr)
        if faults:
            print(f"{len(faults)} errors", file=sys.stderr)
    else:
        show([asdict(fault) for fault in faults], arguments.output, columns=("file", "line", "path", "found"))
    return 2 if faults else 0


def _convert(files: list[Path], source: str) -> int:
    """Print each file's configuration, converted to our format. Raises ConfigErrors if that is impossible."""
    if source == "nvidia-device-plugin":
        from drabridge.config.import_nvidia_device_plugin import convert
    elif source == "sriov-network-device-plugin":
        from drabridge.config.import_sriov_device_plugin import convert
    else:
        from drabridge.config.import_generic_device_plugin import convert

    for path in files:
        print(convert(path), end="")
    return 0
