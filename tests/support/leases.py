"""What tests look at when an agent leases devices beside a simulated cluster."""

from __future__ import annotations

from typing import Any

from drabridge.sim.cluster import SimCluster
from tests.support.agent_on_cluster import BOTH_LANES, devices_in_slices, healthy
from tests.support.agent_process import DRIVER, AgentProcess
from tests.support.waiting import until

SHARED = BOTH_LANES.replace("{legacy: 2, dra: 2}", '{shared: "*"}')
ALL = {"zero", "null", "full", "random"}


async def offered_twice(agent: AgentProcess, cluster: SimCluster) -> None:
    await until(lambda: healthy(cluster) == devices_in_slices(cluster) == ALL, 10, agent.text)


async def owners(agent: AgentProcess) -> list[str]:
    return sorted(row["owner"] for row in (await agent.status())["devices"])


async def waits_for_lease(agent: AgentProcess) -> bool:
    return "dra-pending" in await owners(agent)


async def claim_has_phase(agent: AgentProcess, claim: str, phase: str) -> bool:
    rows = (await agent.status())["devices"]
    return any((held["claim"], held["phase"]) == (claim, phase) for row in rows for held in row["holders"])


def allocated_devices(cluster: SimCluster, claim: str) -> set[str]:
    found = cluster.get("resourceclaims", claim) or {}
    results = found.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return {result["device"] for result in results}


def condition(cluster: SimCluster, claim: str, name: str) -> dict[str, Any]:
    found = cluster.get("resourceclaims", claim) or {}
    conditions = [one for device in found.get("status", {}).get("devices", ()) for one in device["conditions"]]
    return next((one for one in conditions if one["type"] == f"{DRIVER}/{name}"), {})


def messages(cluster: SimCluster, reason: str) -> list[str]:
    return [one["message"] for one in cluster.api.objects.peek("events") if one["reason"] == reason]
