"""Merge the ledger with what kubelet, claim records and CDI files say. A device is held if any source says so.

Nothing is granted before the merge. A ledger that was never merged knows nothing: its free devices count as free only
if every source that could know more was asked and its answer understood. Otherwise the ledger counts as lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from deviceplugin import kubelet_process
from drabridge.config.resource_names import stands_for
from drabridge.config.schema import Config
from drabridge.containers.cdi_spec import ClaimDeviceName
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.recorded_claims import record_names, recorded_claims
from drabridge.errors import HostError
from drabridge.evidence import checkpoint as checkpoint_file
from drabridge.evidence.kubelet import LIST_SECONDS, KubeletEvidence, KubeletList
from drabridge.inventory.devices import Snapshot, device_id_of
from drabridge.ledger import startup_events
from drabridge.ledger.entries import ClaimRef, Lane, Ledger, LedgerDevice
from drabridge.ledger.events import (
    CheckpointRead,
    ClaimDeallocated,
    ClaimDevices,
    DeviceUse,
    Discovered,
    RecordLost,
    Unit,
)
from drabridge.ledger.observation import record_lost_by_unknown_units, unknown_units
from drabridge.ledger.service import LedgerService
from drabridge.ledger.store import Loaded
from drabridge.system.paths import Paths

log = logging.getLogger(__name__)

FIRST_LIST_SECONDS = 0.5  # a running kubelet answers in milliseconds; a later answer still counts as evidence
NAMED = 4  # unknown ids in a message: enough to see how they differ from ours
_SHARE = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")  # the API server's share ids


class StartupMerge(Struct, frozen=True):
    """Brings snapshots to the ledger, and merges the ledger with the other sources.

    ``boot_id`` is the file with the id of this boot.
    """

    ledger_service: LedgerService
    kubelet: KubeletEvidence
    cdi: CdiStore
    paths: Paths
    boot_id: Path

    async def merge(self, config: Config, names: Collection[str], *, rebooted: bool) -> bool:
        """Merge once; return whether the result is on disk. If not, the caller tries again.

        ``names``: resource names as in the configuration file. They include name templates, for which there may be no
        device now.

        If kubelet is away, the other sources decide. They may be empty on a new node: if there is no checkpoint, no
        plugin has ever registered; if the directory is not kubelet's, no kubelet asks for devices.
        """
        service = self.ledger_service
        node = service.ledger.node
        # If the ledger is not whole, perhaps only kubelet knows of a claim, or of its end: wait longer for its answer.
        listed = await self._listed(FIRST_LIST_SECONDS if node.whole else LIST_SECONDS)
        checkpoint = self.kubelet.read_checkpoint()
        if not node.ever_merged and not node.lost:
            doubt = self._doubt_from_files()
            if not doubt and checkpoint is None and checkpoint_file.exists(self.paths.device_plugins):
                doubt = "kubelet's checkpoint of devices is not understood, and it alone knows every pod"
            doubt = doubt or self._doubt_from_ids(names, listed, checkpoint)
            if doubt and not await self._lose(doubt):
                return False
        elif not await self._quarantine_for_unknown_ids(config, listed, checkpoint):
            return False
        found = self._findings(listed, checkpoint, service.ledger.entries, rebooted=rebooted)
        found = replace(found, kubelet=kubelet_process(self.paths.device_plugins))
        claims = _in_use(service.ledger, found)
        if rebooted:
            self._remove_claim_files(claims)
        for event in tuple(startup_events.events(service.ledger, found, claims)):
            if not (await service.apply(event)).accepted:
                return False
        return True

    async def discover(
        self,
        config: Config,
        snapshot: Snapshot,
        lanes: Mapping[str, Lane],
        cordoned: Mapping[str, str],
        *,
        rebooted: bool,
    ) -> bool:
        """Bring a snapshot to the ledger; return whether the result is on disk.

        ``lanes``: device -> lane, of devices new to the ledger. ``cordoned``: device -> why it is out of service.

        Records and CDI files are read again, because a running claim may have a device that was absent at the merge, or
        that only the new configuration names.
        """
        service, devices = self.ledger_service, snapshot.by_name()
        shareable = {r.name: r.sharing.allow_multiple_allocations for r in config.resources}
        facts = tuple(
            LedgerDevice.of(device, shareable=shareable.get(device.resource, False)) for device in snapshot.devices
        )
        prepared: tuple[ClaimDevices, ...] = ()
        if service.ledger.node.ever_merged and devices.keys() - service.ledger.entries.keys():
            found = self._findings(None, None, devices, rebooted=rebooted)
            prepared = _in_use(service.ledger, found)
        unknown = startup_events.claims_without_name(service.ledger, prepared)
        taken = await service.apply(Discovered(facts, service.now(), lanes, prepared, cordoned))
        for uid in unknown:
            await service.apply(ClaimDeallocated(uid, service.now()))
        return taken.accepted

    # --- what makes a ledger that was never merged count as lost -----------------------------------------------------

    def _doubt_from_files(self) -> str:
        """Return a sentence if there are CDI files or claim records, whatever they contain; "" if there are none."""
        cdi, records = self.cdi, self.paths.claim_records
        try:
            left = any(cdi.keys(family) for family in Family)
        except HostError as error:
            return str(error)
        if left or record_names(records):
            return f"the files in {cdi.directory if left else records} are of an agent whose ledger is gone"
        return ""

    def _doubt_from_ids(
        self, names: Collection[str], listed: KubeletList | None, checkpoint: CheckpointRead | None
    ) -> str:
        """Return a sentence if kubelet shows pods or claims of ours with ids or names that no device here has; else "".

        These pods have some of the hardware, and nobody can say which: an earlier driver named it otherwise.
        """
        devices = [entry.device for entry in self.ledger_service.ledger.entries.values()]
        ids, shown = {device.id for device in devices}, _units_of_pods(listed, checkpoint)
        ours = {name for name, _ in shown if any(stands_for(template, name) for template in names)}
        unknown = {f"{name} {unit}" for name, unit in shown if name in ours and device_id_of(unit) not in ids}
        uses = [
            (one.claim, use.device) for one in (listed.claims if listed else ()) for use in one.uses if not use.admin
        ]
        known = {device.name for device in devices}
        unknown |= {f"{name} of claim {claim.namespace}/{claim.name}" for claim, name in uses if name not in known}
        if not unknown:
            return ""
        words = ", ".join(sorted(unknown)[:NAMED])
        return f"kubelet shows pods with devices that this configuration calls otherwise or does not match: {words}"

    async def _lose(self, doubt: str) -> bool:
        service = self.ledger_service
        message = f"there is no ledger of this node, and {doubt}: every device without a known holder is quarantined"
        log.error("ledger lost", extra={"found": str(Loaded.LOST), "reason": message})
        if not (await service.apply(RecordLost(service.now(), reason=doubt))).accepted:
            return False
        service.loaded = replace(service.loaded, kind=Loaded.LOST, message=message)
        return True

    async def _quarantine_for_unknown_ids(
        self, config: Config, listed: KubeletList | None, checkpoint: CheckpointRead | None
    ) -> bool:
        """Quarantine devices of a resource that another plugin served under ids of its own while no agent ran.

        Returns whether the result is on disk.
        """
        service, shown = self.ledger_service, _units_of_pods(listed, checkpoint)
        for resource in config.resources:
            if units := unknown_units(service.ledger, resource.name, shown):
                lost = record_lost_by_unknown_units(service.ledger, resource.name, units, service.now())
                if lost is not None and not (await service.apply(lost)).accepted:
                    return False
        return True

    # --- the sources --------------------------------------------------------------------------------------------------

    async def _listed(self, seconds: float) -> KubeletList | None:
        try:
            async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
                return await self.kubelet.list_pods()
        except TimeoutError:
            return None

    def _findings(
        self, listed: KubeletList | None, checkpoint: CheckpointRead | None, devices: Collection[str], *, rebooted: bool
    ) -> startup_events.StartupFindings:
        """Collect what every source says. ``devices``: the names that CDI files may mean."""
        records, boot_id = self.paths.claim_records, self.boot_id.read_text().strip()
        prepared, before = recorded_claims(records, boot_id, self.ledger_service.ledger)
        left: frozenset[str] | None
        left = frozenset(name.partition(".json")[0] for name in record_names(records))
        try:
            left = left.union(self.cdi.keys(Family.CLAIM))
        except HostError:
            left = None
        files = tuple(
            ClaimDevices(
                ClaimRef(uid),
                tuple(DeviceUse(name, admin=admin) for text, admin in texts for name in _named(text, devices)),
            )
            for uid, texts in ({} if rebooted else self._claims_of_files()).items()
        )
        return startup_events.StartupFindings(
            self.ledger_service.now(),
            prepared,
            before,
            files,
            left,
            None if listed is None else listed.pods,
            () if listed is None else listed.claims,
            checkpoint,
            rebooted=rebooted,
        )

    def _claims_of_files(self) -> dict[str, tuple[ClaimDeviceName, ...]]:
        """Return what CDI files say of claims, by UID; {} if the directory cannot be read: serving does not need it.

        The ledger and the records know more; if both know nothing, the ledger counts as lost.
        """
        try:
            return self.cdi.claims()
        except HostError as error:
            log.error("CDI files of claims unreadable", extra={"reason": str(error)})
            return {}

    def _remove_claim_files(self, claims: Iterable[ClaimDevices]) -> None:
        """After a reboot, remove CDI files of other claims: no container uses them. A later start cannot know that."""
        try:
            self.cdi.regenerate(Family.CLAIM, (), keep={one.claim.uid for one in claims})
        except HostError as error:
            log.error("CDI files of before the reboot not removed", extra={"reason": str(error)})


def _units_of_pods(listed: KubeletList | None, checkpoint: CheckpointRead | None) -> set[Unit]:
    """Return the units that kubelet shows with a pod, in its list or its checkpoint."""
    return {*(listed.pods if listed else ()), *(checkpoint.pods if checkpoint else ())}


def _in_use(ledger: Ledger, found: startup_events.StartupFindings) -> tuple[ClaimDevices, ...]:
    claims = startup_events.in_use(ledger, found)
    known = {one.claim.uid for one in (*found.recorded, *found.claims)}
    files = {one.claim.uid for one in found.files} - known
    for one in claims:
        if one.claim.uid in files and one.uses:
            named = {"uid": one.claim.uid, "devices": [use.device for use in one.uses if not use.admin]}
            log.warning("a CDI file of a claim without a record: its devices are held", extra=named)
    return claims


def _named(text: str, devices: Iterable[str]) -> list[str]:
    """Return the devices that ``<request>-<device>[-<share>]`` may mean: all whose names fit the end of the text."""
    whole = _SHARE.sub("", text)
    return [name for name in devices if text.endswith(f"-{name}") or whole.endswith(f"-{name}")]
