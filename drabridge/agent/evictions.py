"""Evict pods whose device is gone or was exchanged, where the configuration says ``evictHolders``. Kill none.

A pod is evicted only if it is proven to have the device. Kubelet's checkpoint, read after the last Allocate, names the
pod's UID; or the claim with the right UID is reserved for the pod. In both cases the API server shows the pod on this
node. An eviction that a PodDisruptionBudget forbids is tried again. An evicted pod ends like any other pod, and with
it the hold.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING

from drabridge.config.schema import Config, EvictHolders
from drabridge.dra.lifecycle import ClaimSide
from drabridge.errors import ClusterError
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.inventory.devices import Device, Presence
from drabridge.kube.api import PODS, ConflictError, DeniedError, NotFoundError, resource_claims
from drabridge.kube.connection import ApiServer
from drabridge.kube.versions import NEWEST_RESOURCE_VERSION
from drabridge.ledger.effects import Notify, Subject
from drabridge.ledger.entries import ClaimPhase, ClaimRef, Entry, Ledger, Owner
from drabridge.ledger.service import LedgerService
from drabridge.system.untrusted import reading

if TYPE_CHECKING:
    from drabridge.evidence.apiserver_pods import PodWatch
    from drabridge.evidence.pod_objects import PodDemand

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0  # until an eviction that was refused, for example by a budget, is tried again
DENIED_SECONDS = 60.0  # until an eviction that lacked a permission is tried again


class Evictor:
    """Looks periodically for pods to evict. :meth:`notes` tells people why pods could not be evicted."""

    def __init__(
        self,
        config: Callable[[], Config],
        devices: Callable[[], Mapping[str, Device]],
        ledger_service: LedgerService,
        api_server: ApiServer,
        others: OtherEvidence,
        claims: ClaimSide,
        tell: Callable[[Notify], None],
        count: Callable[[str, str], None],
        now: Callable[[], float],
    ) -> None:
        """``count`` gets the resource and the result: evicted, denied or refused. ``now``: wall-clock seconds."""
        self._config = config
        self._devices = devices
        self._ledger_service = ledger_service
        self._api_server = api_server
        self._others = others
        self._claims = claims
        self._tell = tell
        self._count = count
        self._now = now
        self._began = now()  # absences count from now at the earliest: devices may appear late after a boot
        self._serials: dict[tuple[str, str], str] = {}  # (device, UID of the pod or claim) -> serial when first seen
        self._again: dict[str, float] = {}  # pod's UID -> earliest next attempt, monotonic seconds
        self._denied = ""

    def notes(self) -> list[str]:
        return [f"pods that lost their device are not evicted: {self._denied}"] if self._denied else []

    async def look(self) -> None:
        """Evict the pods whose device is lost."""
        rules = {one.name: one.evict_holders for one in self._config().resources if one.evict_holders is not None}
        pods = self._others.pods
        if not rules or pods is None:
            self._serials, self._again, self._denied = {}, {}, ""
            return
        ledger = self._ledger_service.ledger
        held = [one for one in ledger.entries.values() if one.device.resource in rules and _is_held(one)]
        seen: dict[tuple[str, str], str] = {}
        for entry in held:
            rule = rules[entry.device.resource]
            assert rule is not None
            if entry.owner is Owner.LEGACY and entry.hold is not None:
                uids = {pod.uid for pod in entry.hold.recorded if pod.uid}
                for uid in uids:
                    if why := self._lost(ledger, entry, uid, rule, seen):
                        await self._evict(pods.living([uid]), entry, why)
            prepared = [one for one in entry.holders if one.phase is ClaimPhase.PREPARED and not one.lingers]
            for claim in (one.claim for one in prepared):
                if why := self._lost(ledger, entry, claim.uid, rule, seen):
                    await self._evict(await self._pods_of(claim, pods), entry, why)
        self._serials = seen
        living = {pod.uid for pod in pods.living(self._again)}
        self._again = {uid: at for uid, at in self._again.items() if uid in living}

    def _lost(
        self, ledger: Ledger, entry: Entry, uid: str, rule: EvictHolders, seen: dict[tuple[str, str], str]
    ) -> str:
        """Return why a holder has lost the device; "" if it has not. Adds the device's serial to ``seen``."""
        device, key = self._devices().get(entry.name), (entry.name, uid)
        serial = device.serial if device is not None else ""
        before = self._serials.get(key, "")
        if before or serial:
            seen[key] = before or serial
        if before and serial and before != serial:
            return f"exchanged: its serial was {before}, and is {serial}"
        if entry.device.presence is not Presence.GONE:
            return ""
        for other in ledger.relatives(entry.device):
            if other.device.presence is Presence.PRESENT and other.device.syspath == entry.device.syspath != "":
                return f"exchanged: {other.name} is in its place"
        seconds = self._now() - max(entry.presence_since, self._began)
        return f"gone for {seconds:.0f} s" if seconds >= rule.after_seconds else ""

    async def _pods_of(self, claim: ClaimRef, pods: PodWatch) -> list[PodDemand]:
        """Return this node's pods for which the claim is reserved, as the API server says; [] if it cannot be asked."""
        cluster = self._api_server.cluster
        if cluster is None:
            return []
        kind = resource_claims(self._claims.api_version or NEWEST_RESOURCE_VERSION)
        try:
            obj = await cluster.get(kind, claim.name, namespace=claim.namespace)
            with reading(f"claim {claim}", ClusterError):
                if obj["metadata"]["uid"] != claim.uid:
                    return []
                users = [one for one in (obj.get("status") or {}).get("reservedFor") or () if one["resource"] == "pods"]
                return pods.living([str(one["uid"]) for one in users])
        except ClusterError as error:
            log.info("who has a lost device is not known", extra={"claim": str(claim), "reason": str(error)})
            return []

    async def _evict(self, pods: Iterable[PodDemand], entry: Entry, why: str) -> None:
        cluster = self._api_server.cluster
        for pod in pods:
            if cluster is None or pod.mirror or self._again.get(pod.uid, 0.0) > time.monotonic():
                continue
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": {"preconditions": {"uid": pod.uid}},
            }
            try:
                await cluster.create(PODS, body, namespace=pod.namespace, subresource="eviction")
            except (NotFoundError, ConflictError):  # the pod is gone, or another pod has its name
                self._again[pod.uid] = inf
            except DeniedError as error:
                self._put_off(pod, entry, "denied", str(error), DENIED_SECONDS)
                self._denied = f"{error}; the chart grants it where the configuration has evictHolders"
            except ClusterError as error:
                self._put_off(pod, entry, "refused", str(error), RETRY_SECONDS)
            else:
                self._again[pod.uid], self._denied = inf, ""
                self._count(entry.device.resource, "evicted")
                message = f"{entry.name} is {why}; the pod is evicted"
                self._tell(Notify(Subject.POD, "DeviceLost", message, pod.namespace, pod.name, pod.uid))

    def _put_off(self, pod: PodDemand, entry: Entry, result: str, reason: str, seconds: float) -> None:
        if pod.uid not in self._again:
            log.warning("pod not evicted", extra={"pod": str(pod), "device": entry.name, "reason": reason})
        self._again[pod.uid] = time.monotonic() + seconds
        self._count(entry.device.resource, result)


def _is_held(entry: Entry) -> bool:
    """Whether a pod with limits or a prepared claim has the device, counted under the device's own resource."""
    return entry.owner in (Owner.LEGACY, Owner.DRA_PREPARED) and not entry.counted_elsewhere
