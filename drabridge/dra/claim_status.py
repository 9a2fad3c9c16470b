"""Write ``ResourceClaim.status.devices``: what this driver reports about the devices of a claim.

It is written by server-side apply, for people who look at claims; kubelet and scheduler do not need it. So it runs
beside the answers to kubelet, and a failure is only logged. Only our own entries are in the applied object: the server
keeps everybody else's, and since 1.36 refuses writes to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from drabridge.config.fabric import is_fabric_pool
from drabridge.dra.claim_objects import ClaimObjects
from drabridge.dra.observer import Observer, StatusWritten
from drabridge.dra.records import ClaimRecord, ClaimRecords, RecordState
from drabridge.errors import ClusterError, DrabridgeError
from drabridge.inventory.devices import Presence, Snapshot
from drabridge.kube.api import InvalidError, NotFoundError, backoff
from drabridge.kube.json_reader import Json
from drabridge.offers.reported_health import health_of
from drabridge.system.untrusted import reading

ATTEMPTS = 5
AFTER_SECONDS = 0.02  # by then kubelet has its answer, which nothing here may delay
READY = "Ready"


class StatusWriter:
    """Writes the status of claims one after the other; a claim that is asked for twice is written once."""

    def __init__(self, claims: ClaimObjects, records: ClaimRecords, driver: str, observer: Observer) -> None:
        self._claims = claims
        self._observer = observer
        self._changed: set[str] = set()  # devices whose state changed: the status of their claims is due
        self._driver = driver
        self._records = records
        self._pending: dict[str, bool] = {}  # claim UID -> whether newly prepared: then no entry of ours is kept
        self._wake = asyncio.Event()
        self._snapshot = Snapshot(0)

    def claim_prepared(self, uid: str) -> None:
        """Note that the claim was just prepared: its status is due."""
        self._pending[uid] = True
        self._wake.set()

    def inventory_changed(self, snapshot: Snapshot) -> None:
        """Take a snapshot. If a device's state has changed, the status of its prepared claims is due."""
        before = {health.name: health for health in health_of(self._snapshot.devices)}
        first, self._snapshot = not self._snapshot.version, snapshot
        changed = {health.name for health in health_of(snapshot.devices) if before.get(health.name) != health}
        if not first and changed:
            self._changed |= changed
            self._wake.set()

    async def _add_claims_of_changed_devices(self) -> None:
        changed, self._changed = self._changed, set()
        for record in await self._records.all():
            if record.state is RecordState.COMPLETED and any(device.device in changed for device in record.devices):
                self._pending.setdefault(record.claim.uid, False)

    async def run(self) -> None:
        """Write each due status, until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(AFTER_SECONDS)
            self._wake.clear()
            if self._changed:
                await self._add_claims_of_changed_devices()
            while self._pending:
                uid = next(iter(self._pending))
                anew = self._pending.pop(uid)
                await self._write(uid, anew)

    async def _write(self, uid: str, anew: bool) -> None:
        delays = backoff(0.5, 10.0)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                record = await self._records.load(uid)
                if record is not None and record.state is RecordState.COMPLETED:
                    with reading(f"claim {record.claim}"):
                        await self._apply(record, read=not anew or attempt > 1)
                    self._observer(StatusWritten(uid))
                return
            except NotFoundError:
                return
            except DrabridgeError as error:
                if attempt == ATTEMPTS or isinstance(error, InvalidError) or not isinstance(error, ClusterError):
                    self._observer(StatusWritten(uid, str(error)))
                    return
            await asyncio.sleep(next(delays))

    async def _apply(self, record: ClaimRecord, *, read: bool) -> None:
        """Read the claim and write what differs. Without ``read``, write all: this saves one of four requests."""
        claim, mine = record.claim, {}
        if read:
            obj = await self._claims.get(claim)
            if obj["metadata"]["uid"] != claim.uid:
                return
            before = (obj.get("status") or {}).get("devices") or ()
            mine = {_key(entry): entry for entry in before if entry.get("driver") == self._driver}
        entries = self._entries(record, mine, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        if [mine.get(_key(entry)) for entry in entries] == entries:
            return
        await self._claims.apply_devices(claim, entries, manager=self._driver)

    def _entries(self, record: ClaimRecord, mine: Mapping[Any, Json], now: str) -> list[Json]:
        known = self._snapshot.by_name()
        entries: dict[Any, Json] = {}
        for prepared in record.devices:
            # Several nodes may have such a claim, and an agent may write only to those allocated to its node.
            if is_fabric_pool(prepared.pool):
                continue
            device = known.get(prepared.device)
            ready = device is not None and device.presence is Presence.PRESENT
            condition: Json = {
                "type": READY,
                "status": "True" if ready else "False",
                "reason": "Prepared" if ready else "DeviceUnavailable",
                "message": "" if ready else (device.reason if device and device.reason else "the device is gone"),
                "lastTransitionTime": now,
            }
            entry: Json = {"driver": self._driver, "pool": prepared.pool, "device": prepared.device}
            if prepared.share_id:
                entry["shareID"] = prepared.share_id
            old = next((c for c in mine.get(_key(entry), {}).get("conditions", ()) if c["type"] == READY), None)
            if old is not None and old["status"] == condition["status"]:
                condition["lastTransitionTime"] = old["lastTransitionTime"]
            entry["conditions"] = [condition]
            if device is not None:
                entry["data"] = {
                    "nodes": [node.path for node in device.nodes],
                    **({"pciBusID": device.pci_bus_id} if device.pci_bus_id else {}),
                    **({"profile": prepared.profile} if prepared.profile else {}),
                }
            entries[_key(entry)] = entry
        return list(entries.values())


def _key(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry.get("pool"), entry.get("device"), entry.get("shareID", "")
