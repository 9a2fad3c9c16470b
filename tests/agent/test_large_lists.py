"""More ids than kubelet takes in one list: it gets what fits, and the agent says that it is not ready and why."""

from __future__ import annotations

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from tests.support.agent_process import AgentProcess
from tests.support.waiting import short_directory, until

RESOURCE = "example.com/mem"
CONFIG = """\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: mem.example.com
resources:
- name: example.com/mem
  match: [{subsystem: mem, sysname: [zero, "null", full, random, urandom, kmsg]}]
  id: ["GPU-5f9a3c1e-0000-4000-8000-00000000000a-board-12345678-{sysname}"]
  replicas: {count: 10000}
"""


async def test_the_agent_says_what_kubelet_was_not_told() -> None:
    with short_directory() as root:
        kubelet = SimKubelet(root, timings=Timings.fast())
        agent = AgentProcess(root, CONFIG, "mem.example.com")
        await kubelet.start()
        await agent.start()
        try:
            await until(lambda: RESOURCE in kubelet.resources and kubelet.resources[RESOURCE].healthy, 30)
            left_out = 60_000 - len(kubelet.resources[RESOURCE].healthy)
            assert 0 < left_out < 60_000
            code, body = await agent.ask("/readyz")
            said = f"{RESOURCE}: {left_out} ids are not offered, because kubelet takes lists of 4 MiB"
            assert (code, said in body.decode()) == (503, True)
            assert any(said in reason for reason in (await agent.status())["notReadyBecause"])
            metrics = (await agent.ask("/metrics"))[1].decode()
            assert f'drabridge_ids_left_out{{resource="{RESOURCE}"}} {left_out}.0' in metrics
        finally:
            await agent.stop(9)
            await kubelet.stop()
