"""Which of the coordinators on three nodes leads."""

from __future__ import annotations

import contextlib

from drabridge.kube.api import NotFoundError
from drabridge.kube.claim_hints import LEASES, lock_name
from tests.cluster.bed import DRIVER, NAMESPACE, PODS, Json, wait_for
from tests.cluster.real_bed import COORDINATOR, is_ready
from tests.cluster.three_nodes.bed import ThreeNodes


async def leader(three: ThreeNodes) -> Json | None:
    """The pod that leads; None for none."""
    with contextlib.suppress(NotFoundError):
        lease = await three.api.get(LEASES, lock_name(DRIVER), namespace=NAMESPACE)
        if name := lease["spec"].get("holderIdentity"):
            return dict(await three.api.get(PODS, str(name), namespace=NAMESPACE))
    return None


async def two_are_ready(three: ThreeNodes) -> Json:
    """Wait for a leader and another coordinator that waits; return the leader."""

    async def there() -> Json | None:
        found = (await three.api.list(PODS, namespace=NAMESPACE, label_selector=COORDINATOR)).items
        first = await leader(three)
        return first if len(found) == 2 and all(map(is_ready, found)) else None

    one: Json = await wait_for(three, "a coordinator that leads, and one that waits", there)
    return one


async def another_leads(three: ThreeNodes, than: Json) -> None:
    async def other() -> bool:
        now = await leader(three)
        return now is not None and now["metadata"]["uid"] != than["metadata"]["uid"]

    await wait_for(three, "another coordinator to lead", other)
