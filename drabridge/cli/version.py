"""``drabridge version``: print the versions of drabridge and of its main dependencies."""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version

from drabridge import __version__
from drabridge.cli.options import add_output
from drabridge.cli.output import show

PACKAGES = ("grpcio", "protobuf", "pyudev", "watchdog", "msgspec", "urllib3", "kubernetes", "prometheus-client")


def configure(parser: argparse.ArgumentParser) -> None:
    add_output(parser)
    parser.epilog = "example: drabridge version -o json"


def run(arguments: argparse.Namespace) -> int:
    rows = [{"name": "drabridge", "version": __version__}, {"name": "python", "version": platform.python_version()}]
    for package in PACKAGES:
        try:
            rows.append({"name": package, "version": version(package)})
        except PackageNotFoundError:
            rows.append({"name": package, "version": "not installed"})
    rows.append({"name": "kernel", "version": platform.release()})
    show(rows, arguments.output, columns=("name", "version"))
    return 0
