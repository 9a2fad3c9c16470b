"""Run a command in the agents' pods from an administrator's desk: ``drabridge status --node NODE``, by kubectl."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from msgspec import Struct

from drabridge.cli.output import as_json_or_yaml
from drabridge.errors import ConfigError, HostError
from podresources.table import printable

SELECTOR = "app.kubernetes.io/name=drabridge"  # the pods' label in the chart and in the kustomize base
CONTAINER, VOLUME = "agent", "plugin"  # of those pods; the volume has the control socket
ALL = ["*"]
AT_ONCE = 8  # pods that are asked at a time
MOST_BYTES = 16 << 20  # of one pod's answer; larger or later ones are dropped: somebody else may control the node
ANSWER_SECONDS = 60.0


class _Agent(Struct, frozen=True):
    """An agent's pod. ``socket``: its control socket, as the pod sees it."""

    node: str
    namespace: str
    pod: str
    socket: str


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the nodes where the command runs. Empty ``nodes``: run it here."""
    group = parser.add_argument_group("on other nodes, through the API server with kubectl")
    group.add_argument("--node", dest="nodes", action="append", metavar="NODE", help="run in the agent's pod there")
    group.add_argument("--all-nodes", dest="nodes", action="store_const", const=ALL, help="run in every agent's pod")
    group.add_argument("--namespace", "-n", metavar="NAME", help="only pods of this namespace; default: any")
    group.add_argument("--selector", "-l", default=SELECTOR, metavar="LABELS", help=f"of the pods; default: {SELECTOR}")
    group.add_argument("--kubeconfig", metavar="FILE", help="for kubectl")
    group.add_argument("--context", metavar="NAME", help="for kubectl")


def run(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Run ``words`` in the pods, without the options that choose them; return the highest exit status.

    Raises ConfigError if there is no such pod, HostError if kubectl is missing or fails.
    """
    own = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    add_nodes(own)
    rest = own.parse_known_args(words)[1]
    program = _program(arguments)
    agents = _agents(program, arguments)
    if len(agents) == 1:
        tty = ["-it"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        return subprocess.run([*program, *_exec(agents[0], rest, arguments, tty)], check=False).returncode
    if getattr(arguments, "watch", None) is not None:
        raise ConfigError("--watch shows one agent", hint="Name one node with --node")

    if arguments.output == "yaml":
        rest += ["--output", "json"]  # the last one counts; JSON has no aliases that grow when they are read
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda agent: _answer([*program, *_exec(agent, rest, arguments)]), agents))
    several = Counter(agent.node for agent in agents)
    titles = [one.node if several[one.node] == 1 else f"{one.node}/{one.pod}" for one in agents]
    return _print(arguments.output, titles, answers)


def _answer(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run kubectl, with limits for its output and its time."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def read(stream: IO[bytes]) -> str:
        data = stream.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            process.kill()
        return data[:MOST_BYTES].decode(errors="replace")

    late = threading.Timer(ANSWER_SECONDS, process.kill)
    late.start()
    with process, ThreadPoolExecutor(1) as other:
        assert process.stdout is not None
        assert process.stderr is not None
        errors = other.submit(read, process.stderr)
        output = read(process.stdout)
        said = errors.result()
    late.cancel()
    if process.returncode < 0:
        said = f"no whole answer within {ANSWER_SECONDS:.0f} s, or more than {MOST_BYTES} bytes"
        return subprocess.CompletedProcess(words, 1, "", said)
    return subprocess.CompletedProcess(words, process.returncode, output, said)


def _print(output: str, titles: Sequence[str], answers: Sequence[subprocess.CompletedProcess[str]]) -> int:
    """Print the answers; return the highest exit status."""
    documents: dict[str, Any] = {}
    statuses = [one.returncode for one in answers]
    for title, one in zip(titles, answers, strict=True):
        if output in ("json", "yaml"):
            try:
                documents |= {title: json.loads(one.stdout)} if one.stdout else {}
            except (ValueError, RecursionError):
                print(f"{title}: the answer is not JSON", file=sys.stderr)
                statuses.append(1)
        else:
            print("\n".join([f"{title}:", *map(printable, one.stdout.split("\n"))]))
        for line in one.stderr.splitlines():
            print(f"{title}: {printable(line)}", file=sys.stderr)
    if output in ("json", "yaml"):
        print(as_json_or_yaml(documents, output))
    return max(statuses)


def _program(arguments: argparse.Namespace) -> list[str]:
    if (path := shutil.which("kubectl")) is None:
        raise HostError("there is no kubectl in the PATH", hint="--node asks the API server through it: install it")
    chosen = {"--kubeconfig": arguments.kubeconfig, "--context": arguments.context}
    return [path, *(f"{name}={value}" for name, value in chosen.items() if value)]


def _exec(agent: _Agent, words: Sequence[str], arguments: argparse.Namespace, tty: Sequence[str] = ()) -> list[str]:
    inner = ["drabridge", *words]
    if hasattr(arguments, "socket") and arguments.socket is None:
        inner += ["--socket", agent.socket]
    return ["exec", *tty, "-n", agent.namespace, agent.pod, "-c", CONTAINER, "--", *inner]


def _agents(program: Sequence[str], arguments: argparse.Namespace) -> list[_Agent]:
    """Return the running agents of the chosen nodes, in the order of their names."""
    where = ["-n", arguments.namespace] if arguments.namespace else ["-A"]
    words = [*program, "get", "pods", *where, "-l", arguments.selector, "-o", "json"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise HostError(f"kubectl cannot list the agents' pods: {answer.stderr.strip().rpartition(chr(10))[2]}")
    found = sorted(_running(json.loads(answer.stdout)["items"]), key=lambda one: (one.node, one.pod))
    known = sorted({one.node for one in found})
    if not found:
        raise ConfigError(f"no agent runs in a pod with {arguments.selector}", hint="Give other labels with --selector")
    if arguments.nodes == ALL:
        return found
    for node in arguments.nodes:
        if node not in known:
            raise ConfigError(f"no agent runs on a node {node}", hint=f"Agents run on {', '.join(known)}")
    return [one for one in found if one.node in arguments.nodes]


def _running(pods: Sequence[Any]) -> Iterator[_Agent]:
    """Yield the agents among pods with their labels. Tenants may use the labels, too, but cannot mount host folders."""
    for pod in pods:
        container = next((one for one in pod["spec"]["containers"] if one["name"] == CONTAINER), None)
        if container is None or pod.get("status", {}).get("phase") != "Running":
            continue
        mounts = {one["name"]: one["mountPath"] for one in container.get("volumeMounts", ())}
        of_node = {one["name"] for one in pod["spec"].get("volumes", ()) if "hostPath" in one}
        if VOLUME in mounts and VOLUME in of_node:
            meta = pod["metadata"]
            socket = os.path.join(mounts[VOLUME], "control.sock")
            yield _Agent(pod["spec"].get("nodeName", ""), meta["namespace"], meta["name"], socket)
