"""A real agent keeps labels of its devices on its Node."""

from __future__ import annotations

import asyncio

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import BOTH_LANES, bridge
from tests.support.waiting import until

LABELS = """\
nodeLabels:
  labels:
    example.com/mem.count: {resource: example.com/mem, count: devices}
    example.com/mem.replicas: {resource: example.com/mem, count: replicas}
    example.com/mem.kind: {resource: example.com/mem, value: "{subsystem} of major {major}"}
resources:
"""
LABELLED = BOTH_LANES.replace("resources:\n", LABELS)
ALL = {"example.com/mem.count": "4", "example.com/mem.replicas": "1", "example.com/mem.kind": "mem-of-major-1"}


def labels(cluster: SimCluster) -> dict[str, str]:
    node = cluster.get("nodes", "node-a")
    assert node is not None
    found = node["metadata"].get("labels") or {}
    return {name: value for name, value in found.items() if name.startswith("example.com/")}


def patches(cluster: SimCluster) -> int:
    return sum(one.verb == "patch" and one.rule[1] == "nodes" for one in cluster.api.requests)


async def test_labels_follow_the_devices_and_the_configuration_and_outlive_the_agent() -> None:
    async with bridge(LABELLED) as (agent, cluster, _):
        await until(lambda: labels(cluster) == ALL, 10, agent.text)
        assert patches(cluster) == 1
        await agent.stop()
        assert labels(cluster) == ALL
        await agent.start()
        await agent.ready()
        await asyncio.sleep(1.5)
        assert (labels(cluster), patches(cluster)) == (ALL, 1)
        agent.config.write_text(LABELLED.replace('[zero, "null", full, random]', "[zero, full]"))
        await until(lambda: labels(cluster) == ALL | {"example.com/mem.count": "2"}, 20, agent.text)
        # Another label, of an attribute that nothing else reads.
        agent.config.write_text(
            LABELLED.replace("mem.kind:", "mem.number:").replace("{subsystem} of major {major}", "n{attr:dev}")
        )
        await until(lambda: labels(cluster).get("example.com/mem.number", "").startswith("n1"), 20, agent.text)
        assert labels(cluster).keys() == {name.replace("kind", "number") for name in ALL}
        agent.config.write_text(BOTH_LANES)
        await until(lambda: labels(cluster) == {}, 20, agent.text)


async def test_an_agent_removes_what_one_before_it_wrote() -> None:
    async with bridge(LABELLED) as (agent, cluster, _):
        await until(lambda: labels(cluster) == ALL, 10, agent.text)
        await agent.stop()
        agent.config.write_text(BOTH_LANES)
        await agent.start()
        await until(lambda: labels(cluster) == {}, 10, agent.text)


async def test_without_the_key_nothing_is_asked() -> None:
    async with bridge() as (agent, cluster, _):
        await agent.ready()
        await asyncio.sleep(1.5)
        asked = {(one.verb, one.rule[1]) for one in cluster.api.requests if one.verb != "nonresource"}
        assert not [verb for verb, resource in asked if resource == "nodes" and verb not in ("get", "list", "watch")]
