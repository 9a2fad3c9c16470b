"""Does hostile text cost the agent memory that stays? ``python -m tests.abuse.hostile_memory`` measures it.

A real agent process on a simulated cluster: pods that name other resources and claims each and are deleted by force,
claims with 20 KB of hostile text, and machines of 1,000 devices with hostile serials and with plain ones. Anonymous
memory counts: what is added for good must be below ``BUDGET_MIB``, and the node must serve a pod of each kind then.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from drabridge.sim.cluster import SimCluster
from drabridge.sim.kubelet.pods import Phase
from tests.abuse.memory import sample
from tests.support import foreign_objects
from tests.support.agent_on_cluster import bridge, claim_pod, healthy, limits_pod, set_lanes
from tests.support.agent_process import DRIVER, AgentProcess, node, pod
from tests.support.umockdev import Testbed, run_under_umockdev
from tests.support.waiting import until

BUDGET_MIB = 4.0
PODS, CLAIMS, DEVICES = 10_000, 10_000, 1_000
AT_ONCE = 20  # pods that are there at a time
SETTLE_SECONDS = 5.0
TEXT = "\u202e<script>{attr:x}%s\\n../..\"' é\u2028$(id)" * 150  # 7 KB; one entry takes 10, so a claim has three
SERIAL = "\u202e<b>../..\"'%s$(id) {attr:x}" * 150  # a page of sysfs holds 4,096 bytes


def anonymous_mib(agent: AgentProcess) -> float:
    """What the agent has that is no file."""
    assert agent.process is not None
    return sample(agent.process.pid, 0.0, 0).anonymous_mib


def hostile_pod(number: int) -> dict[str, Any]:
    """A pod of the node with 60 resources and 60 claims that nobody has, as long as names may be."""
    limits = {f"{'a' * 60}.{'b' * 60}.com/{number}-{n}-{'e' * 40}"[:180]: "1" for n in range(60)}
    claims = [{"name": f"c{n}", "resourceClaimName": f"{number}-{n}-" + "f" * 60} for n in range(60)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"evil-{number}", "namespace": "default"},
        "spec": {
            "nodeName": "node-a",
            "terminationGracePeriodSeconds": 3600,
            "resourceClaims": claims,
            "containers": [{"name": "m", "image": "x", "resources": {"limits": limits}}],
        },
    }


async def force_deleted_pods(agent: AgentProcess, cluster: SimCluster, count: int) -> None:
    """Pods that come and are deleted by force, a few at a time, as the agent sees them."""
    objects = cluster.api.objects
    for first in range(0, count, AT_ONCE):
        numbers = range(first, min(first + AT_ONCE, count))
        for number in numbers:
            objects.create(hostile_pod(number), namespace="default")
        await asyncio.sleep(0.05)
        for number in numbers:
            objects.delete("pods", f"evil-{number}", "default", grace_seconds=0)
        await asyncio.sleep(0.05)


async def hostile_claims(agent: AgentProcess, cluster: SimCluster, count: int) -> None:
    """Claims with hostile parameters; the agent reads all claims when a device goes back to the lane for limits."""
    objects = cluster.api.objects
    for number in range(count):
        objects.create(foreign_objects.claim(f"evil-{number}", TEXT, TEXT, TEXT, driver=DRIVER), namespace="default")
        if number % 100 == 99:
            await asyncio.sleep(0)
    await set_lanes(agent, legacy=4, dra=0)
    await until(lambda: len(healthy(cluster)) == 4, 120, agent.text)
    await set_lanes(agent, legacy=2, dra=2)
    await until(lambda: len(healthy(cluster)) == 2, 60, agent.text)
    for number in range(count):
        objects.delete("resourceclaims", f"evil-{number}", "default")


async def added_mib(
    what: Callable[[AgentProcess, SimCluster, int], Awaitable[None]], count: int
) -> tuple[float, float]:
    """Return the memory before and after, each once the node has served a pod of both kinds."""
    with pytest.MonkeyPatch.context() as patching, foreign_objects.kubelet_takes_none(patching, "evil"):
        async with bridge() as (agent, cluster, _):
            await what(agent, cluster, min(200, count // 10))  # what is imported and cached at its first use
            await served(cluster, "before")
            before = anonymous_mib(agent)
            await what(agent, cluster, count)
            await served(cluster, "after")
            return before, anonymous_mib(agent)


async def served(cluster: SimCluster, name: str) -> None:
    """A pod with limits and one with a claim run, and end."""
    await cluster.apply(limits_pod(f"limits-{name}") + "---\n" + claim_pod(f"claim-{name}"))
    for kind in ("limits", "claim"):
        await cluster.wait_pod(f"{kind}-{name}", timeout=120)
    for kind in ("limits", "claim"):
        await cluster.delete("pods", f"{kind}-{name}")
    await cluster.delete("resourceclaims", f"claim-{name}")
    await asyncio.sleep(SETTLE_SECONDS)


CONFIG = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources:
- name: example.com/radio
  match: [{{subsystem: usb, attr: {{idVendor: "0bda"}}}}]
  id: ["{{attr:serial}}"]
  nodes: []
  env: {{SERIAL: "{{attr:serial}}"}}
  attributes: {{serial: {{from: "attr:serial"}}, product: {{from: "attr:product"}}}}
"""


def machine(count: int, serial: str) -> str:
    """USB devices on one controller, each with a serial of its own."""
    parts = []
    for number in range(count):
        own = f"{number:08}{serial}".encode()[:4_000].decode(errors="ignore")
        parts.append(
            f"P: /devices/pci0000:00/0000:00:14.0/usb1/1-{number + 1}\n"
            "E: SUBSYSTEM=usb\nE: DEVTYPE=usb_device\n"
            f"A: idVendor=0bda\\n\nA: idProduct=2838\\n\nA: serial={own}\\n\nA: product={own}\\n\n\n"
        )
    return "".join(parts)


async def with_devices(serial: str, count: int) -> float:
    """Run inside umockdev: a node with so many devices serves a pod; returns the agent's memory then."""
    bed = Testbed(machine(count, serial))
    os.environ["UMOCKDEV_DIR"] = str(bed.root)  # libumockdev tells the C library only
    async with node(CONFIG) as (agent, kubelet):
        await until(lambda: len(kubelet.resources["example.com/radio"].healthy) == count, 120, agent.text)
        assert (await kubelet.run_pod(pod("a", 1, "example.com/radio"))).phase is Phase.RUNNING
        for page in ("/status", "/metrics", "/"):
            assert (await agent.ask(page))[0] == 200
        await asyncio.sleep(SETTLE_SECONDS)
        return anonymous_mib(agent)


def devices_mib(kind: str, count: int) -> float:
    """Measure in a process of its own."""
    said = run_under_umockdev("tests.abuse.hostile_memory", kind, "--count", str(count), "--here", alone=True)
    return float(said.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.abuse.hostile_memory",
        description="Measure the memory that hostile pods, claims and devices leave in an agent.",
    )
    parser.add_argument("what", nargs="*", help="pods, claims, devices (default: all)")
    parser.add_argument("--count", type=int, help="so many of each (default 10,000, 10,000 and 1,000)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # inside umockdev
    given = parser.parse_args()
    if given.here:
        print(asyncio.run(with_devices(SERIAL if given.what == ["hostile"] else "", given.count)))
        return 0
    worst = 0.0
    for what in given.what or ("pods", "claims", "devices"):
        if what == "devices":
            count = given.count or DEVICES
            before, after = devices_mib("plain", count), devices_mib("hostile", count)
        elif what == "pods":
            count = given.count or PODS
            before, after = asyncio.run(added_mib(force_deleted_pods, count))
        else:
            count = given.count or CLAIMS
            before, after = asyncio.run(added_mib(hostile_claims, count))
        worst = max(worst, after - before)
        print(
            f"{what}: {count:,}: {before:.1f} MiB, then {after:.1f} MiB anonymous ({after - before:+.1f})", flush=True
        )
    return int(worst > BUDGET_MIB)


if __name__ == "__main__":
    sys.exit(main())
