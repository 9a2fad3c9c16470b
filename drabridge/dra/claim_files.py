"""Keep the files of prepared claims right: at prepare, at start, and when a device's nodes change.

Kubelet replays CDI names for as long as a pod lives, without asking us again; the files behind them must say what the
names mean now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

from drabridge.containers.cdi_spec import CdiSpec, names_given
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.planning import DevicePlan, NotReadyError, Planner, cdi_devices, metadata_facts
from drabridge.dra.ports import DraPorts
from drabridge.dra.records import ClaimRecord, ClaimRecords, PreparedDevice, RecordState
from drabridge.errors import DrabridgeError, HostError
from drabridge.ledger.model import ClaimRef
from drabridge.system.io_thread import IoThread
from drabridge.system.untrusted import Unreadable, reading

log = logging.getLogger(__name__)


class ClaimFiles:
    """The CDI file of each prepared claim and, where ``dra.metadata`` is on, its metadata."""

    def __init__(self, cdi: CdiStore, metadata: MetadataFiles | None, disk: IoThread) -> None:
        """``disk``: the thread that waits for the metadata's disk; ``cdi`` has its own."""
        self._cdi = cdi
        self._metadata = metadata
        self._disk = disk

    async def write(self, record: ClaimRecord, plans: Sequence[DevicePlan]) -> dict[str, str]:
        """Write the claim's CDI file and metadata; return base request -> CDI id of its metadata.

        Raises HostError. Metadata is a service to the container, not a condition for it (KEP-5304): a failure is only
        logged.
        """
        await self.write_cdi(record.claim, plans)
        if (metadata := self._metadata) is None:
            return {}
        facts = metadata_facts(plans)
        try:
            return await self._disk.promptly(
                lambda: metadata.write(record.claim, record.pod_claim_name, facts, newest=True)
            )
        except HostError as error:
            log.error("device metadata not written", extra={"claim": record.claim.uid, "reason": str(error)})
            return {}

    async def write_cdi(self, claim: ClaimRef, plans: Sequence[DevicePlan]) -> CdiSpec:
        """Write the claim's CDI file and return what it says. Raises HostError."""
        spec = self._cdi.claim_spec(claim.uid, cdi_devices(plans))
        await self._cdi.thread.promptly(lambda: self._cdi.write(spec))
        return spec

    def with_ids(
        self, claim: ClaimRef, plans: Sequence[DevicePlan], metadata_ids: dict[str, str]
    ) -> tuple[PreparedDevice, ...]:
        """Return the devices with their CDI ids; the first one of a request gets that of its metadata."""
        spec, left = self._cdi.claim_spec(claim.uid, cdi_devices(plans)), dict(metadata_ids)
        devices = []
        for plan in plans:
            ids = (*names_given(spec, plan.cdi[0].name, plan.device), left.pop(plan.prepared.base_request, ""))
            devices.append(plan.prepared.with_ids(tuple(id_ for id_ in ids if id_)))
        return tuple(devices)

    async def update_metadata(self, record: ClaimRecord, plans: Sequence[DevicePlan], *, missing: bool) -> None:
        """Bring the claim's metadata up to date; ``missing``: write also the CDI files that mount it.

        Raises DrabridgeError.
        """
        if (metadata := self._metadata) is None:
            return
        facts = metadata_facts(plans)
        await self._disk.promptly(lambda: metadata.update(record.claim, facts))
        if missing:
            await self._disk.promptly(lambda: metadata.write(record.claim, record.pod_claim_name, facts))

    async def remove(self, claim: ClaimRef) -> None:
        """Remove everything that has the claim's UID in its name. Raises HostError for the CDI file."""
        await self._cdi.thread.promptly(lambda: self._cdi.remove(Family.CLAIM, claim.uid))
        if (metadata := self._metadata) is not None:
            try:
                await self._disk.promptly(lambda: metadata.remove(claim))
            except HostError as error:  # no device stays held for its sake
                log.error("device metadata not removed", extra={"claim": claim.uid, "reason": str(error)})

    async def claims(self) -> frozenset[str]:
        """Return the UIDs of the claims that have a CDI file."""
        return frozenset(await self._cdi.thread.promptly(self._cdi.claims))

    async def regenerate(self, specs: Sequence[CdiSpec], keep: Collection[str]) -> None:
        """Write these CDI files, and remove those of all claims that are not in ``keep``. Raises HostError."""
        await self._cdi.thread.promptly(lambda: self._cdi.regenerate(Family.CLAIM, specs, keep=keep))

    async def sweep_metadata(self, keep: Collection[str]) -> None:
        """Remove the metadata of all claims that are not in ``keep``."""
        if (metadata := self._metadata) is not None:
            await self._disk.promptly(lambda: metadata.sweep(keep))


class ClaimFilesUpkeep:
    """What is done to the files of prepared claims outside a call of kubelet."""

    def __init__(self, planner: Planner, records: ClaimRecords, files: ClaimFiles, ports: DraPorts) -> None:
        self._planner = planner
        self._records = records
        self._files = files
        self._ports = ports
        self._unreadable = Unreadable("prepared claim")

    async def restore(self) -> None:
        """At start: write the files of claims prepared in this boot; remove those of other recorded claims.

        Where a record is gone the claim's container may run on, and its file, all that tells of it, stays until kubelet
        unprepares the claim, the operator ends it, or the node is rebooted. A device that is not there is in no file
        until it is.
        """
        records = await self._records.all_after_crash()
        specs: list[CdiSpec] = []
        keep: set[str] = set()
        whole: list[tuple[ClaimRecord, Sequence[DevicePlan]]] = []
        for record in filter(self._records.of_this_boot, records):
            plans = self._plans(record)
            if plans is None or (
                record.state is RecordState.COMPLETED and not await self._write_cdi(record, plans, specs)
            ):
                keep.add(record.claim.uid)
            elif record.state is RecordState.COMPLETED and len(plans) == len(record.devices):
                whole.append((record, plans))
        known = {record.claim.uid for record in records}
        keep |= await self._records.strangers(records)
        keep |= await self._files.claims() - known
        await self._files.regenerate(specs, keep)
        for record, found in whole:  # after the devices: a container can do without metadata
            await self._update_metadata(record, found, missing=True)
        await self._files.sweep_metadata(known | keep)
        self._unreadable.keep({str(record.claim) for record in records})

    async def refresh(self, *, missing: bool = False) -> bool:
        """The inventory changed: bring the files of prepared claims up to date.

        ``missing``: some were removed, and perhaps those which mount metadata that has not changed. Returns False when
        a claim is being worked on, by a hook perhaps that takes minutes: it is left for the next time.
        """
        all_free = True
        for uid in [record.claim.uid for record in await self._records.all()]:
            lock = self._records.lock(uid)
            if lock.locked():
                all_free = False
            else:
                await self._refresh_claim(uid, lock, missing=missing)
        return all_free

    async def _refresh_claim(self, uid: str, lock: asyncio.Lock, *, missing: bool) -> None:
        async with lock:
            record = await self._records.load(uid)  # the claim may have been unprepared since its record was listed
            if record is None or record.state is not RecordState.COMPLETED or not self._records.of_this_boot(record):
                return
            plans = self._plans(record)
            if plans is not None and await self._write_cdi(record, plans, []) and len(plans) == len(record.devices):
                await self._update_metadata(record, plans, missing=missing)

    async def _write_cdi(self, record: ClaimRecord, plans: Sequence[DevicePlan], specs: list[CdiSpec]) -> bool:
        """Write the claim's CDI file, and add what it says to ``specs``. False: the file stays as it is."""
        try:
            with reading(f"claim {record.claim}"):
                specs.append(await self._files.write_cdi(record.claim, plans))
        except DrabridgeError as error:
            self._unreadable.tell(str(record.claim), error)
            return False
        return True

    async def _update_metadata(self, record: ClaimRecord, plans: Sequence[DevicePlan], *, missing: bool) -> None:
        try:
            with reading(f"claim {record.claim}"):
                await self._files.update_metadata(record, plans, missing=missing)
        except DrabridgeError as error:
            self._unreadable.tell(str(record.claim), error)

    def _plans(self, record: ClaimRecord) -> list[DevicePlan] | None:
        """Plan the claim's devices that are here, as they are now.

        None when it cannot be said: its files stay then.
        """
        snapshot = self._ports.inventory()
        plans = []
        for device in record.devices:
            try:
                with reading(f"the record of claim {record.claim}"):
                    plans.append(self._planner.again(record.claim.uid, device, snapshot, record.devices))
            except NotReadyError:
                continue  # the inventory does not know it: unplugged while we were away
            except DrabridgeError as error:  # a profile that no longer fits its device: others are not left alone
                self._unreadable.tell(str(record.claim), error)
                return None
        return plans
