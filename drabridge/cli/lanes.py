"""``drabridge lanes``: show, set or reset the share of each API, or release a device by hand."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from drabridge.cli.agent_client import ask, find_socket
from drabridge.cli.options import add_output, add_socket
from drabridge.cli.output import show, terminal_width, wrapped
from drabridge.cli.pods import add_nodes
from drabridge.cli.status import moves, of_resource, remarks
from drabridge.errors import ConfigError
from drabridge.status.wording import parse_time

LANES = ("legacy", "dra", "shared")


def configure(parser: argparse.ArgumentParser) -> None:
    add_socket(parser)
    add_output(parser)
    add_nodes(parser)
    parser.add_argument("action", nargs="?", choices=("show", "set", "reset", "release"), default="show")
    parser.add_argument("resource", nargs="?", metavar="RESOURCE", help="for release: a device")
    parser.add_argument("shares", nargs="*", metavar="LANE=SHARE", help="legacy=6, dra=2, dra=50%%, shared='*'")
    parser.epilog = (
        "Free devices move at once: each is revoked, acknowledged, then offered on the other side. A held device is\n"
        "marked and moves when it is let go. The Node's annotation <driver>/lanes wins over what is set here.\n\n"
        "release says that nobody uses a device in quarantine or conflict, or one that a deleted claim left prepared.\n"
        "It is refused while kubelet or the API server says otherwise or, for a claim, cannot be asked.\n\n"
        "examples:\n"
        "  drabridge lanes                                     # where devices are, what still moves, and why\n"
        "  drabridge lanes set nvidia.com/gpu legacy=2 dra=6\n"
        "  drabridge lanes set nvidia.com/gpu legacy=0         # the rest, all, goes to claims\n"
        "  drabridge lanes set nvidia.com/gpu shared='*'       # each is for a pod or a claim, whichever comes first\n"
        "  drabridge lanes reset nvidia.com/gpu                # as the configuration says\n"
        "  drabridge lanes release GPU-8f1c                    # out of quarantine, by hand"
    )


def run(arguments: argparse.Namespace) -> int:
    path = find_socket(arguments.socket)
    if arguments.action == "release":
        if arguments.resource is None or arguments.shares:
            raise ConfigError("drabridge lanes release needs one DEVICE", hint="drabridge status lists them")
        answer = ask(path, "/release", {"device": arguments.resource})
        show([answer], arguments.output, columns=("device", "was", "owner", "lane"))
        if arguments.output in ("table", "wide") and answer["because"]:
            print(*wrapped([answer["because"]], terminal_width(arguments.output), "  - "), sep="\n")
        return 0
    if arguments.action != "show":
        answer = ask(path, "/lanes", _request(arguments))
        show([answer], arguments.output, columns=("resource", "legacy", "dra", *_shared([answer]), "source"))
        return 0
    document = ask(path, "/status")
    resources, devices = of_resource(document, arguments.resource)
    rows: list[dict[str, Any]] = [
        {
            "resource": row["name"],
            "legacy": row["lanes"].get("legacy", 0),
            "dra": row["lanes"].get("dra", 0),
            **({"shared": row["lanes"]["shared"]} if row["lanes"].get("shared") else {}),
            "wanted": " ".join(f"{lane}={row['wanted'][lane]}" for lane in LANES if row["wanted"].get(lane)),
            "by": row["wanted"]["source"],
            "moving": row["moving"],
        }
        for row in resources
    ]
    show(rows, arguments.output, columns=("resource", "legacy", "dra", *_shared(rows), "moving", "wanted", "by"))
    if arguments.output in ("table", "wide"):
        width = terminal_width(arguments.output)
        for line in [*remarks(document, width), *moves(devices, parse_time(document["at"]), width)]:
            print(line)
    return 0


def _shared(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the column of shared devices if there are any."""
    return ("shared",) if any("shared" in row for row in rows) else ()


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the request to the agent for ``set`` or ``reset``. Raises ConfigError for invalid arguments."""
    if arguments.resource is None:
        raise ConfigError(f"drabridge lanes {arguments.action} needs a RESOURCE", hint="drabridge lanes lists them")
    if arguments.action == "reset":
        if arguments.shares:
            raise ConfigError("drabridge lanes reset takes no shares", hint="drabridge lanes set does")
        return {"resource": arguments.resource, "reset": True}
    request: dict[str, Any] = {"resource": arguments.resource}
    for share in arguments.shares:
        lane, equals, value = share.partition("=")
        if not equals or lane not in LANES:
            raise ConfigError(f"{share!r} is not LANE=SHARE", hint="For example legacy=6 or dra=50%")
        if lane in request:
            raise ConfigError(f"{lane} was given twice")
        request[lane] = int(value) if value.isdecimal() and len(value) <= 6 else value
    if len(request) == 1:
        raise ConfigError("no share was given", hint="For example: drabridge lanes set nvidia.com/gpu legacy=2 dra=6")
    return request
