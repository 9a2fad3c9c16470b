"""A resource name with an attribute in it: a resource begins with its first device, and lasts."""

from __future__ import annotations

import signal

import pytest

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import Phase
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_process import QUICK, RESOURCE, AgentProcess, pod
from tests.support.kubelet_peers import Plugin, device
from tests.support.umockdev import needs_umockdev, run_under_umockdev
from tests.support.waiting import short_directory

BY_NUMBER = QUICK.replace(f"name: {RESOURCE}\n", f"name: '{RESOURCE}-{{attr:dev}}'\n")  # /dev/null has 1:3
BY_NUMBER = BY_NUMBER.replace("{WHICH:", '{"WHICH_{sysname}":')  # a container may have devices of several resources


@pytest.mark.parametrize("module", [pytest.param("tests.agent.umockdev_named", marks=needs_umockdev)])
def test_a_resource_begins_with_its_first_device(module: str) -> None:
    run_under_umockdev(module)


@pytest.mark.parametrize(("name", "owner"), [(f"{RESOURCE}-9.9", "quarantine"), ("example.com/other-9.9", "none")])
async def test_a_pod_with_a_device_of_a_kind_that_is_gone_may_have_any_device(name: str, owner: str) -> None:
    """As after another plugin: no device has the resource now, and its name is one that the template stands for."""
    with short_directory() as root:
        async with SimKubelet(root, timings=Timings.fast()) as kubelet:
            other = Plugin(root, "vendor.sock", [device("gone")], name)
            await other.serve()
            await other.register()
            await kubelet.wait_for_resource(name, healthy=1)
            assert (await kubelet.run_pod(pod("a", 1, name))).phase is Phase.RUNNING
            await other.stop()
            agent = AgentProcess(root, BY_NUMBER)
            await agent.start()
            try:
                await agent.ready()
                rows = (await agent.status())["devices"]
                assert {row["owner"] for row in rows} == {owner}
                assert {row["resource"] for row in rows} == {f"{RESOURCE}-1.{number}" for number in (3, 5, 7, 8)}
            finally:
                await agent.stop(signal.SIGKILL)
