"""Virtual functions of a physical function are made and removed under a real agent, free and held."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from drabridge.sim.kubelet.pods import Phase
from tests.lab.inside.found import find
from tests.lab.inside.nodes import DRIVER, HEAD, given_nodes, holder, listed, make_functions, physical
from tests.support.agent_process import cdi_devices, node, pod

FUNCTION, SECOND = "example.com/function", "example.com/second"
RULE = """\
- name: {name}
  match: [{{subsystem: pci, driver: vfio-pci, exists: ["link:physfn"]{more}}}]
  id: ["{{pci}}"]
  nodes: [{{path: "/dev/vfio/{{iommu_group}}"}}, {{path: /dev/vfio/vfio}}]
  env: {{PHYSICAL: "{{link:physfn}}", NUMBER: "{{property:SRIOV_VF}}"}}
"""


@contextlib.contextmanager
def no_functions_left() -> Iterator[None]:
    try:
        yield
    finally:
        (physical() / "sriov_numvfs").write_text("0\n")


async def test_they_come_and_go_free_and_held() -> None:
    with no_functions_left():
        async with node(HEAD + RULE.format(name=FUNCTION, more=""), DRIVER) as (agent, kubelet):
            made = make_functions(2)
            await listed(agent, kubelet, FUNCTION, set(made), set())
            assert (await kubelet.run_pod(pod("a", 2, FUNCTION))).phase is Phase.RUNNING
            assert {env for one in cdi_devices(agent.cdi) for env in one["containerEdits"].get("env", ())} >= {
                "NUMBER=0",
                "NUMBER=1",
            }
            nodes = {one["hostPath"] for one in given_nodes(agent)}
            groups = {f"/dev/vfio/{Path(f'/sys/bus/pci/devices/{one}/iommu_group').resolve().name}" for one in made}
            assert nodes == groups | {"/dev/vfio/vfio"}
            (physical() / "sriov_numvfs").write_text("0\n")
            await listed(agent, kubelet, FUNCTION, set(), set(made))
            names = ["pci-" + one.replace(":", "-").replace(".", "-") for one in made]
            assert [await holder(agent, name) for name in names] == [("gone", "legacy")] * 2
            assert make_functions(4)[:2] == made
            await listed(agent, kubelet, FUNCTION, set(function_addresses()), set())
            assert [await holder(agent, name) for name in names] == [("present", "legacy")] * 2
            await kubelet.delete_pod("uid-a")


def function_addresses() -> list[str]:
    """The addresses of the functions that are there."""
    return [path.resolve().name for path in Path(find("functions")).glob("virtfn*")]


async def test_they_are_chosen_by_their_physical_function_and_number() -> None:
    with no_functions_left():
        parent = Path(find("functions")).name
        chosen = RULE.format(name=SECOND, more=f', link: {{physfn: "{parent}"}}, property: {{SRIOV_VF: "[1-2]"}}')
        async with node(HEAD + chosen, DRIVER) as (agent, kubelet):
            made = make_functions(4)
            await listed(agent, kubelet, SECOND, set(made[1:3]), set())
