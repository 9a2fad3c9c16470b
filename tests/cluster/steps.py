"""What scenarios do, and what they wait for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from typing import Any

from drabridge.kube.api import NotFoundError
from tests.cluster import workloads as w
from tests.cluster.bed import (
    CLAIMS,
    EVENTS,
    JOBS,
    LANES,
    NAMESPACE,
    PODS,
    RESOURCE,
    TEMPLATES,
    Bed,
    Json,
    ScenarioError,
    apply_node,
    at_the_beginning,
    failed,
    lanes,
    wait_for,
)
from tests.cluster.real_bed import RealBed

TRY_SECONDS = 10.0
STUBBORN = "trap '' TERM; sleep 3600 & wait"
"""Of a pod that ignores TERM: only kubelet's kill after the grace period ends it."""


async def offered(bed: Bed, *, legacy: int, dra: int) -> None:
    async def there() -> bool:
        return await lanes(bed) == (legacy, dra)

    await wait_for(bed, f"{legacy} devices in the legacy lane and {dra} in the other", there)


async def move(bed: Bed, **wish: Any) -> None:
    """As an administrator does it from afar: by the Node's annotation."""
    await apply_node(bed, {LANES: json.dumps({RESOURCE: wish})})


async def phase(bed: Bed, name: str) -> str:
    with contextlib.suppress(NotFoundError):
        return str((await bed.api.get(PODS, name, namespace=NAMESPACE))["status"].get("phase", ""))
    return "gone"


async def running(bed: Bed, *names: str) -> None:
    for name in names:

        async def runs(name: str = name) -> bool:
            found = await phase(bed, name)
            if found in ("Failed", "Succeeded", "gone"):
                raise await failed(bed, f"pod {name} is {found} instead of Running")
            return found == "Running"

        await wait_for(bed, f"pod {name} to run", runs)


async def runs_at_last(bed: Bed, name: str) -> None:
    """Like a controller, try again with another pod: kubelet lets one that was refused wait for up to 90 s."""
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimName": name})
    deadline = time.monotonic() + bed.patience
    while time.monotonic() < deadline:
        with contextlib.suppress(ScenarioError):
            await wait_for(bed, f"pod {name} to run", lambda: has_phase(bed, name, "Running"), TRY_SECONDS)
            return
        await deleted(bed, name)
        await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)
    raise await failed(bed, f"pod {name} never runs")


async def has_phase(bed: Bed, name: str, wanted: str) -> bool:
    return await phase(bed, name) == wanted


async def deleted(bed: Bed, *names: str) -> None:
    for name in names:
        await bed.api.delete(PODS, name, namespace=NAMESPACE)
    for name in names:

        async def gone(name: str = name) -> bool:
            return await phase(bed, name) == "gone"

        await wait_for(bed, f"pod {name} to be gone", gone)


async def force_deleted(bed: Bed, *names: str) -> None:
    """As ``kubectl delete --force --grace-period=0``: returns when the API server has forgotten them."""
    for name in names:
        await bed.force_delete(name)

        async def gone(name: str = name) -> bool:
            return await phase(bed, name) == "gone"

        await wait_for(bed, f"pod {name} to be forgotten", gone)


async def legacy_pod(bed: Bed, name: str, **more: Any) -> None:
    await bed.api.create(PODS, w.legacy_pod(name, bed.image, bed.node, **more), namespace=NAMESPACE)


async def claim_pod(bed: Bed, name: str, **more: Any) -> None:
    await bed.api.create(CLAIMS, w.claim(name), namespace=NAMESPACE)
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimName": name}, **more)
    await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)


async def pod_with(bed: Bed, name: str, *requests: Json, config: tuple[Json, ...] = (), **more: Any) -> None:
    """A claim and a pod of one name."""
    await bed.api.create(CLAIMS, w.claim(name, *requests, config=config), namespace=NAMESPACE)
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimName": name}, **more)
    await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)


async def claim_by_pythons_client(bed: Bed, claim: Json) -> None:
    """Create a claim by Kubernetes' client for Python, which writes spaces and keeps the order of keys.

    So the API server spells opaque parameters in another way than it stores them.
    """
    if isinstance(bed, RealBed):
        await asyncio.to_thread(_by_pythons_client, claim)
    else:
        await bed.api.create(CLAIMS, claim, namespace=NAMESPACE)


def _by_pythons_client(claim: Json) -> None:
    from kubernetes import client, config

    with config.new_client_from_config(os.environ["KUBECONFIG"]) as connection:
        group, version = claim["apiVersion"].split("/")
        client.CustomObjectsApi(connection).create_namespaced_custom_object(
            group, version, NAMESPACE, "resourceclaims", claim
        )


async def allocated(bed: Bed, name: str) -> list[tuple[str, str]]:
    """Request and device of each of the claim's results."""
    claim = await bed.api.get(CLAIMS, name, namespace=NAMESPACE)
    return sorted((one["request"], one["device"]) for one in claim["status"]["allocation"]["devices"]["results"])


async def event(bed: Bed, name: str, reason: str, words: str = "") -> Json:
    """The first event of the object with this reason and words."""

    async def there() -> Json | None:
        events = (await bed.api.list(EVENTS, namespace=NAMESPACE)).items
        about = [one for one in events if one["involvedObject"]["name"] == name]
        return next((one for one in about if one["reason"] == reason and words in one["message"]), None)

    found: Json = await wait_for(bed, f"an event {reason} of {name} with {words!r}", there)
    return found


async def template_pod(bed: Bed, name: str) -> None:
    await bed.api.create(TEMPLATES, w.template(name), namespace=NAMESPACE)
    spec = w.with_claim(bed.image, bed.node, {"resourceClaimTemplateName": name})
    await bed.api.create(PODS, w.pod(name, spec), namespace=NAMESPACE)


async def finished(bed: Bed, name: str, completions: int) -> None:
    async def done() -> bool:
        status = (await bed.api.get(JOBS, name, namespace=NAMESPACE)).get("status", {})
        if status.get("failed"):
            raise await failed(bed, f"Job {name} has failed")
        return bool(status.get("succeeded", 0) == completions)

    await wait_for(bed, f"Job {name} to finish", done)


async def a_day(bed: Bed) -> None:
    """Pods of all kinds, a device that moves, and all free at the end."""
    await at_the_beginning(bed)
    await legacy_pod(bed, "l1")
    await claim_pod(bed, "c1")
    await template_pod(bed, "t1")
    await running(bed, "l1", "c1", "t1")
    await move(bed, legacy=1, dra=3)
    await offered(bed, legacy=1, dra=3)
    await claim_pod(bed, "c2")
    await running(bed, "l1", "c1", "t1", "c2")
    await deleted(bed, "l1", "c1", "t1", "c2")
    await move(bed, legacy=2, dra=2)
    await offered(bed, legacy=2, dra=2)
