"""``drabridge status``: show on one screen who holds which device, and what is wrong."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from drabridge.cli.agent_client import ask, find_socket
from drabridge.cli.options import add_output, add_socket
from drabridge.cli.output import as_json_or_yaml, error_text, table, terminal_width, wrapped
from drabridge.cli.pods import add_nodes
from drabridge.errors import ConfigError, DrabridgeError
from drabridge.status.wording import (
    HOLDERS_MAX,
    Row,
    age,
    doubts,
    evidence,
    grouped_refusals,
    holders,
    move_text,
    owner,
    parse_time,
    verdict,
)

COLUMNS = ("device", "lane", "owner", "holder", "since", "evidence")
QUIET = frozenset({"doubt", "unusable", "cordoned", "shared", "moving"})  # left out if all are zero, as on the page
DOUBTS_MAX = REFUSALS_MAX = 5  # the table shows the others; nobody reads more than one screen
NARROW = ("device", "lane", "owner", "since")
WIDE = ("resource", "id", "presence", "numa", "pci", "nodes")


def configure(parser: argparse.ArgumentParser) -> None:
    add_socket(parser)
    parser.add_argument("--resource", metavar="NAME", help="only this resource")
    text = "show it again every so many seconds; default: 2"
    parser.add_argument("--watch", "-w", nargs="?", type=float, const=2.0, metavar="SECONDS", help=text)
    add_output(parser)
    add_nodes(parser)
    parser.epilog = (
        "Exit status 1 when the agent is not ready or a device is in doubt, so a script can ask too.\n\n"
        "examples:\n"
        "  drabridge status\n"
        "  drabridge status --watch\n"
        "  drabridge status --node node-7\n"
        "  drabridge status -o json | jq '.devices[] | select(.owner == \"conflict\")'"
    )


def run(arguments: argparse.Namespace) -> int:
    path = find_socket(arguments.socket)
    asked = False
    while True:
        stream = sys.stdout
        try:
            document = ask(path, "/status")
            text = _text(document, arguments)
        except DrabridgeError as error:
            if not asked:
                raise
            text, stream = error_text(error), sys.stderr  # keep watching: the agent may be restarting
        asked = True
        if arguments.watch is None:
            print(text)
            return 0 if verdict(document)[0] else 1
        if sys.stdout.isatty():
            print("\x1b[H\x1b[2J", end="", flush=True)
        print(text, file=stream, flush=True)
        time.sleep(max(arguments.watch, 0.2))


def of_resource(document: Row, name: str | None) -> tuple[list[Row], list[Row]]:
    """Return (resources, devices) of the resource of this name, or all without a name. Raises ConfigError."""
    resources = [row for row in document["resources"] if name in (None, row["name"])]
    if not resources and name is not None:
        known = ", ".join(row["name"] for row in document["resources"]) or "none"
        raise ConfigError(f"the agent has no resource {name}", hint=f"It has {known}")
    return resources, [row for row in document["devices"] if name in (None, row["resource"])]


def moves(devices: Sequence[Row], now: float, width: int | None) -> list[str]:
    """Return lines about each move: its target, whom it waits for, and why. Empty when no device moves."""
    found = [f"{row['name']} to {row['move']['to']}: {move_text(row, now)}" for row in devices if row["move"]]
    return ["", "moves", *wrapped(found, width, "  ")] if found else []


def remarks(document: Row, width: int | None) -> Iterator[str]:
    """Yield lines beside the tables: why the agent is not ready, devices in doubt, and the notes."""
    yield from wrapped(document["notReadyBecause"], width, "  ! ")
    doubtful = doubts(document)
    yield from wrapped((f"{owner}: {words}" for owner, words in doubtful[:DOUBTS_MAX]), width, "  ! ")
    if len(doubtful) > DOUBTS_MAX:
        yield f"  ! and {len(doubtful) - DOUBTS_MAX} devices more in doubt"
    yield from wrapped(document["notes"], width, "  - ")


def _text(document: Row, arguments: argparse.Namespace) -> str:
    of_resource(document, arguments.resource)
    if arguments.output in ("json", "yaml"):
        return as_json_or_yaml(document, arguments.output)
    wide, width = arguments.output == "wide", terminal_width(arguments.output)
    return "\n".join(render(document, arguments.resource, wide=wide, width=width))


def render(
    document: Row, resource: str | None = None, *, wide: bool = False, width: int | None = None
) -> Iterator[str]:
    """Yield the lines of the screen: verdict, resources, devices with holders, refusals."""
    resources, devices = of_resource(document, resource)
    now = parse_time(document["at"])
    well, words = verdict(document)
    up = age(now, parse_time(document["startedAt"]))
    head = f"{document['node']}  {document['driver']}  drabridge {document['version']}  up {up}"
    ends = words if well else words.upper()
    whole = f"{head}  {ends}"
    yield from [whole] if width is None or len(whole) <= width else [*wrapped([head], width, ""), f"  {ends}"]
    yield from remarks(document, width)
    if resources:
        rows = [_resource(row) for row in resources]
        yield ""
        yield table(rows, [name for name in rows[0] if wide or name not in QUIET or any(r[name] for r in rows)], width)
    yield ""
    rows = [_device(row, now, wide) for row in devices]
    yield from _devices(rows, [*COLUMNS, *WIDE] if wide else COLUMNS, width) if rows else ["no devices"]
    yield from moves(devices, now, width)
    if wide:
        yield from _not_needed(document, width)
    if refusals := grouped_refusals(document["refusals"])[:REFUSALS_MAX]:
        yield ""
        yield "recent refusals"
        said = (
            f"{age(now, parse_time(one['at']))} ago  {one['api']}  {one['device']}  {one['reason']}  {one['message']}"
            for one in refusals
        )
        yield from wrapped(said, width, "  ")


def _not_needed(document: Row, width: int | None) -> Iterator[str]:
    """Yield missing features that the configuration does not need. The notes name those that it needs."""
    features = document.get("features", ())  # an agent of 0.2 has none
    if lacking := [one["sentence"] for one in features if one["sentence"] and not one["needed"]]:
        yield from ["", "not in this cluster, and not needed by the configuration"]
        yield from wrapped(lacking, width, "  - ")


def _resource(row: Row) -> dict[str, Any]:
    return {
        "resource": row["name"],
        "devices": row["devices"],
        "free": row["free"],
        "pods": row["heldByPods"],
        "claims": row["heldByClaims"],
        "doubt": row["inDoubt"],
        "unusable": row["unusable"],
        "cordoned": row.get("cordoned", 0),  # an agent of 0.2 has none
        "legacy": row["lanes"].get("legacy", 0),
        "dra": row["lanes"].get("dra", 0),
        "shared": row["lanes"].get("shared", 0),
        "moving": row["moving"],
    }


def _devices(rows: Sequence[Row], columns: Sequence[str], width: int | None) -> Iterator[str]:
    """Yield the table of devices.

    If it is too wide, holders and reasons get lines of their own: a truncated name is useless.
    """
    whole = table(rows, columns).splitlines()
    if width is None or max(map(len, whole)) <= width:
        yield from whole
        return
    head, *lines = table(rows, NARROW, width).splitlines()
    yield head
    for row, line in zip(rows, lines, strict=True):
        yield line
        who = f"held by {' and '.join(row['holder'])}: " if row["holder"] else ""
        yield from wrapped([f"{who}{row['evidence']}"] if who or row["reason"] else [], width, "    ")


def _device(row: Row, now: float, wide: bool) -> dict[str, Any]:
    because = evidence(row, now)
    if row["owner"] == "none" and not wide:  # show why it was released, without the other sources that agreed
        because = "" if row["reason"] else ": ".join(because.split(": ")[:2])
    return {
        "device": row["name"],
        "lane": row["lane"],
        "owner": owner(row) if row["presence"] == "present" else f"{owner(row)}, {row['presence']}",
        "holder": holders(row, None if wide else HOLDERS_MAX),
        "since": age(now, parse_time(row["since"])),
        "evidence": "; ".join(filter(None, (row["reason"], because))),
        "reason": row["reason"],
        "resource": row["resource"],
        "id": row["id"],
        "presence": row["presence"],
        "numa": row["numaNodes"],
        "pci": row["pciBusID"],
        "nodes": row["nodes"],
    }
