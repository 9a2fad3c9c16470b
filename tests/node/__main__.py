"""``python -m tests.node``: real Kubernetes nodes on this machine, for tests and for whoever wants to look."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.node import build
from tests.node.cluster import CONTROL_PROGRAMS, FOLDER, NODE_PROGRAMS, VERBS, Cluster, NodeSpec, tail
from tests.node.errors import NodeError
from tests.node.releases import DEFAULT, release, releases

USAGE = 2
PROGRAMS = ", ".join((*CONTROL_PROGRAMS, *NODE_PROGRAMS))
EXAMPLES = """\
examples:
  python -m tests.node up --release 1.37 --nodes 3     a control plane and three nodes; prints export KUBECONFIG=...
  python -m tests.node status                          what runs where
  python -m tests.node kill kubelet --node node-b      and start, stop, restart, freeze, thaw
  python -m tests.node cut node-b                      pull its network cable; heal node-b plugs it in again
  python -m tests.node shell node-a                    a shell on the node
  python -m tests.node clean                           end everything and forget it

DRABRIDGE_TEST_CLUSTER names another folder for the cluster (default: /var/tmp/drabridge-cluster), so that several can
run side by side.
"""


def names(count: int) -> list[str]:
    """``node-a``, ``node-b`` and so on."""
    return [f"node-{chr(ord('a') + index)}" for index in range(count)]


def pairs(texts: Sequence[str], parse: Callable[[str], Any] = str) -> dict[str, Any]:
    """``["a=1", "b=2"]`` as a mapping. Raises NodeError for a text without ``=``."""
    found = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise NodeError(f"{text!r}: write NAME=VALUE.")
        found[name] = parse(value)
    return found


def boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise NodeError(f"{text!r}: a feature gate is true or false.")
    return text == "true"


def yaml_value(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.node",
        description=__doc__.partition(": ")[2],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, help_: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=help_, description=help_)

    up = command("up", "start a cluster; it is built from Go modules the first time (4 to 8 minutes a release)")
    up.add_argument("--release", default=DEFAULT, help="of the control plane and the nodes (default: %(default)s)")
    up.add_argument("--node-release", default="", help="of the nodes, if another")
    up.add_argument("--nodes", type=int, default=1, metavar="N", help="how many (default: %(default)s)")
    up.add_argument("--gate", action="append", default=[], metavar="NAME=true|false", help="a feature gate, everywhere")
    up.add_argument("--runtime-config", default="", metavar="API=true,...", help="more API versions")
    up.add_argument(
        "--kubelet", action="append", default=[], metavar="KEY=VALUE", help="more of kubelet's configuration"
    )
    up.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="a label of all nodes")
    up.add_argument("--disks", type=int, default=0, metavar="N", help="loop devices that only one node has, for each")
    command("down", "end every process; the logs stay")
    command("clean", "end every process and remove all that the cluster has left")
    command("status", "what runs where").add_argument("-o", choices=("table", "json"), default="table")
    command("kubeconfig", "print the path of the administrator's kubeconfig")
    add = command("add", "start a further node")
    add.add_argument("name")
    add.add_argument("--release", default="", help="default: the control plane's")
    command("remove", "end a node and forget it").add_argument("name")
    logs = command("logs", "print the end of a program's log")
    logs.add_argument("--lines", type=int, default=50)
    command("import", "bring an image to all nodes").add_argument("archive", type=Path)
    for verb in VERBS:
        one = command(verb, f"{verb} a program: {PROGRAMS}")
        one.add_argument("program")
        one.add_argument("--node", default="", help="which node's; default: the first")
    logs.add_argument("program")
    logs.add_argument("--node", default="")
    for verb, help_ in (
        ("reboot", "cut a node's power and boot it again"),
        ("off", "cut a node's power"),
        ("boot", "boot a node that is off"),
        ("cut", "pull a node's network cable"),
        ("heal", "plug it in again"),
        ("shell", "a shell on a node, or on control-plane"),
    ):
        command(verb, help_).add_argument("node", nargs="?", default="")
    upgrade = command("upgrade", "restart a node's kubelet, or the control plane, as another release")
    upgrade.add_argument("machine")
    upgrade.add_argument("release")
    command("releases", "the releases that can be built")
    command("build", "build a release, and start nothing").add_argument("release", nargs="*", default=[DEFAULT])
    command("pin", "write go.mod and go.sum of a Kubernetes version").add_argument("version", help="as 1.36.3")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0, 1 where it failed, 2 where the command line is wrong."""
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs this in the background has it ignored
    folder = Path(os.environ.get("DRABRIDGE_TEST_CLUSTER") or FOLDER)
    try:
        return run(options, folder)
    except NodeError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run(options: argparse.Namespace, folder: Path) -> int:
    match options.command:
        case "releases":
            for one in releases():
                print(f"{one.name}\t{one.version}\t{'the default' if one.name == DEFAULT else ''}".rstrip())
        case "build":
            for one in options.release:
                print(*build.built(release(one), build.tell), sep="\n")
        case "pin":
            print(build.pin(options.version, build.tell))
        case "up":
            return up(options, folder)
        case "clean":
            if (folder / "cluster.json").exists():
                Cluster.open(folder).clean()
        case _:
            return on_cluster(options, Cluster.open(folder))
    return 0


def up(options: argparse.Namespace, folder: Path) -> int:
    if not 1 <= options.nodes <= 20:
        raise NodeError("--nodes: 1 to 20.")
    gates = pairs(options.gate, boolean)
    specs = [
        NodeSpec(
            name,
            0,
            options.node_release or options.release,
            pairs(options.label),
            pairs(options.kubelet, yaml_value),
            dict(gates),
        )
        for name in names(options.nodes)
    ]
    cluster = Cluster.up(folder, of=options.release, nodes=specs, gates=gates, runtime_config=options.runtime_config)
    for spec in cluster.spec.nodes:
        for _ in range(options.disks):
            cluster.add_disk(spec.name)
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    return 0


def on_cluster(options: argparse.Namespace, cluster: Cluster) -> int:
    match options.command:
        case "down":
            cluster.down()
        case "status":
            print(json.dumps(status(cluster), indent=1) if options.o == "json" else table(status(cluster)))
        case "kubeconfig":
            print(cluster.kubeconfig)
        case "add":
            cluster.add(NodeSpec(options.name, 0, options.release or cluster.spec.release))
        case "remove":
            cluster.remove(options.name)
        case "logs":
            print(tail(cluster.machine_of(options.program, options.node).log(options.program), options.lines))
        case "import":
            cluster.import_image(options.archive)
        case verb if verb in VERBS:
            cluster.fault(verb, options.program, options.node)
        case "reboot":
            cluster.reboot(options.node)
        case "off":
            cluster.node(options.node).off()
        case "boot":
            cluster.boot(cluster.node(options.node))
        case "cut":
            cluster.node(options.node).cut()
        case "heal":
            cluster.node(options.node).heal()
        case "upgrade" if options.machine == cluster.control.name:
            cluster.upgrade_control(options.release)
        case "upgrade":
            cluster.upgrade(options.machine, options.release)
        case "shell":
            machine = cluster.control if options.node == cluster.control.name else cluster.node(options.node)
            return subprocess.run([*machine.enter(), "bash"], check=False).returncode
    return 0


def status(cluster: Cluster) -> dict[str, Any]:
    """What runs where: numbers of processes on the host, ``null`` for what does not run."""
    machines = []
    for machine in cluster.machines():
        of_node = bool(machine.index)
        programs = NODE_PROGRAMS if of_node else CONTROL_PROGRAMS
        kubernetes = cluster.node_spec(machine.name).release if of_node else cluster.spec.release
        machines.append(
            {
                "name": machine.name,
                "address": machine.address,
                "release": release(kubernetes).version,
                "ready": cluster.ready(machine.name) if of_node else cluster.get("/readyz") is not None,
                "programs": {name: machine.pid(name) for name in programs},
                "disks": cluster.node_spec(machine.name).disks if of_node else [],
            }
        )
    return {"folder": str(cluster.folder), "kubeconfig": str(cluster.kubeconfig), "machines": machines}


def table(said: dict[str, Any]) -> str:
    rows = [("MACHINE", "ADDRESS", "RELEASE", "READY", "PROGRAMS")]
    for one in said["machines"]:
        programs = ", ".join(f"{name} {pid or 'off'}" for name, pid in one["programs"].items())
        rows.append((one["name"], one["address"], one["release"], "yes" if one["ready"] else "no", programs))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join([*(t.ljust(w) for t, w in zip(row, widths, strict=False)), row[4]]) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
