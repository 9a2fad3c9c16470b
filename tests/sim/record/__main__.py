"""Write down what a real node shows: ``python -m tests.sim.record --kubeconfig FILE``, as root on the node.

The cluster has one node, nothing else uses it, and the kubeconfig is an administrator's. The recording goes to a folder
named after the API server's version, below ``tests/sim/fixtures``. The tests compare the simulation with each folder.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

from tests.sim.record.api import Answer, Api, Json
from tests.sim.record.metrics import gates_of
from tests.sim.record.peers import write_cdi
from tests.sim.record.scenario import Place, record
from tests.sim.record.scrub import scrub

FIXTURES = Path(__file__).parents[1] / "fixtures"


async def record_node(api: Api, options: argparse.Namespace) -> Path:
    """Record the cluster's only node; returns the folder. Raises RuntimeError and AssertionError with what is wrong."""
    version = (await api.get("/version"))["gitVersion"]
    nodes = [one["metadata"]["name"] for one in (await api.get("/api/v1/nodes"))["items"]]
    if len(nodes) != 1:
        raise RuntimeError(f"the cluster has {len(nodes)} nodes; a recording needs one alone")
    place = Place(api, options.kubelet_dir, nodes[0], options.image)
    gates = {
        "apiserver": _gates("API server", await api.request("GET", "/metrics")),
        "kubelet": _gates("kubelet", await api.of_kubelet("/metrics")),
    }
    files = write_cdi(options.cdi_dir)
    try:
        found = scrub(await record(place, gates), str(options.kubelet_dir))
    finally:
        for path in files:
            path.unlink(missing_ok=True)
    folder: Path = options.into / f"kubernetes-{version.removeprefix('v')}"
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.record", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kubeconfig", type=Path, default=os.environ.get("KUBECONFIG"), help="default: $KUBECONFIG")
    parser.add_argument("--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"), help="with kubelet's sockets")
    parser.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"), help="where the runtime looks")
    parser.add_argument(
        "--image", default="docker.io/local/busybox:1", help="with sh and sleep; is on the node already"
    )
    parser.add_argument("--into", type=Path, default=FIXTURES)
    options = parser.parse_args()
    if options.kubeconfig is None:
        parser.error("--kubeconfig: which cluster? KUBECONFIG is not set either")
    api = Api(options.kubeconfig)
    try:
        print(asyncio.run(record_node(api, options)))
    except (RuntimeError, AssertionError, OSError) as error:
        print(f"python -m tests.sim.record: {error}", file=sys.stderr)
        return 1
    finally:
        api.close()
    return 0


raise SystemExit(main())
