"""The agent replaces another device plugin while a pod runs, and the other plugin comes back."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.bed import DRIVER, NAMESPACE, PODS, RESOURCE, Bed, Json, at_the_beginning, lanes, wait_for
from tests.cluster.other_plugins import DEVICE_PLUGINS, allocatable, beside, on_node, plugin, plugins
from tests.cluster.steps import claim_pod, deleted, legacy_pod, offered, running
from tests.node import build
from tests.node.releases import release

pytestmark = pytest.mark.asyncio(loop_scope="module")

GO_RESOURCE = "example.com/resource"  # of Kubernetes' sample device plugin (test/images/sample-device-plugin)
GO_IDS = 2
GO_RESOURCE_IDS = ("kmsg", "urandom")  # the agent's
IDS = ("zero", "null", "full", "random")
CONFIG: Json = {
    **b.CONFIG,
    "resources": [
        b.CONFIG["resources"][0],
        {
            "name": GO_RESOURCE,
            "match": [{"subsystem": "mem", "sysname": [*GO_RESOURCE_IDS]}],
            "id": ["{sysname}"],
            "nodes": [{"from": "devnode", "as": "/dev/test-{sysname}"}],
            "lanes": {"legacy": 2, "dra": 0},
            "deviceClass": {"name": "drabridge-cluster-test-go"},
        },
    ],
}


def go_plugin() -> Path:
    """Kubernetes' own, built with the nodes. Skips the test where it is not."""
    found = build.program("sample-device-plugin", release())
    if found is None:
        pytest.skip("Kubernetes' sample-device-plugin is not built: python -m tests.node build")
    return found


def with_our_ids(bed: Bed) -> Any:
    return plugin([sys.executable, "-m", "tests.cluster.peer", plugins(bed), RESOURCE, *IDS])


async def without_the_agent(bed: Bed) -> None:
    """Until the Node says so, too: a scheduler that reads the numbers of before sends pods that kubelet refuses."""
    await bed.uninstall()
    for resource in (RESOURCE, GO_RESOURCE):
        await allocatable(bed, resource, 0)


async def test_a_pod_of_a_plugin_with_our_ids_keeps_its_device(bed: Bed) -> None:
    plugins(bed)
    await without_the_agent(bed)
    async with with_our_ids(bed):
        await allocatable(bed, RESOURCE, 4)
        await legacy_pod(bed, "before")
        await running(bed, "before")
    (held,) = await bed.devices("before") if bed.runs_programs else [""]
    await bed.install()
    await at_the_beginning(bed)
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await claim_pod(bed, "c2")
    await running(bed, "before", "l1", "c1", "c2")
    others = [device for name in ("l1", "c1", "c2") for device in await bed.devices(name)]
    assert held not in others
    assert len(set(others)) == 3
    await deleted(bed, "before")
    await legacy_pod(bed, "l2")
    await running(bed, "l1", "l2", "c1", "c2")


async def test_a_plugin_that_comes_back_is_named_and_breaks_nothing(bed: Bed) -> None:
    """It takes the list away from the agent; claims go on, and the agent is back when the other one has gone."""
    if not bed.runs_programs:
        pytest.skip("takes 40 s: the agent believes that there is none only after 30")
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await running(bed, "l1", "c1")
    async with with_our_ids(bed):

        async def named() -> bool:
            return "another plugin on this node registered it, too" in await bed.not_ready()

        await wait_for(bed, "the agent to name the other plugin", named)
        await running(bed, "l1", "c1")
    await wait_for(bed, "the agent to have the resource again", bed.ready)
    await offered(bed, legacy=2, dra=2)
    await legacy_pod(bed, "l2")
    await claim_pod(bed, "c2")
    await running(bed, "l1", "c1", "l2", "c2")


async def test_pods_with_limits_start_again_when_a_plugin_has_come_and_gone(bed: Bed) -> None:
    """Its ids are ours, so nothing is strange while it is there. At its end kubelet has no plugin, and tells nobody."""
    if not bed.runs_programs:
        pytest.skip("takes 40 s: kubelet's loss counts only for devices that were offered for 30")
    directory = plugins(bed)
    async with plugin([sys.executable, "-m", "tests.cluster.peer", directory, GO_RESOURCE, *GO_RESOURCE_IDS]):

        async def serves() -> bool:
            return any(directory.glob("peer*"))

        await wait_for(bed, "the other plugin to serve", serves)
        await asyncio.sleep(3)  # it registers, and kubelet takes its list
    await allocatable(bed, GO_RESOURCE, 0)
    await allocatable(bed, GO_RESOURCE, 2)
    container = w.container(bed.image, {"limits": {GO_RESOURCE: "2"}})
    await bed.api.create(PODS, w.pod("after", w.spec_of(bed.node, container)), namespace=NAMESPACE)
    await running(bed, "after")


async def test_a_pod_of_a_plugin_with_ids_of_its_own_puts_all_in_doubt_until_it_ends(bed: Bed) -> None:
    """Kubernetes' own sample plugin, in Go: nobody can say which of our devices its pod uses."""
    if not bed.runs_programs:
        pytest.skip("that plugin knows one kubelet's directory only")
    directory = plugins(bed)
    program = go_plugin()
    await without_the_agent(bed)
    for path in (directory.parent / "plugins" / DRIVER, *on_node(bed, "/run/cdi").glob(f"{DRIVER}-*")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()  # a node that never had the agent
    async with plugin([*beside(bed), program], PLUGIN_SOCK_DIR=DEVICE_PLUGINS):  # it registers in its own root
        await allocatable(bed, GO_RESOURCE, GO_IDS)
        container = w.container(bed.image, {"limits": {GO_RESOURCE: "1"}}) | {"command": ["sh", "-c", SLEEPS]}
        await bed.api.create(PODS, w.pod("before", w.spec_of(bed.node, container)), namespace=NAMESPACE)
        await running(bed, "before")
    await bed.install()
    await offered(bed, legacy=2, dra=2)  # the other resource is nobody's doubt

    async def in_doubt() -> bool:
        return await lanes(bed, GO_RESOURCE) == (0, 0) and "quarantine" in await bed.agent_story()

    await wait_for(bed, "the devices to be in doubt", in_doubt)
    await running(bed, "before")
    await deleted(bed, "before")
    await at_the_beginning(bed)
    container = w.container(bed.image, {"limits": {GO_RESOURCE: "2"}})
    await bed.api.create(PODS, w.pod("after", w.spec_of(bed.node, container)), namespace=NAMESPACE)
    await running(bed, "after")
    assert sorted(await bed.devices("after")) == [*GO_RESOURCE_IDS]


SLEEPS = "trap 'exit 0' TERM; sleep 3600 & wait"
