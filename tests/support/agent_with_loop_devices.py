"""A configuration of loop devices, and what kubelet and the CDI files say of them."""

from __future__ import annotations

from typing import Any

from drabridge.sim.kubelet.kubelet import SimKubelet
from tests.support.agent_process import AgentProcess, cdi_devices
from tests.support.hardware import Loops

RESOURCE, DRIVER = "example.com/loop", "loop.example.com"


def by_name(loop: Loops) -> str:
    return f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
safety: {{minHoldSeconds: 0.5, absentSeconds: 0.3}}
resources:
- name: {RESOURCE}
  match: [{{subsystem: block, sysname: "{loop.pattern}"}}]
  id: ["{{sysname}}"]
  nodes: [{{from: devnode, as: "/dev/disks/{{sysname}}"}}]
"""


def counted(kubelet: SimKubelet) -> tuple[int, int]:
    """Allocatable and capacity."""
    status = kubelet.node_status()
    return status["allocatable"].get(RESOURCE, -1), status["capacity"].get(RESOURCE, -1)


def device_nodes(agent: AgentProcess) -> list[dict[str, Any]]:
    """The nodes of all CDI files."""
    return [node for device in cdi_devices(agent.cdi) for node in device["containerEdits"]["deviceNodes"]]
