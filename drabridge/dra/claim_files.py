"""Keep the files of prepared claims right: at prepare, at start, and when a device's nodes change.

Kubelet uses the same CDI names for as long as a pod lives, without asking us again. So the files must say what the
names mean now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from drabridge.containers.cdi_spec import CdiSpec, names_given
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.planning import DevicePlan, NotReadyError, Planner, cdi_devices, metadata_facts
from drabridge.dra.ports import DraPorts
from drabridge.dra.records import ClaimRecord, ClaimRecords, PreparedDevice, RecordState
from drabridge.errors import DrabridgeError, HostError
from drabridge.ledger.entries import ClaimRef
from drabridge.system.io_thread import IoThread
from drabridge.system.untrusted import Unreadable, reading

log = logging.getLogger(__name__)


class ClaimFiles:
    """The CDI file of each prepared claim and, where ``dra.metadata`` is on, its metadata."""

    def __init__(
        self,
        planner: Planner,
        records: ClaimRecords,
        cdi: CdiStore,
        metadata: MetadataFiles | None,
        disk: IoThread,
        ports: DraPorts,
    ) -> None:
        """``disk``: the thread that waits for the metadata's disk; ``cdi`` has its own."""
        self._planner = planner
        self._records = records
        self._cdi = cdi
        self._metadata = metadata
        self._disk = disk
        self._ports = ports
        self._unreadable = Unreadable("prepared claim")

    # --- for a call of kubelet

    async def write(self, record: ClaimRecord, plans: Sequence[DevicePlan]) -> tuple[PreparedDevice, ...]:
        """Write the claim's CDI file and metadata; return the devices with the CDI ids of both. Raises HostError.

        Metadata helps the container, but it can start without (KEP-5304): a failure is only logged. The first device of
        each request has the id of the request's metadata.
        """
        spec, metadata_ids = await self._write_cdi(record.claim, plans), dict[str, str]()
        if (metadata := self._metadata) is not None:
            facts = metadata_facts(plans)
            try:
                metadata_ids = await self._disk.promptly(
                    lambda: metadata.write(record.claim, record.pod_claim_name, facts, newest=True)
                )
            except HostError as error:
                log.error("device metadata not written", extra={"claim": record.claim.uid, "reason": str(error)})
        devices = []
        for plan in plans:
            ids = (*names_given(spec, plan.cdi[0].name, plan.device), metadata_ids.pop(plan.prepared.base_request, ""))
            devices.append(replace(plan.prepared, cdi_ids=tuple(filter(None, ids))))
        return tuple(devices)

    async def remove(self, claim: ClaimRef) -> None:
        """Remove everything that has the claim's UID in its name. Raises HostError for the CDI file."""
        cdi = self._cdi.thread.submit(lambda: self._cdi.remove(Family.CLAIM, claim.uid))
        if (metadata := self._metadata) is not None:
            try:
                await self._disk.promptly(lambda: metadata.remove(claim))
            except HostError as error:  # leftover metadata must not keep a device held
                log.error("device metadata not removed", extra={"claim": claim.uid, "reason": str(error)})
        await self._cdi.thread.settle(cdi)

    # --- outside a call of kubelet

    async def restore(self) -> None:
        """At start: write the files of claims prepared in this boot; remove those of other recorded claims.

        If a claim's record is gone, its container may still run, and only the CDI file shows that. So the file stays
        until kubelet unprepares the claim, the operator ends it, or the node is rebooted. A device that is away is in
        no file until it is back.
        """
        records = await self._records.all_after_crash()
        known, keep, written = {record.claim.uid for record in records}, frozenset[str](), []
        for record in filter(self._is_prepared, records):  # first: a directory that cannot be listed ends this method
            keep |= {record.claim.uid}
            written.append((record, await self._write_again(record)))
        keep |= await self._records.unlisted(records)
        keep |= frozenset(await self._cdi.thread.promptly(self._cdi.claims)) - known
        await self._cdi.thread.promptly(lambda: self._cdi.regenerate(Family.CLAIM, (), keep=keep))
        for record, plans in written:  # after the devices, because a container can run without metadata
            await self._write_metadata_again(record, plans)
        if (metadata := self._metadata) is not None:
            await self._disk.promptly(lambda: metadata.sweep(known | keep))
        self._unreadable.keep({str(record.claim) for record in records})

    async def refresh(self) -> bool:
        """Bring the files of prepared claims up to date, because the inventory changed or files were removed.

        Returns False if a claim is being worked on, for example by a slow hook: its files are left for the next time.
        """
        all_free = True
        for uid in [record.claim.uid for record in await self._records.all()]:
            lock = self._records.lock(uid)
            if lock.locked():
                all_free = False
            else:
                await self._refresh_claim(uid, lock)
        return all_free

    async def _refresh_claim(self, uid: str, lock: asyncio.Lock) -> None:
        async with lock:
            record = await self._records.load(uid)  # the claim may have been unprepared since its record was listed
            if record is not None and self._is_prepared(record):
                await self._write_metadata_again(record, await self._write_again(record))

    def _is_prepared(self, record: ClaimRecord) -> bool:
        return record.state is RecordState.COMPLETED and self._records.of_this_boot(record)

    async def _write_cdi(self, claim: ClaimRef, plans: Sequence[DevicePlan]) -> CdiSpec:
        spec = self._cdi.claim_spec(claim.uid, cdi_devices(plans))
        await self._cdi.thread.promptly(lambda: self._cdi.write(spec))
        return spec

    async def _write_again(self, record: ClaimRecord) -> list[DevicePlan]:
        """Write the claim's CDI file for its devices that are here, as they are now; return their plans.

        Returns [] if the contents of the file cannot be worked out: then the file stays as it is.
        """
        snapshot, plans = self._ports.inventory(), []
        try:
            with reading(f"claim {record.claim}"):
                for device in record.devices:
                    with contextlib.suppress(NotReadyError):  # not in the inventory: unplugged while no agent ran
                        plans.append(self._planner.again(record.claim.uid, device, snapshot, record.devices))
                await self._write_cdi(record.claim, plans)
        except DrabridgeError as error:  # perhaps a profile no longer fits its device: go on with the other claims
            self._unreadable.tell(str(record.claim), error)
            return []
        return plans

    async def _write_metadata_again(self, record: ClaimRecord, plans: Sequence[DevicePlan]) -> None:
        """Bring a claim's metadata up to date if all of its devices are here."""
        metadata = self._metadata
        if metadata is None or len(plans) != len(record.devices):
            return
        try:
            with reading(f"claim {record.claim}"):
                facts = metadata_facts(plans)
                await self._disk.promptly(lambda: metadata.write(record.claim, record.pod_claim_name, facts))
        except DrabridgeError as error:
            self._unreadable.tell(str(record.claim), error)
