"""``drabridge status``: what an on-call person needs at three in the morning, on one screen."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from drabridge.cli.agent_client import add_socket, ask, find_socket
from drabridge.cli.output import cell, table
from drabridge.words import age, holder, seconds_of

Row = Mapping[str, Any]
COLUMNS = ("device", "lane", "owner", "holder", "since", "evidence", "move")
WIDE = ("resource", "id", "presence", "numa", "pci", "nodes")


def configure(parser: argparse.ArgumentParser) -> None:
    add_socket(parser)
    parser.add_argument("--resource", metavar="NAME", help="only this resource")
    parser.add_argument("--watch", "-w", nargs="?", type=float, const=2.0, metavar="SECONDS", help="again and again")
    parser.add_argument("-o", "--output", choices=("table", "wide", "json", "yaml"), default="table")
    parser.epilog = (
        "Exit status 1 when the agent is not ready or a device is in doubt, so a script can ask too.\n\n"
        "examples:\n"
        "  drabridge status\n"
        "  drabridge status --watch\n"
        "  drabridge status -o json | jq '.devices[] | select(.owner == \"conflict\")'"
    )


def run(arguments: argparse.Namespace) -> int:
    path = find_socket(arguments.socket)
    while True:
        document = ask(path, "/status")
        if arguments.watch is not None and sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="")
        _print(document, arguments)
        doubt = any(row["inDoubt"] for row in document["resources"])
        if arguments.watch is None:
            return 1 if doubt or not document["ready"] else 0
        sys.stdout.flush()
        time.sleep(max(arguments.watch, 0.2))


def _print(document: Row, arguments: argparse.Namespace) -> None:
    if arguments.output == "json":
        print(json.dumps(document, indent=2))
    elif arguments.output == "yaml":
        import yaml

        print(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), end="")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() and arguments.output == "table" else None
        print("\n".join(render(document, arguments.resource, wide=arguments.output == "wide", width=width)))


def render(
    document: Row, resource: str | None = None, *, wide: bool = False, width: int | None = None
) -> Iterator[str]:
    """The screen, line by line: is it well, what is there, who has it, what was refused."""
    now = seconds_of(document["at"])
    verdict = "ready" if document["ready"] else "NOT READY"
    up = age(now, seconds_of(document["startedAt"]))
    yield f"{document['node']}  {document['driver']}  drabridge {document['version']}  up {up}  {verdict}"
    for reason in document["notReadyBecause"]:
        yield f"  ! {cell(reason)}"
    for endpoint in document["endpoints"]:
        if not endpoint["ready"]:
            yield f"  ! {endpoint['api']} {endpoint['name']}: {endpoint['phase']} {cell(endpoint['error'])}"
    for note in document["notes"]:
        yield f"  - {cell(note)}"
    resources = [row for row in document["resources"] if resource in (None, row["name"])]
    if resources:
        yield ""
        yield table([_resource(row) for row in resources], tuple(_resource(resources[0])), width)
    devices = [_device(row, now) for row in document["devices"] if resource in (None, row["resource"])]
    yield ""
    yield table(devices, [*COLUMNS, *WIDE] if wide else COLUMNS, width) if devices else "no devices"
    if document["refusals"]:
        yield ""
        yield "recent refusals"
        for refusal in document["refusals"][-5:]:
            when = age(now, seconds_of(refusal["at"]))
            what = f"{refusal['api']}  {refusal['device']}  {refusal['reason']}"
            yield f"  {when} ago  {what}  {cell(refusal['message'])}"


def _resource(row: Row) -> dict[str, Any]:
    return {
        "resource": row["name"],
        "devices": row["devices"],
        "free": row["free"],
        "pods": row["heldByPods"],
        "claims": row["heldByClaims"],
        "doubt": row["inDoubt"],
        "unusable": row["unusable"],
        "lanes": " ".join(f"{lane}:{count}" for lane, count in row["lanes"].items()),
        "moving": row["moving"],
    }


def _device(row: Row, now: float) -> dict[str, Any]:
    move = row["move"]
    return {
        "device": row["name"],
        "lane": row["lane"] + (" (drain)" if row["drain"] else ""),
        "owner": row["owner"] if row["presence"] == "present" else f"{row['owner']}, {row['presence']}",
        "holder": [holder(one) for one in row["holders"]] or row["reason"],
        "since": age(now, seconds_of(row["since"])),
        "evidence": row["evidence"],
        "move": f"to {move['to']}: {move['step']} {move['reason']}".strip() if move else "",
        "resource": row["resource"],
        "id": row["id"],
        "presence": row["presence"],
        "numa": row["numaNodes"],
        "pci": row["pciBusID"],
        "nodes": row["nodes"],
    }
