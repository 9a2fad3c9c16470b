"""``drabridge drain``: stop giving a node's devices to claims, or list the claims that a cluster still has."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import to_builtins

from drabridge.cli.agent_client import ask, find_socket
from drabridge.cli.options import add_config, add_kubeconfig, add_output, add_socket, driver_name, seconds
from drabridge.cli.output import cell, show_document, table, wrapped
from drabridge.config.loader import load
from drabridge.errors import ConfigError

Row = Mapping[str, Any]

POLL_SECONDS = 0.5
ASK_SECONDS = 60.0  # the agent asks kubelet, and lists every claim of the cluster
FREE_SECONDS = 120.0  # for free devices: a move takes safety.quiesceSeconds (30) plus the API server's time
_COLUMNS = ("claim", "devices", "phase", "pods")
_CLUSTER_COLUMNS = ("node", "claim", "devices", "pods")

_EPILOG = """\
Before the agent is removed from a node: gives nothing to claims any more,
moves free devices to the legacy lane, and names the claims that still need
this driver to end. Nothing is evicted: delete their pods. It stays so, over
restarts and whatever the Node's annotation says, until --undo.

--clean also removes CDI files that nothing refers to, and lets the agent take
its state directory along when it ends, if no pod holds a device then.
--cluster asks the API server alone, about all nodes, and changes nothing.

examples:
  drabridge drain                      # status 0: no claim has a device of this node
  drabridge drain --wait 600           # wait ten minutes for claims, too
  drabridge drain --clean              # when it is done: leave nothing behind
  drabridge drain --undo
  drabridge drain --cluster --driver gpu.example.com

exit status: 0 no claim holds a device, 1 one does or nobody can say,
2 bad usage"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_socket(parser)
    add_config(parser)
    add_output(parser)
    text = f"how long to wait for what holds; default: only for free devices, {FREE_SECONDS:g} at most"
    parser.add_argument("--wait", type=seconds(86_400), metavar="SECONDS", help=text)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--undo", action="store_true", help="the configured lanes are wanted again")
    what.add_argument("--clean", action="store_true", help="remove what nobody needs any more; refused while held")
    what.add_argument("--cluster", action="store_true", help="look at the claims of all nodes in the API server")
    text = "with --cluster; default: the configuration's"
    parser.add_argument("--driver", type=driver_name, metavar="NAME", help=text)
    add_kubeconfig(parser, "with --cluster")
    parser.epilog = _EPILOG


def run(arguments: argparse.Namespace) -> int:
    if arguments.cluster:
        if arguments.wait is not None or arguments.socket is not None:
            raise ConfigError("--wait and --socket are for one node: --cluster looks once, and asks the API server")
        return _cluster(arguments)
    if arguments.driver or arguments.kubeconfig:
        raise ConfigError("--driver and --kubeconfig go with --cluster", hint="A node's agent is asked over --socket")
    path = find_socket(arguments.socket)
    if arguments.undo:
        if arguments.wait is not None:
            raise ConfigError("--undo waits for nothing")
        document = ask(path, "/drain", {"drain": False}, seconds=ASK_SECONDS)
        words = f"{document['node']}: no longer drained; lanes are as they were wanted before"
        show_document(document, arguments.output, lambda width: wrapped([words], width, ""))
        return 0
    document = ask(path, "/drain", {"drain": True}, seconds=ASK_SECONDS)
    ends = time.monotonic() + (FREE_SECONDS if arguments.wait is None else arguments.wait)
    said = ""
    while not document["complete"] and (arguments.wait is not None or _goes_on(document)) and time.monotonic() < ends:
        if (words := _progress(document)) != said:
            print(words, file=sys.stderr, flush=True)
        said = words
        time.sleep(POLL_SECONDS)
        document = ask(path, "/drain", seconds=ASK_SECONDS)
    if document["complete"] and arguments.clean:
        document = ask(path, "/drain", {"drain": True, "clean": True}, seconds=ASK_SECONDS)
    show_document(document, arguments.output, lambda width: _screen(document, width))
    return 0 if document["complete"] else 1


def _goes_on(document: Row) -> bool:
    """Whether waiting helps: a device that nobody holds is moving."""
    return any(not row["held"] for row in document["moving"])


def _progress(document: Row) -> str:
    left = [row["device"] for row in document["moving"] if not row["held"]]
    moving = f"; on their way: {', '.join(left)}" if left else ""
    claims = f"; claims that hold: {len(document['claims'])}" if document["claims"] else ""
    return cell(f"{document['inLegacyLane']} of {document['devices']} devices are in the legacy lane{moving}{claims}")


def _screen(document: Row, width: int | None) -> Iterator[str]:
    done = "drained: no claim has a device" if document["complete"] else "NOT DRAINED"
    yield from wrapped([f"{document['node']}  {document['driver']}  {done}"], width, "")
    yield from wrapped([_progress(document)], width, "  ")
    if document["claims"]:
        yield ""
        yield table([{**row, "claim": _name(row)} for row in document["claims"]], _COLUMNS, width)
    yield from wrapped(document["because"], width, "  ! ")
    if any(row["phase"] != "unprepared" for row in document["claims"]):
        advice = "only this driver ends these claims: delete their pods first, or they stay Terminating without it"
        yield from wrapped([advice], width, "  - ")
    if document["pods"]:
        names = ", ".join(f"{_pod(one)} ({one['device']})" for one in document["pods"])
        keep = "they run on, and need their CDI files until they end" if document["files"] else "they run on"
        yield from wrapped([f"pods with limits: {names}: {keep}"], width, "  - ")
    if document.get("removed"):
        yield from wrapped([f"removed: {', '.join(document['removed'])}"], width, "  - ")
    if document["files"]:
        yield from wrapped([f"CDI files that stay: {', '.join(document['files'])}"], width, "  - ")


def _pod(row: Row) -> str:
    return f"{row['namespace']}/{row['pod']}" if row["pod"] else "one that kubelet has not shown yet"


def _name(row: Row) -> str:
    return f"{row['namespace']}/{row['name']}" if row["name"] else f"uid {row['uid']}"


# --- the whole cluster ----------------------------------------------------------------------------------------------


def _cluster(arguments: argparse.Namespace) -> int:
    from drabridge.kube.allocated_claims import usage
    from drabridge.kube.client import KubernetesCluster

    name = arguments.driver or load(arguments.config).driver
    kubeconfig = arguments.kubeconfig
    cluster = KubernetesCluster.from_kubeconfig(kubeconfig) if kubeconfig else KubernetesCluster.in_cluster()
    with contextlib.closing(cluster):
        found = asyncio.run(usage(cluster, name))
    document = {
        "apiVersion": "drabridge/v1alpha1",
        "kind": "ClusterDrain",
        "driver": name,
        "complete": not found.claims,
        "claims": to_builtins(found.claims),
        "offered": dict(found.offered),
    }
    show_document(document, arguments.output, lambda width: _cluster_screen(document, width))
    return 0 if document["complete"] else 1


def _cluster_screen(document: Row, width: int | None) -> Iterator[str]:
    driver, claims = document["driver"], document["claims"]
    if claims:
        count = f"{len(claims)} claim{'s have' if len(claims) > 1 else ' has'} devices of {driver}"
        yield from wrapped([f"NOT DRAINED: {count}"], width, "")
        yield ""
        yield table([{**row, "claim": _name(row), "node": row["nodes"]} for row in claims], _CLUSTER_COLUMNS, width)
        yield ""
        advice = (
            f"Only {driver} can end these claims. Without it their pods stay Terminating for ever, and so do their "
            "namespaces. Delete the pods, wait until their claims are released, then uninstall"
        )
        yield from wrapped([advice], width, "  ! ")
    else:
        yield from wrapped([f"drained: no claim has a device of {driver}"], width, "")
    if document["offered"]:
        names = ", ".join(f"{node} ({count})" for node, count in document["offered"].items())
        yield from wrapped(
            [f"devices that a claim may get at any moment: {names}. drabridge drain on a node ends that"], width, "  - "
        )
