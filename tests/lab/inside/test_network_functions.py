"""Virtual functions of a network card are chosen as network operators do: by the card's interface, and by number."""

from __future__ import annotations

from pathlib import Path

from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.found import find
from tests.lab.inside.nodes import DRIVER, HEAD, ids, listed, make_functions, physical
from tests.support.agent_process import cdi_devices, node, pod
from tests.support.waiting import until

RESOURCE = "example.com/vf"
RULE = f"""\
- name: {RESOURCE}
  match: [{{subsystem: pci, property: {{SRIOV_PF_NAME: INTERFACE, SRIOV_VF: "[1-2]"}}}}]
  id: ["{{pci}}"]
  nodes: [{{path: "/dev/vfio/{{iommu_group}}"}}]
  env: {{NUMBER: "{{property:SRIOV_VF}}", CARD: "{{property:SRIOV_PF_NAME}}"}}
"""


async def test_they_are_chosen_by_interface_and_number_and_go_with_their_card() -> None:
    interface = Path(find("nic")).name
    function = physical("nic")
    try:
        async with node(HEAD + RULE.replace("INTERFACE", interface), DRIVER) as (agent, kubelet):
            made = make_functions(4, "nic")
            await listed(agent, kubelet, RESOURCE, set(made[1:3]), set())
            assert (await kubelet.run_pod(pod("a", 2, RESOURCE))).phase is Phase.RUNNING
            given = {variable for one in cdi_devices(agent.cdi) for variable in one["containerEdits"].get("env", ())}
            assert given == {"NUMBER=1", "NUMBER=2", f"CARD={interface}"}
            (function / "sriov_numvfs").write_text("0\n")
            await until(lambda: ids(kubelet, RESOURCE) == (set(), set(made[1:3])), 20, agent.text)
            await kubelet.delete_pod("uid-a")
    finally:
        (function / "sriov_numvfs").write_text("0\n")
