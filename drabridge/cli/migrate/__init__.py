"""``drabridge migrate``: move the workloads of a cluster from limits to claims, from an administrator's desk."""

from __future__ import annotations

import argparse
import importlib

# name -> (module with `configure(parser)` and `run(arguments) -> int`, one line of help)
COMMANDS = {
    "report": ("report", "who uses which devices in a cluster, by which API, and what stands in the way of claims"),
    "switch": ("switch", "switch namespaces by a label: their new pods get claims instead of limits"),
    "plan": ("plan", "say in which order workloads come to claims, and whether each step fits"),
    "apply": ("apply", "do the next steps of a plan"),
    "rollback": ("rollback", "undo the last steps of a plan"),
    "status": ("progress", "show which steps of a plan are done"),
    "verify": ("verify", "say which workloads are on claims, and which fell back to limits"),
    "convert": ("convert", "rewrite manifests from limits to ResourceClaims, or back"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: drabridge migrate report -o html > report.html"


def run(arguments: argparse.Namespace) -> int:
    module = importlib.import_module(f"drabridge.cli.migrate.{COMMANDS[arguments.own][0]}")
    code: int = module.run(arguments)
    return code
