"""A GPU without libraries is not given out, and the operator hears why from every place where one looks."""

from __future__ import annotations

import json

from tests.support.agent_on_cluster import BOTH_LANES, bridge, devices_in_slices, healthy
from tests.support.cdi_files import KIND, write_spec
from tests.support.waiting import until

NAMES = ("full", "null", "random", "zero")
WITH_DRIVER = BOTH_LANES + (
    f'  nodes: []\n  cdiDevices: ["{KIND}={{sysname}}"]\n'
    "  cdiFallback: {nodes: [{path: /dev/null}], driverFiles: nvidia}\n"
)
WHY = "NVIDIA's driver is not loaded"  # on no machine where this test runs


async def test_readyz_status_and_an_event_say_why_a_gpu_without_libraries_is_not_given_out() -> None:
    async with bridge() as (agent, cluster, _):
        agent.config.write_text(WITH_DRIVER)
        await until(lambda: not healthy(cluster) and not devices_in_slices(cluster), 20, agent.text)

        async def not_ready() -> bool:
            code, body = await agent.ask("/readyz")
            return code == 503 and f"is not given out: {WHY}" in body.decode()

        await until(not_ready, 10, agent.text)
        assert {row["presence"] for row in (await agent.status())["devices"]} == {"faulty"}
        assert WHY in json.dumps((await agent.status())["devices"])

        def told() -> bool:
            events = cluster.api.objects.peek("events")
            return any(one["reason"] == "DriverFilesMissing" and WHY in json.dumps(one) for one in events)

        await until(told, 10, agent.text)
        agent.cdi.mkdir(exist_ok=True)
        write_spec(agent.cdi / "nvidia.yaml", *NAMES)
        await agent.ready()
        await until(lambda: len(healthy(cluster)) == len(devices_in_slices(cluster)) == 2, 20, agent.text)
