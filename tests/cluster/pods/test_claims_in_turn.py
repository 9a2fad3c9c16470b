"""Many claims, one after the other, on the same devices: none of them is refused."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.cluster import workloads as w
from tests.cluster.bed import EVENTS, NAMESPACE, PODS, TEMPLATES, Bed, failed, wait_for
from tests.cluster.steps import deleted, phase

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLAIMS = int(os.environ.get("DRABRIDGE_TEST_CLAIMS", "250"))
AT_A_TIME = 3  # for two devices: one always waits for the end of another


async def test_claims_one_after_the_other_are_never_refused(bed: Bed) -> None:
    """The scheduler gives a device to the next claim before the agent has seen the end of the one before."""
    number = CLAIMS if bed.runs_programs else 12
    await bed.api.create(TEMPLATES, w.template("turn"), namespace=NAMESPACE)
    names = iter([f"turn-{n}" for n in range(number)])

    async def one_after_the_other() -> None:
        for name in names:
            more = {} if bed.runs_programs else {"runSeconds": 0.02}
            spec = w.with_claim(bed.image, bed.node, {"resourceClaimTemplateName": "turn"}, seconds=0)
            spec["containers"][0] |= more
            await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)

            async def ended(name: str = name) -> bool:
                found = await phase(bed, name)
                if found == "Failed":
                    raise await failed(bed, f"pod {name} has failed")
                return found == "Succeeded"

            await wait_for(bed, f"pod {name} to end", ended)
            await deleted(bed, name)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_A_TIME):
            group.create_task(one_after_the_other())
    events = (await bed.api.list(EVENTS, namespace=NAMESPACE)).items
    refused = [one["message"] for one in events if one["reason"] == "DeviceRefused"]
    assert refused == [], f"{len(refused)} of {number} claims"
