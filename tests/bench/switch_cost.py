"""``python -m tests.bench.switch_cost``: what the policies of ``drabridge migrate switch`` cost for each pod.

On the API server of KUBECONFIG. The same pod is tried (a dry run) in two new namespaces in turn, of which one is
switched. Not one of the benchmarks of ``python -m tests.bench``: only a real API server runs CEL.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import time
from pathlib import Path

from drabridge.kube.api import PODS, Kind
from drabridge.kube.client import KubernetesCluster
from drabridge.migrate.report.readers import NAMESPACES
from drabridge.migrate.switch.switcher import Choice, to_claims, to_limits

RESOURCE = "example.com/switch-cost"
ACCOUNTS = Kind("", "v1", "serviceaccounts")
CLASSES = Kind("resource.k8s.io", "v1", "deviceclasses", namespaced=False)
MANAGER = "drabridge-bench"


async def measure(api: KubernetesCluster, rounds: int) -> dict[str, list[float]]:
    """Return for each namespace the milliseconds that its pods took."""
    name = f"drabridge-bench-{secrets.token_hex(3)}"
    plain, switched = f"{name}-plain", f"{name}-switched"
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": {}}
    await api.create(CLASSES, device_class)
    try:
        for namespace in (plain, switched):
            meta = {"name": "default", "namespace": namespace}
            await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
            await api.apply(ACCOUNTS, account, manager=MANAGER, namespace=namespace)
        await to_claims(api, [switched], Choice({RESOURCE: name}), print)
        found: dict[str, list[float]] = {plain: [], switched: []}
        for turn in range(rounds + 10):
            for namespace, times in found.items():
                began = time.perf_counter()
                made = await api.create(PODS, pod(namespace), namespace=namespace, dry_run=True)
                if turn >= 10:  # the first ones warm up
                    times.append((time.perf_counter() - began) * 1000)
                assert bool(made["spec"].get("resourceClaims")) == (namespace == switched)
        await to_limits(api, [switched], print)
        return {"plain": found[plain], "switched": found[switched]}
    finally:
        for namespace in (plain, switched):
            await api.delete(NAMESPACES, namespace)
        await api.delete(CLASSES, name)
        api.close()


def pod(namespace: str) -> dict[str, object]:
    """Two containers with a device each, beside an init container that uses both."""
    limits = {"resources": {"limits": {RESOURCE: "1"}}}
    spec = {
        "initContainers": [{"name": "i", "image": "none", **limits}],
        "containers": [{"name": name, "image": "none", **limits} for name in ("a", "b")],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tried", "namespace": namespace}, "spec": spec}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.switch_cost", description=__doc__)
    parser.add_argument("--pods", type=int, default=300, help="in each namespace")
    arguments = parser.parse_args()
    api = KubernetesCluster.from_kubeconfig(Path(os.environ["KUBECONFIG"]).expanduser())
    found = asyncio.run(measure(api, arguments.pods))
    for name, times in found.items():
        times.sort()
        print(f"{name:<9} p50 {statistics.median(times):6.2f} ms   p99 {times[int(len(times) * 0.99)]:6.2f} ms")


if __name__ == "__main__":
    main()
