"""``python -m tests.bench.rollouts``: how long a real node is without an agent in a rollout, and whom that hits.

On the cluster of KUBECONFIG, run on its node (kubelet's PodResources socket is asked what it would give to pods, fifty
times a second; its limit is a hundred). Pods with limits and pods with claims arrive all the time. Not one of the
benchmarks of ``python -m tests.bench``: the simulated kubelet admits pods as fast as one likes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import podresources
from drabridge.errors import ClusterError
from drabridge.kube.api import Kind
from podresources.socket_path import DEFAULT_SOCKET
from tests.cluster.bed import CLASS, CONFIG, NAMESPACE, PODS, RESOURCE, TEMPLATES, Json, wait_for
from tests.cluster.real_bed import RealBed, kind_of, real
from tests.cluster.workloads import pod, template

LOOK_SECONDS = 0.02  # kubelet answers 100 questions a second at most (pkg/kubelet/apis/podresources)
LATE_SECONDS = 30.0  # a claim whose prepare failed is tried again after 60 to 90 s; one that did not runs by then
END_SECONDS = 180.0  # for the pods that are left when the last rollout is over
PAUSE_SECONDS = 3.0  # between rollouts
MOST = 16  # pods that are not over: a node that cannot keep up gets no more
EVENTS = Kind("", "v1", "events")
# Virtual consoles: every machine has 63 of them, and nothing is done with them here.
CONSOLES: Json = {
    "name": RESOURCE,
    "match": [{"subsystem": "tty", "sysname": "tty[0-9]*"}],
    "id": ["{sysname}"],
    "lanes": {"legacy": "50%", "dra": "*"},
    "deviceClass": {"name": CLASS},
}


def strategy(objects: list[Json], max_surge: int, turn: int) -> list[Json]:
    """The objects with this rolling update in the DaemonSet, and a pod template of its own for each turn."""
    changed: list[Json] = json.loads(json.dumps(objects))
    for obj in changed:
        if obj["kind"] == "DaemonSet":
            rolling = {"maxSurge": max_surge, "maxUnavailable": 0 if max_surge else 1}
            obj["spec"]["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling}
            obj["spec"]["template"]["metadata"].setdefault("annotations", {})["turn"] = str(turn)
    return changed


class Load:
    """Pods that come and go, and what became of them."""

    def __init__(self, bed: RealBed, each_second: int) -> None:
        self._bed = bed
        self._pause = 1.0 / each_second if each_second else math.inf
        self._began: dict[str, float] = {}  # pods that are not over yet
        self.made = {"limits": 0, "claims": 0}
        self.refused: list[str] = []
        self.late = 0

    async def run(self) -> None:
        """Make one pod of each kind after the other until cancelled."""
        await self._bed.api.create(TEMPLATES, template("each"), namespace=NAMESPACE)
        for number in itertools.count() if math.isfinite(self._pause) else ():
            due = asyncio.get_running_loop().time() + self._pause
            if len(self._began) < MOST:
                await asyncio.gather(self._make("limits", number), self._make("claims", number))
            await asyncio.sleep(due - asyncio.get_running_loop().time())

    async def _make(self, kind: str, number: int) -> None:
        name = f"{kind}-{number}"
        resources: Json = {"limits": {RESOURCE: "1"}} if kind == "limits" else {"claims": [{"name": "device"}]}
        spec: Json = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": self._bed.node},
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {
                    "name": "main",
                    "image": self._bed.image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["true"],
                    "resources": resources,
                }
            ],
        }
        if kind == "claims":
            spec["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": "each"}]
        self._began[name] = time.monotonic()
        await self._bed.api.create(PODS, pod(name, spec), namespace=NAMESPACE)
        self.made[kind] += 1

    async def reap(self) -> None:
        """Count pods that are over and delete them, until cancelled."""
        while True:
            with contextlib.suppress(ClusterError):
                await self._reap()
            await asyncio.sleep(1.0)

    async def _reap(self) -> None:
        for one in await self._bed.workload_pods():
            name, status = one["metadata"]["name"], one.get("status", {})
            if status.get("phase") not in ("Succeeded", "Failed") or name not in self._began:
                continue
            if status["phase"] == "Failed":
                self.refused.append(f"{name}: {status.get('reason')}: {status.get('message')}")
            self.late += time.monotonic() - self._began.pop(name) > LATE_SECONDS
            await self._bed.api.delete(PODS, name, namespace=NAMESPACE)

    async def over(self) -> None:
        """Until all pods are."""

        async def none_left() -> bool:
            return not self._began

        await wait_for(self._bed, "the last pods to end", none_left, END_SECONDS)


async def roll(bed: RealBed, max_surge: int, turn: int) -> float:
    """One rollout; returns its seconds, from the change to the only agent being ready."""
    old = {one["metadata"]["uid"] for one in await bed.agent_pods()}
    began = time.monotonic()
    for obj in strategy(bed.objects, max_surge, turn):
        if obj["kind"] == "DaemonSet":
            await bed.api.apply(kind_of(obj), obj, manager="drabridge-rollouts", namespace=NAMESPACE)

    async def replaced() -> bool:
        pods = await bed.agent_pods()
        return not old & {one["metadata"]["uid"] for one in pods} and await bed.ready()

    await wait_for(bed, "the rollout", replaced)
    return time.monotonic() - began


async def watch(socket: Path) -> None:
    """Print when kubelet begins and ends to have no device of the resource, as JSON lines, until killed."""
    async with podresources.Client(socket) as kubelet:
        lost_at: float | None = None
        while True:
            asked = time.monotonic()
            try:
                there = bool((await kubelet.allocatable(timeout_seconds=5)).count_by_resource().get(RESOURCE))
            except podresources.PodResourcesError as error:
                print(json.dumps({"error": str(error)}), flush=True)
                continue
            if not there and lost_at is None:
                lost_at = asked
            elif there and lost_at is not None:
                print(json.dumps({"at": lost_at, "seconds": time.monotonic() - lost_at}), flush=True)
                lost_at = None
            await asyncio.sleep(max(0.0, LOOK_SECONDS - (time.monotonic() - asked)))


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The whole run; the numbers of its last line."""
    async with real({**CONFIG, "resources": [CONSOLES]}) as bed:
        bed.objects = strategy(bed.objects, options.max_surge, 0)
        await bed.install()
        await wait_for(bed, "the agent to be ready", bed.ready)
        await wait_for(bed, "the node to offer devices", lambda: _offers(bed))
        load = Load(bed, options.pods_per_second)
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.rollouts", "--watch", str(options.pod_resources)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert watching.stdout is not None
        reaping = asyncio.create_task(load.reap())
        making = asyncio.create_task(load.run())
        seconds = []
        try:
            for turn in range(1, options.rollouts + 1):
                await asyncio.sleep(PAUSE_SECONDS)
                if making.done():
                    making.result()
                seconds.append(await roll(bed, options.max_surge, turn))
                print(f"rollout {turn}: {seconds[-1]:.1f} s, made {load.made}, refused {len(load.refused)}", flush=True)
            await asyncio.sleep(PAUSE_SECONDS)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            await load.over()
            events = (await bed.api.list(EVENTS, namespace=NAMESPACE)).items
        finally:
            for task in (making, reaping):
                task.cancel()
            await asyncio.gather(making, reaping, return_exceptions=True)
            watching.terminate()
        rows = [json.loads(line) for line in (await watching.stdout.read()).splitlines()]
        await watching.wait()
    gaps = sorted(row["seconds"] for row in rows if "seconds" in row)
    for line in load.refused[:5]:
        print(line)
    failed = sum(one.get("count") or 1 for one in events if one["reason"] == "FailedPrepareDynamicResources")
    return {
        "max_surge": options.max_surge,
        "rollouts": options.rollouts,
        "rollout_p50": round(statistics.median(seconds), 1),
        "gaps": len(gaps),
        "gap_p50": round(statistics.median(gaps), 3) if gaps else 0.0,
        "gap_max": round(gaps[-1], 3) if gaps else 0.0,
        "limits": load.made["limits"],
        "refused": len(load.refused),
        "claims": load.made["claims"],
        "prepares_failed": failed,
        "late": load.late,
    }


async def _offers(bed: RealBed) -> bool:
    node = await bed.api.get(Kind("", "v1", "nodes", namespaced=False), bed.node_object)
    return int(node["status"].get("allocatable", {}).get(RESOURCE, "0")) > 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.rollouts",
        description="Roll the agent's DaemonSet out again and again on the cluster of KUBECONFIG, and count.",
        epilog="DRABRIDGE_TEST_IMAGE and DRABRIDGE_TEST_BUSYBOX name images that the node has.",
    )
    parser.add_argument("--rollouts", type=int, default=20, metavar="N")
    parser.add_argument(
        "--pods-per-second", type=int, default=2, metavar="N", help="of each kind, 0 for none; default: 2"
    )
    parser.add_argument("--max-surge", type=int, choices=(0, 1), default=1)
    parser.add_argument("--pod-resources", type=Path, default=DEFAULT_SOCKET, metavar="FILE", help="kubelet's")
    parser.add_argument("--watch", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.watch is not None:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(watch(options.watch))
        return 0
    found = asyncio.run(measure(options))
    print("rollouts:", " ".join(f"{name}={value}" for name, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
