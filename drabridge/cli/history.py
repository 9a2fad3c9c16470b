"""``drabridge history``: say who had a device, and when."""

from __future__ import annotations

import argparse
from typing import Any

from drabridge.cli.agent_client import ask, find_socket
from drabridge.cli.options import add_output, add_socket
from drabridge.cli.output import as_json_or_yaml, show
from drabridge.cli.pods import add_nodes
from drabridge.errors import ConfigError
from drabridge.status.wording import Row, age, parse_time

LIMIT = 100


def configure(parser: argparse.ArgumentParser) -> None:
    add_socket(parser)
    add_output(parser)
    add_nodes(parser)
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="default: all devices of this node")
    parser.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"the newest so many; default: {LIMIT}")
    parser.epilog = (
        "Who has it now comes first. A line is one pod, or one claim, with one device; OWNER is the pod's workload,\n"
        "as far as the API server said it. The agent keeps about 12,000 lines of each node.\n\n"
        "examples:\n"
        "  drabridge history GPU-8f1c\n"
        "  drabridge history --limit 1000 -o json | jq '.holds[] | select(.namespace == \"team-a\")'\n"
        "  drabridge history GPU-8f1c --node node-7"
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.limit < 1:
        raise ConfigError("--limit is a number from 1")
    request = {"device": arguments.device or "", "limit": arguments.limit}
    document = ask(find_socket(arguments.socket), "/history", request)
    if arguments.output in ("json", "yaml"):
        print(as_json_or_yaml(document, arguments.output))
        return 0
    columns = ("device", "holder", "owner", "since", "until", "held", "because")
    show(list(map(_row, document["holds"])), arguments.output, columns=columns, wide=("resource", "api", "uid"))
    if document["leftOut"]:
        print(f"{document['leftOut']} older ones are left out: --limit shows more")
    return 0


def _row(hold: Row) -> dict[str, Any]:
    kind, name = ("claim ", hold["claim"]) if hold["api"] == "dra" else ("", hold["pod"])
    who = f"{kind}{hold['namespace']}/{name}" if name else f"uid {hold['uid']}" if hold["uid"] else "a pod, never seen"
    until = parse_time(hold["until"])
    held = age(until, parse_time(hold["since"])) if until else "has it"
    return {**hold, "holder": who, "held": held}
