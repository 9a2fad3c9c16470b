"""The files of prepared claims, kept right: at start, after a reboot, and when a device's nodes change.

Kubelet replays CDI names for as long as a pod lives, without asking us again; the files behind them must say what the
names mean now.
"""

from __future__ import annotations

import logging

from drabridge.cdi import CdiStore, Family, Spec
from drabridge.dra.locks import Locks
from drabridge.dra.metadata import MetadataFiles
from drabridge.dra.planning import NotReadyError, Planned, Planner, cdi_devices, metadata_facts
from drabridge.dra.ports import Inventory
from drabridge.dra.records import ClaimRecord, RecordStore, State
from drabridge.errors import ConfigError

log = logging.getLogger(__name__)


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

    def restore(self) -> tuple[ClaimRecord, ...]:
        """At start: write the CDI files of claims that are prepared in this boot, remove those of what is on record
        otherwise. Where a record is gone the claim's container may run on, and its file, all that tells of it, stays
        until kubelet unprepares the claim, the operator ends it, or the node is rebooted.

        Returns the completed records. A device that is not there is in no file until it is.
        """
        self._records.sweep()
        records = self._records.all()
        live = [record for record in records if record.boot_id == self._boot_id]
        specs: list[Spec] = []
        keep: set[str] = set()
        for record in live:
            plans = self._plans(record)
            if plans is None:
                keep.add(record.claim.uid)
                continue
            if record.state is State.COMPLETED:
                specs.append(self._cdi.claim_spec(record.claim.uid, cdi_devices(plans)))
                if self._metadata is not None and len(plans) == len(record.devices):
                    self._metadata.write(record.claim, record.pod_claim_name, metadata_facts(plans))
        keep |= self._records.strangers(records)
        keep |= self._cdi.claimed().keys() - {record.claim.uid for record in records}
        self._cdi.regenerate(Family.CLAIM, specs, keep=keep)
        if self._metadata is not None:
            self._metadata.sweep({record.claim.uid for record in records} | keep)
        return tuple(record for record in records if record.state is State.COMPLETED)

    def refresh(self, *, missing: bool = False) -> bool:
        """The inventory changed: bring the CDI and metadata files of prepared claims up to date. ``missing``: some were
        removed, and perhaps those which mount metadata that has not changed.

        False: a claim is being worked on, by a hook perhaps that takes minutes. It is left for the next time.
        """
        records = [r for r in self._records.all() if r.state is State.COMPLETED and r.boot_id == self._boot_id]
        free = [record for record in records if not self._locks.hold(record.claim.uid).locked()]
        for record in free:
            plans = self._plans(record)
            if plans is None:
                continue
            self._cdi.write(self._cdi.claim_spec(record.claim.uid, cdi_devices(plans)))
            if self._metadata is not None and len(plans) == len(record.devices):
                self._metadata.update(record.claim, metadata_facts(plans))
                if missing:
                    self._metadata.write(record.claim, record.pod_claim_name, metadata_facts(plans))
        return len(free) == len(records)

    def _plans(self, record: ClaimRecord) -> list[Planned] | None:
        """The claim's devices that are here, as they are now; None when that cannot be said: its files stay then."""
        snapshot = self._inventory()
        plans = []
        for device in record.devices:
            try:
                plans.append(self.planner.again(record.claim.uid, device, snapshot))
            except NotReadyError:
                continue  # the inventory does not know it: unplugged while we were away
            except ConfigError as error:  # a profile that no longer fits its device: no reason to leave others alone
                why = {"claim": str(record.claim), "error": str(error)}
                log.error("files of a prepared claim left as they are", extra=why)
                return None
        return plans
