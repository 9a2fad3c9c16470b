"""Devices that are offered through both APIs at once: each goes to whoever comes first."""

from __future__ import annotations

import pytest

from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.bed import CLAIMS, DEVICES, DRIVER, NAMESPACE, PODS, Bed, Json, wait_for
from tests.cluster.releases.features import needs
from tests.cluster.steps import claim_by_pythons_client, claim_pod, deleted, event, legacy_pod, offered, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs("binding conditions")]

CONFIG: Json = {
    **b.CONFIG,
    "resources": [
        {
            **b.CONFIG["resources"][0],
            "lanes": {"legacy": 0, "dra": 0, "shared": DEVICES},
            "claimConfig": {"env": ["MODE"]},
        }
    ],
}


async def freed(bed: Bed, *names: str) -> None:
    """Delete pods and their claims."""
    await deleted(bed, *names)
    for name in names:
        await bed.api.delete(CLAIMS, name, namespace=NAMESPACE)


async def test_each_device_is_for_a_pod_or_a_claim_whichever_comes_first(bed: Bed) -> None:
    await offered(bed, legacy=DEVICES, dra=DEVICES)
    await claim_pod(bed, "claim-0")
    await legacy_pod(bed, "limits-0")
    await claim_pod(bed, "claim-1")
    await legacy_pod(bed, "limits-1")
    await running(bed, "claim-0", "limits-0", "claim-1", "limits-1")
    used = [device for name in ("claim-0", "claim-1", "limits-0", "limits-1") for device in await bed.devices(name)]
    assert sorted(used) == ["full", "null", "random", "zero"]
    await claim_pod(bed, "claim-late")
    await event(bed, "claim-late", "FailedScheduling")
    await deleted(bed, "limits-0")
    await running(bed, "claim-late")
    await offered(bed, legacy=1, dra=3)  # until the Node says so, kubelet refuses what the scheduler sends it
    await legacy_pod(bed, "limits-late")
    await event(bed, "limits-late", "FailedScheduling")
    await freed(bed, "claim-0", "claim-1")
    await running(bed, "limits-late")


async def test_a_lease_survives_a_killed_agent_and_a_new_kubelet(bed: Bed) -> None:
    await claim_pod(bed, "claim-0")
    await bed.kill_agent()
    await running(bed, "claim-0")
    await claim_pod(bed, "claim-1")
    await bed.restart_kubelet()
    await running(bed, "claim-1")
    await legacy_pod(bed, "limits", count=2)
    await running(bed, "limits")
    await freed(bed, "claim-0", "claim-1")
    await deleted(bed, "limits")
    await offered(bed, legacy=DEVICES, dra=DEVICES)


async def test_a_claim_that_the_server_lets_nobody_patch_gets_its_device_and_its_status(bed: Bed) -> None:
    """The server compares the bytes of the parameters with those of its own spelling (dra/claim_encoding.py)."""
    document = {"kind": "DeviceConfig", "apiVersion": "drabridge/v1alpha1", "env": {"MODE": "<fast>"}}
    claim = w.claim("spelt", config=({"requests": ["one"], "opaque": {"driver": DRIVER, "parameters": document}},))
    await claim_by_pythons_client(bed, claim)
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimName": "spelt"}, then="echo MODE=$MODE")
    await bed.api.create(PODS, w.pod("spelt", spec), namespace=NAMESPACE)
    await running(bed, "spelt")
    if (log := await bed.said("spelt")) is not None:
        assert "MODE=<fast>" in log

    async def told() -> set[str]:
        (entry,) = (await bed.api.get(CLAIMS, "spelt", namespace=NAMESPACE))["status"]["devices"]
        found = {one["type"] for one in entry["conditions"]}
        return found if "Ready" in found else set()

    assert await wait_for(bed, "the claim's status", told) == {"Ready", f"{DRIVER}/lease"}
    await freed(bed, "spelt")
    await offered(bed, legacy=DEVICES, dra=DEVICES)
