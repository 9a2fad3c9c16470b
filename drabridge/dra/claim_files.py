"""The files of prepared claims, kept right: at start, after a reboot, and when a device's nodes change.

Kubelet replays CDI names for as long as a pod lives, without asking us again; the files behind them must say what the
names mean now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from drabridge.containers.cdi_spec import CdiSpec
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.concurrency import KeyedLocks
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.planning import DevicePlan, NotReadyError, Planner, cdi_devices, metadata_facts
from drabridge.dra.ports import Inventory
from drabridge.dra.records import ClaimRecord, RecordStore, State
from drabridge.errors import DrabridgeError
from drabridge.system.io_thread import IoThread
from drabridge.system.untrusted import Unreadable, reading


class Upkeep:
    """Everything that is done to prepared claims outside a call of kubelet."""

    def __init__(
        self,
        *,
        planner: Planner,
        inventory: Inventory,
        records: RecordStore,
        locks: KeyedLocks,
        cdi: CdiStore,
        metadata: MetadataFiles | None,
        boot_id: str,
        files: IoThread | None = None,
    ) -> None:
        """``files``: whose thread waits for disks, in the order in which it is asked."""
        self._files = files or IoThread("upkeep")
        self.planner = planner
        self._inventory = inventory
        self._records = records
        self._locks = locks
        self._cdi = cdi
        self._metadata = metadata
        self._boot_id = boot_id
        self._unreadable = Unreadable("prepared claim")

    async def restore(self) -> tuple[ClaimRecord, ...]:
        """At start: write the CDI files of claims that are prepared in this boot, remove those of what is on record
        otherwise. Where a record is gone the claim's container may run on, and its file, all that tells of it, stays
        until kubelet unprepares the claim, the operator ends it, or the node is rebooted.

        Returns the completed records. A device that is not there is in no file until it is.
        """
        records = await self._files.promptly(self._swept)
        completed = [record for record in records if record.state is State.COMPLETED]
        specs: list[CdiSpec] = []
        keep: set[str] = set()
        whole: list[tuple[ClaimRecord, Sequence[DevicePlan]]] = []
        for record in (record for record in records if record.boot_id == self._boot_id):
            plans = self._plans(record)
            if plans is None or (record.state is State.COMPLETED and not await self._written(record, plans, specs)):
                keep.add(record.claim.uid)
            elif record.state is State.COMPLETED and len(plans) == len(record.devices):
                whole.append((record, plans))
        known = {record.claim.uid for record in records}
        keep |= await self._files.promptly(lambda: self._records.strangers(records))
        keep |= (await self._cdi.thread.promptly(self._cdi.claims)).keys() - known
        await self._cdi.thread.promptly(lambda: self._cdi.regenerate(Family.CLAIM, specs, keep=keep))
        if (metadata := self._metadata) is not None:  # after the devices: a container can do without
            for record, found in whole:
                await self._tell_containers(record, found, missing=True)
            await self._files.promptly(lambda: metadata.sweep(known | keep))
        self._unreadable.keep({str(record.claim) for record in records})
        return tuple(completed)

    def _swept(self) -> tuple[ClaimRecord, ...]:
        self._records.sweep()
        return self._records.all()

    async def refresh(self, *, missing: bool = False) -> bool:
        """The inventory changed: bring the CDI and metadata files of prepared claims up to date. ``missing``: some were
        removed, and perhaps those which mount metadata that has not changed.

        False: a claim is being worked on, by a hook perhaps that takes minutes. It is left for the next time.
        """
        all_free = True
        for uid in [record.claim.uid for record in await self._files.promptly(self._records.all)]:
            lock = self._locks.lock(uid)
            if lock.locked():
                all_free = False
            else:
                await self._renew(uid, lock, missing=missing)
        return all_free

    async def _renew(self, uid: str, lock: asyncio.Lock, *, missing: bool) -> None:
        """One claim's files, while nobody works on it. Somebody may have ended it since its record was read."""
        async with lock:
            record = await self._files.promptly(lambda: self._records.load(uid))
            if record is None or record.state is not State.COMPLETED or record.boot_id != self._boot_id:
                return
            plans = self._plans(record)
            if plans is not None and await self._written(record, plans, []) and len(plans) == len(record.devices):
                await self._tell_containers(record, plans, missing=missing)

    async def _written(self, record: ClaimRecord, plans: Sequence[DevicePlan], specs: list[CdiSpec]) -> bool:
        """Write the claim's CDI file, and add what it says to ``specs``. False: the file stays as it is."""
        try:
            with reading(f"claim {record.claim}"):
                spec = self._cdi.claim_spec(record.claim.uid, cdi_devices(plans))
                await self._cdi.thread.promptly(lambda: self._cdi.write(spec))
        except DrabridgeError as error:
            self._unreadable.tell(str(record.claim), error)
            return False
        specs.append(spec)
        return True

    async def _tell_containers(self, record: ClaimRecord, plans: Sequence[DevicePlan], *, missing: bool) -> None:
        """Bring the claim's metadata up to date; ``missing``: and the CDI files that mount it."""
        if (metadata := self._metadata) is None:
            return
        try:
            with reading(f"claim {record.claim}"):
                facts = metadata_facts(plans)
                await self._files.promptly(lambda: metadata.update(record.claim, facts))
                if missing:
                    await self._files.promptly(lambda: metadata.write(record.claim, record.pod_claim_name, facts))
        except DrabridgeError as error:
            self._unreadable.tell(str(record.claim), error)

    def _plans(self, record: ClaimRecord) -> list[DevicePlan] | None:
        """The claim's devices that are here, as they are now; None when that cannot be said: its files stay then."""
        snapshot = self._inventory()
        plans = []
        for device in record.devices:
            try:
                with reading(f"the record of claim {record.claim}"):
                    plans.append(self.planner.again(record.claim.uid, device, snapshot))
            except NotReadyError:
                continue  # the inventory does not know it: unplugged while we were away
            except DrabridgeError as error:  # a profile that no longer fits its device: others are not left alone
                self._unreadable.tell(str(record.claim), error)
                return None
        return plans
