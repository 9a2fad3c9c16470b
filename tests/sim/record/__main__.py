"""Write down what real nodes show: ``python -m tests.sim.record 1.36``, as root.

A node of each release is started for it and ended afterwards (see tests.node). With ``--kubeconfig`` it is the node of
another cluster, on which this runs: its only one, which nothing else uses; the kubeconfig is an administrator's. The
recording goes to a folder named after the API server's version, below ``tests/sim/fixtures``. The tests compare the
simulation with each folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.node import images
from tests.node.cluster import FOLDER, Cluster, NodeSpec
from tests.node.errors import NodeError
from tests.node.releases import releases
from tests.sim.record.api import Answer, Api, Json
from tests.sim.record.metrics import gates_of
from tests.sim.record.peers import write_cdi
from tests.sim.record.scenario import Place, record
from tests.sim.record.scrub import scrub

FIXTURES = Path(__file__).parents[1] / "fixtures"
KUBELET = "/var/lib/kubelet"
CDI = "/var/run/cdi"


async def record_node(place: Place, cdi: Path, into: Path) -> Path:
    """Record the cluster's only node; returns the folder. Raises RuntimeError and AssertionError with what is wrong.

    ``cdi``: where the runtime looks for CDI files.
    """
    api = place.api
    version = (await api.get("/version"))["gitVersion"]
    nodes = (await api.get("/api/v1/nodes"))["items"]
    if [one["metadata"]["name"] for one in nodes] != [place.node]:
        raise RuntimeError(f"the cluster has {len(nodes)} nodes; a recording needs {place.node} alone")
    address = next(one["address"] for one in nodes[0]["status"]["addresses"] if one["type"] == "InternalIP")
    gates = {
        "apiserver": _gates("API server", await api.request("GET", "/metrics")),
        "kubelet": _gates("kubelet", await api.of_kubelet(address, "/metrics")),
    }
    files = write_cdi(cdi)
    try:
        found = scrub(await record(place, gates), str(place.kubelet_root))
    finally:
        for path in files:
            path.unlink(missing_ok=True)
    folder = into / f"kubernetes-{version.removeprefix('v')}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for name, document in found.items():
        (folder / f"{name}.json").write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    return folder


def _gates(program: str, answer: Answer) -> Json:
    if answer.status != 200:
        raise RuntimeError(f"metrics of the {program}: {answer.status} {answer.body}")
    return gates_of(answer.body)


def _release(name: str, into: Path) -> Path:
    """Record a node of this release, which is started for it."""
    with tempfile.TemporaryDirectory(prefix="drarecord", dir=FOLDER.parent) as directory:
        cluster = Cluster.up(Path(directory) / "cluster", of=name, nodes=[NodeSpec("node-a", 0, name)])
        try:
            node, api = cluster.node(), Api(cluster.kubeconfig)
            try:
                place = Place(api, node.path(KUBELET), Path(KUBELET), node.name, images.BUSYBOX)
                return asyncio.run(record_node(place, node.path(CDI), into))
            finally:
                api.close()
        finally:
            cluster.clean()


def _this_machine(options: argparse.Namespace) -> Path:
    api = Api(options.kubeconfig)
    try:
        place = Place(api, options.kubelet_dir, options.kubelet_dir, options.node, options.image)
        return asyncio.run(record_node(place, options.cdi_dir, options.into))
    finally:
        api.close()


def main(arguments: Sequence[str] | None = None) -> int:
    known = [one.name for one in releases()]
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.record",
        description="Write down what real nodes show, for the simulation's tests. As root.",
        epilog="example: python -m tests.sim.record 1.36 1.37",
    )
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help=f"{', '.join(known)}; all when left out")
    parser.add_argument("--kubeconfig", type=Path, help="record the cluster of this file instead, from its node")
    parser.add_argument("--node", default="node-a", help="the node's name there (default: %(default)s)")
    parser.add_argument("--kubelet-dir", type=Path, default=Path(KUBELET), help="with kubelet's sockets there")
    parser.add_argument("--cdi-dir", type=Path, default=Path(CDI), help="where the runtime looks there")
    parser.add_argument("--image", default=images.BUSYBOX, help="with sh and sleep; is on that node already")
    parser.add_argument("--into", type=Path, default=FIXTURES, help="folder of the recordings (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.kubeconfig is not None and options.releases:
        parser.error("a RELEASE starts a node of its own: leave out either it or --kubeconfig")
    try:
        if options.kubeconfig is not None:
            print(_this_machine(options))
        else:
            for name in options.releases or known:
                print(_release(name, options.into), flush=True)
    except (RuntimeError, AssertionError, OSError, NodeError) as error:
        print(f"python -m tests.sim.record: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
