"""Run periodic jobs. A job may run late without harm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.inventory.devices import Device, Presence, device_id_of
from drabridge.inventory.inventory import Inventory
from drabridge.kube.connection import ApiServer
from drabridge.ledger import events
from drabridge.ledger.eligibility import must_list
from drabridge.ledger.entries import Entry
from drabridge.ledger.service import LedgerService
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.legacy.manager import LegacyManager
from drabridge.offers.turns import NOBODYS, Change, follow

if TYPE_CHECKING:
    from drabridge.agent.api_watches import ApiWatches

log = logging.getLogger(__name__)

TICK_SECONDS = 3.0  # how soon a disk that works again is noticed; kubelet's own retries take longer

Job = Callable[[], Awaitable[None]]


class Maintenance(Struct, frozen=True):
    """Runs each job every ``TICK_SECONDS``. A job that waits for a disk delays no other."""

    jobs: Sequence[Job]

    async def run(self) -> None:
        """Run until cancelled. An error of one job ends all of them."""
        async with asyncio.TaskGroup() as group:
            for job in self.jobs:
                group.create_task(_repeat(job))


async def _repeat(job: Job) -> None:
    while True:
        await job()
        await asyncio.sleep(TICK_SECONDS)


class TurnKeeper:
    """Keeps whose turn it is to get each shared device: pods with limits or claims."""

    def __init__(self, ledger_service: LedgerService, changed: Callable[[], None]) -> None:
        """Call ``changed`` when :meth:`look` finds that turns have changed."""
        self._ledger_service = ledger_service
        self._changed = changed
        self._seen = ledger_service.ledger
        self.turns = NOBODYS
        self.watches: ApiWatches | None = None  # the Node's allocatable devices, and the pods scheduled here
        self._sent: Mapping[str, int] = {}

    def follow(self) -> bool:
        """Compute the turns from the present ledger. Return whether any turn changed."""
        before, seen, self._seen = self.turns, self._seen, self._ledger_service.ledger
        told: Mapping[str, int] = {}
        sent = self._sent
        if self.watches is not None:
            told = self.watches.node.allocatable if self.watches.node else {}
            self._sent = dict(self.watches.pods.sent)
        asked = {resource for resource, count in self._sent.items() if count != sent.get(resource)}
        self.turns = follow(before, Change(seen, self._seen, self._ledger_service.now(), told, asked))
        return self.turns is not before

    def kept_from_pods(self) -> Collection[str]:
        """Return the shared devices that are for claims now."""
        return self.turns.kept_from_pods

    def keeps_from_claims(self, entry: Entry) -> bool:
        """Tell whether a shared device is for pods now."""
        return self.turns.keeps_from_claims(entry)

    def lent(self) -> Collection[str]:
        """Return the shared devices that shall be in the dra lane for now."""
        return self.turns.lent

    async def look(self) -> None:
        """End turns that are over."""
        if self.follow():
            self._changed()


class LedgerMaintenance(Struct, frozen=True):
    """Tells the ledger which claims have lingered long enough, and which devices are gone for good."""

    ledger_service: LedgerService
    inventory: Inventory
    legacy: LegacyManager
    others: OtherEvidence

    async def retry(self) -> None:
        """Try a failing disk again: nothing is offered while grants would fail, so no request tries it."""
        self.ledger_service.retry_write()

    async def end_lingering(self) -> None:
        """End claims that were unprepared a grace period ago, or whose pods were seen to end after that."""
        service, pods = self.ledger_service, self.others.pods
        now = service.now()
        holds = [held for entry in service.ledger.entries.values() for held in entry.claims if held.lingers]
        ends = {held.claim: held.lingers_until for held in holds}
        for claim, until in ends.items():
            ended = pods is not None and pods.saw_the_end(claim)
            if ended or until <= now:
                await service.apply(events.Unprepare(claim.uid, now, ended=ended))

    async def forget_gone(self) -> None:
        """Drop gone devices that nobody holds, and that neither the inventory nor kubelet's lists have any more."""
        self.legacy.follow_inventory()  # a device that left its lane some time ago may now leave kubelet's list
        if not self.inventory.current.complete:
            return
        service, known = self.ledger_service, self.inventory.current.by_name()
        recent = {device_id_of(unit) for unit in self.legacy.recent_ids}
        now = service.now()
        gone = [
            entry.name
            for entry in service.ledger.entries.values()
            if entry.device.presence is Presence.GONE
            and entry.name not in known
            and not must_list(entry, now, service.policy)
            and entry.device.id not in recent
        ]
        if gone:
            await service.apply(events.Forgotten(tuple(gone), now))


class CdiMaintenance:
    """Keeps the CDI files that pods need, and removes the others.

    Kubelet and runtimes resolve CDI names for as long as pods live, so a file that is missing is written again.
    """

    def __init__(
        self,
        config: Callable[[], Config],
        devices: Callable[[], Mapping[str, Device]],
        cdi: CdiStore,
        legacy_files: LegacyCdiFiles,
        ledger_service: LedgerService,
        api_server: ApiServer,
        written_again: Callable[[], None],
    ) -> None:
        """``written_again`` is called after missing files were found, or after the directory became writable again."""
        self._config = config
        self._devices = devices
        self._cdi = cdi
        self._legacy_files = legacy_files
        self._ledger_service = ledger_service
        self._api_server = api_server
        self._written_again = written_again
        self._error_logged = False

    @property
    def error(self) -> str:
        """Return why CDI files cannot be written; "" if they can, or if this node needs none."""
        config = self._config()
        used = {resource.inject or config.legacy.inject for resource in config.resources}
        return self._cdi.error if self._api_server.cluster is not None or "cdi" in used else ""

    async def sweep(self) -> None:
        """Remove the files of devices that no pod can hold. None before the merge: a file may be the only evidence."""
        if self._ledger_service.ledger.node.merged:
            self._legacy_files.sweep_soon(self._ledger_service.ledger)

    async def restore(self) -> None:
        """Write missing files again. If the directory was not writable, first test whether it is now."""
        failed = self._cdi.error
        if failed and not await self._cdi.thread.promptly(self._cdi.probe):
            if self.error and not self._error_logged:
                log.error("CDI files cannot be written: no device is offered that needs one", extra={"reason": failed})
            self._error_logged = True
            return
        if failed:
            log.info("CDI files can be written again", extra={"directory": str(self._cdi.directory)})
        self._error_logged = False
        gone = await self._cdi.thread.promptly(self._cdi.missing)
        if gone:
            log.warning("CDI files were removed by somebody else; they are written again", extra={"files": gone})
        if failed or gone:
            if self._ledger_service.ledger.node.merged:  # if not merged yet, the merge will restore them
                self._legacy_files.restore_soon(self._ledger_service.ledger, self._devices())
            self._written_again()
