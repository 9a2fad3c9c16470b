"""Asking kubelet who holds what: one round of evidence for the ledger.

Two witnesses, because each is blind somewhere: PodResources does not list plain init containers and forgets
force-deleted pods; the checkpoint knows both but may be stale until kubelet rewrites it, which it does on every
ListAndWatch message. So the barrier is: List (which makes kubelet drop ended pods), send the lists again, read it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from drabridge.containers.cdi_spec import claim_uid_of, is_admin_only
from drabridge.evidence import checkpoint as checkpoint_file
from drabridge.inventory.model import device_id_of
from drabridge.ledger import events
from drabridge.ledger.model import ClaimRef, ClaimShare, Entry, Lane, Ledger, Owner, PodRef
from podresources import Client, PodResourcesError
from podresources.model import NodeSnapshot

log = logging.getLogger(__name__)

LIST_SECONDS = 10.0
BARRIER_SECONDS = 2.0  # kubelet writes the file within milliseconds of the message (observed on 1.36.2)
BARRIER_POLL_SECONDS = 0.01

Resend = Callable[[Iterable[str], float], Awaitable[bool]]


async def _at_once() -> None:
    """Where nobody allocates."""


class KubeletList(Struct, frozen=True):
    """One List. A claim has its UID from the names in its CDI file; "" where it has none."""

    pods: events.Pods
    claims: tuple[events.ClaimDevices, ...] = ()

    def claimed(self) -> dict[str, tuple[ClaimRef, ...]]:
        """Device name -> claims that containers have it by; not those that only look at it."""
        found: dict[str, tuple[ClaimRef, ...]] = {}
        for one in self.claims:
            for use in (use for use in one.uses if not use.admin):
                found[use.device] = (*found.get(use.device, ()), one.claim)
        return found


class KubeletEvidence:
    """Gathers :class:`drabridge.ledger.events.Observed`. Decides nothing."""

    def __init__(
        self,
        client: Client,
        device_plugins: Path,
        resend: Resend,
        now: Callable[[], float],
        quiet: Callable[[], Awaitable[None]] = _at_once,
        driver: str = "",
    ) -> None:
        """``resend`` sends the lists again; ``quiet`` waits for a moment in which no Allocate is open; ``driver``
        is the one whose claims count.
        """
        self._driver = driver
        self._client = client
        self._directory = device_plugins
        self._resend = resend
        self._now = now
        self._quiet = quiet
        self.error = ""  # why the last List failed, for people

    async def look(self, ledger: Ledger, *, thoroughly: bool = False) -> events.Observed:
        """One round. ``ledger`` is the state at its beginning. Never raises: who cannot be asked is None.

        The barrier costs kubelet a checkpoint write for each resource, so it is used only when the List alone would
        end a hold, or give a device to claims, and where the caller asks for it (``thoroughly``). Its time is that of
        the first question: what was seen before a pause of whatever length must not count as seen after it, when a hold
        is old enough to end (the exhaustive search).
        """
        at = self._now()
        listed = await self.listed()
        checkpoint = None
        doubted = set() if listed is None else _doubted(ledger, listed.pods)
        if doubted or thoroughly:
            checkpoint = await self._behind_barrier(doubted)
        if listed is None:
            return events.Observed(at=at, since_seq=ledger.seq)
        claimed = listed.claimed()
        return events.Observed(at=at, since_seq=ledger.seq, listed=listed.pods, checkpoint=checkpoint, claimed=claimed)

    async def listed(self) -> KubeletList | None:
        """Kubelet's List. Not while an Allocate is open: a List makes kubelet count anew what is
        allocated, without what is being allocated, and the next pod would be given the same (UpdateAllocatedDevices and
        allocateContainerResources in pkg/kubelet/cm/devicemanager/manager.go; found by a soak run).
        """
        snapshot = await self._list()
        return None if snapshot is None else KubeletList(pods_of(snapshot), claims_of(snapshot, self._driver))

    async def users(self, claim: ClaimRef, device: str) -> tuple[PodRef, ...] | None:
        """Containers that kubelet (1.34 or later, before that it tells nobody) shows with this device through this
        claim, or through any if its name is not known. None: it could not be asked.
        """
        snapshot = await self._list()
        return None if snapshot is None else users_of(snapshot, claim, self._driver, device)

    async def claim_users(self) -> Mapping[tuple[str, str], tuple[str, ...]] | None:
        """(namespace, name) of claims with devices of ours -> pods that kubelet shows with them, ``namespace/name``."""
        snapshot = await self._list()
        return None if snapshot is None else claim_users_of(snapshot, self._driver)

    async def claimed_of(self, driver: str) -> frozenset[str] | None:
        """Devices of a driver, of another one's too, that kubelet shows with a pod by a claim. None: as above."""
        snapshot = await self._list()
        if snapshot is None:
            return None
        claims = (claim for pod in snapshot.pods for container in pod.containers for claim in container.claims)
        return frozenset(given.device for claim in claims for given in claim.devices if given.driver == driver)

    async def _list(self) -> NodeSnapshot | None:
        await self._quiet()
        try:
            snapshot = await self._client.list(timeout_seconds=LIST_SECONDS)
        except PodResourcesError as error:
            if self.error != str(error):
                log.warning("kubelet does not tell who holds devices", extra={"reason": str(error)})
            self.error = str(error)
            return None
        self.error = ""
        return snapshot

    async def allocatable(self) -> frozenset[events.Unit] | None:
        """The units that kubelet would still give out or has given out: healthy ones. None: it could not be asked."""
        try:
            answer = await self._client.allocatable(timeout_seconds=LIST_SECONDS)
        except PodResourcesError as error:
            self.error = str(error)
            return None
        return frozenset((entry.resource, entry.device_id) for entry in answer.devices)

    async def shown(self) -> frozenset[events.Unit] | None:
        """The units that kubelet shows with a pod, in whatever way. None: it could not be asked.

        The file as it is may name pods that have ended, but misses none that runs: kubelet writes it before it starts
        the container (allocateContainerResources in pkg/kubelet/cm/devicemanager/manager.go).
        """
        listed = await self.listed()
        if listed is None:
            return None
        checkpoint = self.checkpoint()
        return frozenset((*listed.pods, *(checkpoint.pods if checkpoint is not None else ())))

    def checkpoint(self) -> events.CheckpointRead | None:
        """The file as it is, perhaps stale."""
        found = checkpoint_file.read(self._directory)
        return None if found is None else events.CheckpointRead(_pods_of_checkpoint(found), barrier=False)

    async def _behind_barrier(self, resources: set[str]) -> events.CheckpointRead | None:
        before = _identity(self._directory / checkpoint_file.FILE_NAME)
        fresh = await self._resend(sorted(resources), BARRIER_SECONDS) and await self._rewritten(before)
        found = checkpoint_file.read(self._directory)
        return None if found is None else events.CheckpointRead(_pods_of_checkpoint(found), barrier=fresh)

    async def _rewritten(self, before: tuple[int, int] | None) -> bool:
        path = self._directory / checkpoint_file.FILE_NAME
        try:
            async with asyncio.timeout(BARRIER_SECONDS):
                while _identity(path) in (before, None):
                    await asyncio.sleep(BARRIER_POLL_SECONDS)
        except TimeoutError:
            return False
        return True


def pods_of(snapshot: NodeSnapshot) -> events.Pods:
    """Device-plugin devices of a List. A device on two NUMA nodes counts once."""
    found: dict[events.Unit, dict[PodRef, None]] = {}
    for pod in snapshot.pods:
        for container in pod.containers:
            for entry in container.devices:
                for unit in entry.device_ids:
                    found.setdefault((entry.resource, unit), {})[PodRef(pod.namespace, pod.name, container.name)] = None
    return {unit: tuple(pods) for unit, pods in found.items()}


def users_of(snapshot: NodeSnapshot, claim: ClaimRef, driver: str, device: str) -> tuple[PodRef, ...]:
    """Containers of a List that have ``device`` through ``claim``; through any claim if that has no name."""
    return tuple(
        PodRef(pod.namespace, pod.name, container.name)
        for pod in snapshot.pods
        for container in pod.containers
        for used in container.claims
        if (not claim.name or (used.namespace, used.name) == (claim.namespace, claim.name))
        and any((given.driver, given.device) == (driver, device) for given in used.devices)
    )


def claim_users_of(snapshot: NodeSnapshot, driver: str) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """Pods of a List by the claims through which they have devices of ``driver``."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for pod in snapshot.pods:
        for claim in (claim for container in pod.containers for claim in container.claims):
            if any(given.driver == driver for given in claim.devices):
                found.setdefault((claim.namespace, claim.name), {})[f"{pod.namespace}/{pod.name}"] = None
    return {claim: tuple(pods) for claim, pods in found.items()}


def claims_of(snapshot: NodeSnapshot, driver: str) -> tuple[events.ClaimDevices, ...]:
    """Prepared claims of a List with their devices of ours. Kubelet before 1.34 shows none unless it is told to."""
    found: dict[ClaimRef, dict[events.DeviceUse, None]] = {}
    for pod in snapshot.pods:
        for container in pod.containers:
            for claim in container.claims:
                ours = [device for device in claim.devices if device.driver == driver]
                uids = (claim_uid_of(name) for device in ours for name in device.cdi_ids)
                ref = ClaimRef(next(filter(None, uids), ""), claim.namespace, claim.name)
                for device in ours:
                    share = ClaimShare(device.share_id) if device.share_id else None
                    admin = is_admin_only(device.cdi_ids)
                    found.setdefault(ref, {})[events.DeviceUse(device.device, share, admin)] = None
    return tuple(events.ClaimDevices(ref, tuple(uses)) for ref, uses in found.items())


def _pods_of_checkpoint(found: checkpoint_file.Checkpoint) -> events.Pods:
    return {
        (resource, unit): tuple(PodRef(container=holder.container, uid=holder.pod_uid) for holder in holders)
        for resource, units in found.held.items()
        for unit, holders in units.items()
    }


def absent(ledger: Ledger, listed: events.Pods) -> list[Entry]:
    """Devices that a legacy pod holds on our books and that the List does not show, by whatever unit of them."""
    shown = {(resource, device_id_of(unit)) for resource, unit in listed}
    return [
        entry
        for entry in ledger.entries.values()
        if entry.owner in (Owner.LEGACY, Owner.CONFLICT, Owner.QUARANTINE)
        and all((resource, entry.device.id) not in shown for resource in entry.counted_as)
    ]


def _doubted(ledger: Ledger, listed: events.Pods) -> set[str]:
    """Resources of which the List alone does not say enough: a hold would end, or claims would get a device."""
    moving = [entry for entry in ledger.entries.values() if entry.lane is Lane.LEGACY_TO_DRA]
    return {entry.device.resource for entry in (*absent(ledger, listed), *moving)}


def _identity(path: Path) -> tuple[int, int] | None:
    """Kubelet writes by rename: another inode, or the same one re-used at another time."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
