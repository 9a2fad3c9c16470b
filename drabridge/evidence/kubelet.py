"""Ask kubelet who holds what, by its List and its checkpoint: one round of evidence for the ledger.

Each of the two is blind somewhere. PodResources does not list plain init containers, and forgets force-deleted pods.
The checkpoint knows both, but may be stale until kubelet rewrites it, which it does on every ListAndWatch message. So
a barrier makes the checkpoint fresh: ask for the List, which makes kubelet drop ended pods; send the device lists
again; wait until the file is written; read it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from drabridge.config.fabric import is_fabric_pool
from drabridge.containers.cdi_spec import claim_uid_of, is_admin_only
from drabridge.evidence import checkpoint as checkpoint_file
from drabridge.inventory.devices import device_id_of
from drabridge.ledger import events
from drabridge.ledger.entries import NEVER_KNOWN, ClaimRef, ClaimShare, Entry, Lane, Ledger, Owner, PodRef
from podresources import Client, KubeletFeatures, PodResourcesError
from podresources.model import Claim, ClaimDevice, NodeSnapshot

log = logging.getLogger(__name__)

LIST_SECONDS = 10.0
PROBE_SECONDS = 2.0
BARRIER_SECONDS = 2.0  # kubelet writes the file within milliseconds of the message (observed on 1.36.2)
BARRIER_POLL_SECONDS = 0.01

T = TypeVar("T")
Resend = Callable[[Iterable[str], float], Awaitable[bool]]


async def _no_wait() -> None:
    """Return at once: nobody allocates here."""


class KubeletList(Struct, frozen=True):
    """One List. A claim's UID is taken from the names in its CDI file; "" where there are none."""

    pods: events.Pods
    claims: tuple[events.ClaimDevices, ...] = ()

    def claimed(self) -> dict[str, tuple[ClaimRef, ...]]:
        """Return device name -> claims through which containers have it.

        Claims with admin access do not count.
        """
        found: dict[str, tuple[ClaimRef, ...]] = {}
        for one in self.claims:
            for use in (use for use in one.uses if not use.admin):
                found[use.device] = (*found.get(use.device, ()), one.claim)
        return found


class KubeletEvidence:
    """Gathers :class:`drabridge.ledger.events.Observed`. Decides nothing. No method raises."""

    def __init__(
        self,
        client: Client,
        device_plugins: Path,
        resend: Resend,
        now: Callable[[], float],
        quiet: Callable[[], Awaitable[None]] = _no_wait,
        driver: str = "",
    ) -> None:
        """``resend`` sends the device lists again. ``quiet`` waits until no Allocate is open.

        ``driver``: whose claims count.
        """
        self._driver = driver
        self._client = client
        self._directory = device_plugins
        self._resend = resend
        self._now = now
        self._quiet = quiet
        self.error = ""  # why the last List failed, for people

    async def gather(self, ledger: Ledger, *, thoroughly: bool = False) -> events.Observed:
        """Gather one round of evidence; a source that cannot be asked is None.

        ``ledger``: its state at the beginning.

        The barrier costs kubelet a checkpoint write for each resource. So it is used only when the List alone would end
        a hold or give a device to claims, or when the caller asks for it (``thoroughly``).

        The round's time is that of its first question. A round may pause for any length. What it saw before must not
        count as seen after the pause, when a hold may be old enough to end (found by the exhaustive search).
        """
        at = self._now()
        holds = [entry.hold for entry in ledger.entries.values() if entry.hold is not None]
        recorded = None
        if not all(hold.recorded and hold.confirmed for hold in holds):
            await self._quiet()  # until kubelet has recorded the last Allocate
            recorded = self.read_checkpoint()
        listed = await self.list_pods()
        checkpoint = None
        doubtful = set() if listed is None else _doubtful_resources(ledger, listed.pods)
        if doubtful or thoroughly:
            checkpoint = await self._read_behind_barrier(doubtful)
        if listed is None:
            return events.Observed(at=at, since_seq=ledger.seq)
        return events.Observed(
            at=at,
            since_seq=ledger.seq,
            listed=listed.pods,
            checkpoint=checkpoint,
            recorded=recorded.pods if recorded is not None else {},
            claimed=listed.claimed(),
        )

    async def list_pods(self) -> KubeletList | None:
        """Return kubelet's List; None if kubelet cannot be asked. Waits until no Allocate is open.

        If a pod has just ended, a List makes kubelet count again what is allocated, without what is being allocated.
        The next pod could get the same device (UpdateAllocatedDevices and allocateContainerResources in
        pkg/kubelet/cm/devicemanager/manager.go; kubernetes/kubernetes#137534). An Allocate that begins while the List
        is on its way cannot be waited for, nor what others ask: ``LegacyResource.prefer`` copes with these.
        """
        return await self._ask(lambda listed: KubeletList(pods_of(listed), claims_of(listed, self._driver)))

    async def users(self, claim: ClaimRef, device: str) -> tuple[PodRef, ...] | None:
        """Return the containers that kubelet shows with ``device`` through ``claim``.

        None if kubelet cannot be asked. If the name of ``claim`` is not known, containers with any claim count. Kubelet
        before 1.34 shows no claims.
        """
        return await self._ask(lambda listed: users_of(listed, claim, self._driver, device))

    async def claim_users(self) -> Mapping[ClaimRef, tuple[str, ...]] | None:
        """Return the claims with devices of ours -> ``namespace/name`` of their pods.

        None if kubelet cannot be asked.
        """
        return await self._ask(lambda listed: claim_users_of(listed, self._driver))

    async def devices_claimed_from(self, driver: str) -> frozenset[str] | None:
        """Return the devices of ``driver``, ours or another one, that kubelet shows with a pod through a claim.

        None if kubelet cannot be asked.
        """
        return await self._ask(
            lambda listed: frozenset(
                given.device for _, _, claim in _claims(listed, driver) for given in _of_node(claim, driver)
            )
        )

    async def _ask(self, read: Callable[[NodeSnapshot], T]) -> T | None:
        """Return what ``read`` makes of kubelet's List; None if kubelet cannot be asked."""
        await self._quiet()
        try:
            snapshot = await self._client.list(timeout_seconds=LIST_SECONDS)
        except PodResourcesError as error:
            if self.error != str(error):
                log.warning("kubelet does not tell who holds devices", extra={"reason": str(error)})
            self.error = str(error)
            return None
        self.error = ""
        with suppress(PodResourcesError):
            await self._client.probe(timeout_seconds=PROBE_SECONDS)  # asks once for each kubelet
        return read(snapshot)

    @property
    def features(self) -> KubeletFeatures:
        """What kubelet's answers have shown of its features."""
        return self._client.features

    async def allocatable(self) -> frozenset[events.Unit] | None:
        """Return the healthy units, given out or not; None if kubelet cannot be asked."""
        try:
            answer = await self._client.allocatable(timeout_seconds=LIST_SECONDS)
        except PodResourcesError as error:
            self.error = str(error)
            return None
        return frozenset((entry.resource, entry.device_id) for entry in answer.devices)

    async def shown(self) -> frozenset[events.Unit] | None:
        """Return the units that kubelet shows with a pod, by its List or its checkpoint.

        None if kubelet cannot be asked.

        The checkpoint may name pods that have ended, but misses none that runs: kubelet writes it before it starts the
        container (allocateContainerResources in pkg/kubelet/cm/devicemanager/manager.go).
        """
        listed = await self.list_pods()
        if listed is None:
            return None
        checkpoint = self.read_checkpoint()
        return frozenset((*listed.pods, *(checkpoint.pods if checkpoint is not None else ())))

    def read_checkpoint(self, *, fresh: bool = False) -> events.CheckpointRead | None:
        """Read the checkpoint as it is; None if there is none. ``fresh``: it was written behind a barrier."""
        found = checkpoint_file.read(self._directory)
        return None if found is None else events.CheckpointRead(found, barrier=fresh)

    async def _read_behind_barrier(self, resources: set[str]) -> events.CheckpointRead | None:
        before = _identity(self._directory / checkpoint_file.FILE_NAME)
        fresh = await self._resend(sorted(resources), BARRIER_SECONDS) and await self._is_rewritten(before)
        return self.read_checkpoint(fresh=fresh)

    async def _is_rewritten(self, before: tuple[int, int] | None) -> bool:
        """Wait until kubelet has written the checkpoint; false after ``BARRIER_SECONDS``."""
        path = self._directory / checkpoint_file.FILE_NAME
        try:
            async with asyncio.timeout(BARRIER_SECONDS):
                while _identity(path) in (before, None):
                    await asyncio.sleep(BARRIER_POLL_SECONDS)
        except TimeoutError:
            return False
        return True


def pods_of(snapshot: NodeSnapshot) -> events.Pods:
    """Return unit -> the containers that a List shows with it. A device on two NUMA nodes counts once."""
    found: dict[events.Unit, dict[PodRef, None]] = {}
    for pod in snapshot.pods:
        for container in pod.containers:
            for entry in container.devices:
                for unit in entry.device_ids:
                    found.setdefault((entry.resource, unit), {})[PodRef(pod.namespace, pod.name, container.name)] = None
    return {unit: tuple(pods) for unit, pods in found.items()}


def users_of(snapshot: NodeSnapshot, claim: ClaimRef, driver: str, device: str) -> tuple[PodRef, ...]:
    """Return the containers of a List that have ``device`` through ``claim``.

    If neither the UID nor the name of a claim tells, it counts.
    """
    return tuple(
        pod
        for ref, pod, used in _claims(snapshot, driver)
        if is_same(claim, ref) and any(given.device == device for given in _of_node(used, driver))
    )


def _claims(snapshot: NodeSnapshot, driver: str) -> Iterator[tuple[ClaimRef, PodRef, Claim]]:
    """Yield each claim of each container in a List, with its UID where the CDI names of our devices tell it."""
    for pod in snapshot.pods:
        for container in pod.containers:
            for used in container.claims:
                ours = (name for device in used.devices if device.driver == driver for name in device.cdi_ids)
                uid = next(filter(None, map(claim_uid_of, ours)), "")
                yield ClaimRef(uid, used.namespace, used.name), PodRef(pod.namespace, pod.name, container.name), used


def is_same(claim: ClaimRef, used: ClaimRef) -> bool:
    """Tell whether a List's claim is ``claim``: by UID if the List tells it, else by name; true if neither is known."""
    if claim.uid and used.uid:
        return claim.uid == used.uid
    return not claim.name or (used.namespace, used.name) == (claim.namespace, claim.name)


def _of_node(claim: Claim, driver: str) -> Iterator[ClaimDevice]:
    """Yield a claim's devices of ``driver`` on this node. Fabric devices are on no node."""
    return (one for one in claim.devices if one.driver == driver and not is_fabric_pool(one.pool))


def claim_users_of(snapshot: NodeSnapshot, driver: str) -> Mapping[ClaimRef, tuple[str, ...]]:
    """Return the claims with devices of ``driver`` -> the List's pods with them."""
    found: dict[ClaimRef, dict[str, None]] = {}
    for ref, pod, claim in _claims(snapshot, driver):
        if any(given.driver == driver for given in claim.devices):
            found.setdefault(ref, {})[f"{pod.namespace}/{pod.name}"] = None
    return {claim: tuple(pods) for claim, pods in found.items()}


def claims_of(snapshot: NodeSnapshot, driver: str) -> tuple[events.ClaimDevices, ...]:
    """Return a List's prepared claims with their devices of ours.

    Kubelet before 1.34 shows none by default.
    """
    found: dict[ClaimRef, dict[events.DeviceUse, None]] = {}
    for ref, _, claim in _claims(snapshot, driver):
        for device in _of_node(claim, driver):
            share = ClaimShare(device.share_id) if device.share_id else None
            admin = is_admin_only(device.cdi_ids)
            found.setdefault(ref, {})[events.DeviceUse(device.device, share, admin)] = None
    return tuple(events.ClaimDevices(ref, tuple(uses)) for ref, uses in found.items())


def absent(ledger: Ledger, listed: events.Pods) -> list[Entry]:
    """Return the devices held by legacy pods, in conflict or in quarantine, of which the List shows no unit."""
    shown = {(resource, device_id_of(unit)) for resource, unit in listed}
    return [
        entry
        for entry in ledger.entries.values()
        if entry.owner in (Owner.LEGACY, Owner.CONFLICT, Owner.QUARANTINE)
        and all((resource, entry.device.id) not in shown for resource in entry.counted_as)
    ]


def _doubtful_resources(ledger: Ledger, listed: events.Pods) -> set[str]:
    """Return the resources for which the List is not enough: to end a hold, move a device, or know a pod's UID."""
    entries = ledger.entries.values()
    moving = [entry for entry in entries if entry.lane is Lane.LEGACY_TO_DRA]
    nameless = [entry for entry in entries if entry.hold is not None and NEVER_KNOWN in entry.hold.former]
    return {entry.device.resource for entry in (*absent(ledger, listed), *moving, *nameless)}


def _identity(path: Path) -> tuple[int, int] | None:
    """Tell one version of the file from the next.

    Kubelet writes by rename, and an inode number is used again.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
