"""The files of prepared claims, kept right: at start, after a reboot, and when a device's nodes change.

Kubelet replays CDI names for as long as a pod lives, without asking us again; the files behind them must say what the
names mean now.
"""

from __future__ import annotations

from collections.abc import Sequence

from drabridge.cdi import CdiStore, Family, Spec
from drabridge.dra.locks import Locks
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.planning import NotReadyError, Planned, Planner, cdi_devices, metadata_facts
from drabridge.dra.ports import Inventory
from drabridge.dra.records import ClaimRecord, RecordStore, State
from drabridge.errors import DrabridgeError
from drabridge.foreign import Unreadable, reading


class Upkeep:
    """Everything that is done to prepared claims outside a call of kubelet."""

    def __init__(
        self,
        *,
        planner: Planner,
        inventory: Inventory,
        records: RecordStore,
        locks: Locks,
        cdi: CdiStore,
        metadata: MetadataFiles | None,
        boot_id: str,
    ) -> None:
        self.planner = planner
        self._inventory = inventory
        self._records = records
        self._locks = locks
        self._cdi = cdi
        self._metadata = metadata
        self._boot_id = boot_id
        self._unreadable = Unreadable("prepared claim")

    def restore(self) -> tuple[ClaimRecord, ...]:
        """At start: write the CDI files of claims that are prepared in this boot, remove those of what is on record
        otherwise. Where a record is gone the claim's container may run on, and its file, all that tells of it, stays
        until kubelet unprepares the claim, the operator ends it, or the node is rebooted.

        Returns the completed records. A device that is not there is in no file until it is.
        """
        self._records.sweep()
        records = self._records.all()
        completed = [record for record in records if record.state is State.COMPLETED]
        specs: list[Spec] = []
        keep: set[str] = set()
        whole: list[tuple[ClaimRecord, Sequence[Planned]]] = []
        for record in (record for record in records if record.boot_id == self._boot_id):
            plans = self._plans(record)
            if plans is None or (record.state is State.COMPLETED and not self._written(record, plans, specs)):
                keep.add(record.claim.uid)
            elif record.state is State.COMPLETED and len(plans) == len(record.devices):
                whole.append((record, plans))
        keep |= self._records.strangers(records)
        keep |= self._cdi.claimed().keys() - {record.claim.uid for record in records}
        self._cdi.regenerate(Family.CLAIM, specs, keep=keep)
        if self._metadata is not None:  # after the devices: a container can do without
            for record, found in whole:
                self._tell_containers(record, found, missing=True)
            self._metadata.sweep({record.claim.uid for record in records} | keep)
        self._unreadable.keep({str(record.claim) for record in records})
        return tuple(completed)

    def refresh(self, *, missing: bool = False) -> bool:
        """The inventory changed: bring the CDI and metadata files of prepared claims up to date. ``missing``: some were
        removed, and perhaps those which mount metadata that has not changed.

        False: a claim is being worked on, by a hook perhaps that takes minutes. It is left for the next time.
        """
        records = [r for r in self._records.all() if r.state is State.COMPLETED and r.boot_id == self._boot_id]
        free = [record for record in records if not self._locks.hold(record.claim.uid).locked()]
        for record in free:
            plans = self._plans(record)
            if plans is not None and self._written(record, plans, []) and len(plans) == len(record.devices):
                self._tell_containers(record, plans, missing=missing)
        return len(free) == len(records)

    def _written(self, record: ClaimRecord, plans: Sequence[Planned], specs: list[Spec]) -> bool:
        """Write the claim's CDI file, and add what it says to ``specs``. False: the file stays as it is."""
        try:
            with reading(f"claim {record.claim}"):
                spec = self._cdi.claim_spec(record.claim.uid, cdi_devices(plans))
                self._cdi.write(spec)
        except DrabridgeError as error:
            self._unreadable.tell(str(record.claim), error)
            return False
        specs.append(spec)
        return True

    def _tell_containers(self, record: ClaimRecord, plans: Sequence[Planned], *, missing: bool) -> None:
        """Bring the claim's metadata up to date; ``missing``: and the CDI files that mount it."""
        if self._metadata is None:
            return
        try:
            with reading(f"claim {record.claim}"):
                facts = metadata_facts(plans)
                self._metadata.update(record.claim, facts)
                if missing:
                    self._metadata.write(record.claim, record.pod_claim_name, facts)
        except DrabridgeError as error:
            self._unreadable.tell(str(record.claim), error)

    def _plans(self, record: ClaimRecord) -> list[Planned] | None:
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
