"""Add to a round of evidence what kubelet does not show: the API server's pods and claims, open files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from drabridge.evidence.kubelet import absent
from drabridge.evidence.open_files import OpenDevices, find_open
from drabridge.inventory.devices import Device
from drabridge.ledger import events
from drabridge.ledger.entries import HeldBecause, Ledger, Owner
from drabridge.ledger.release_rule import holding_claims
from drabridge.ledger.service import LedgerService
from drabridge.system.io_thread import IoThread, Job

if TYPE_CHECKING:
    from drabridge.evidence.apiserver_pods import PodWatch

log = logging.getLogger(__name__)

NAMED_PODS = 4  # in one sentence
PROBE_SECONDS = 5.0  # it takes milliseconds, unless a process has a file open on a server that does not answer
PROBE_HANGS = "the open-file probe has not answered; its devices stay held until it does"

Claims = Callable[[], Awaitable[tuple[events.ClaimDevices, ...] | None]]
"""Returns the claims that are allocated, by the API server; None if it cannot be asked."""


class OtherEvidence:
    """Gathers what other sources than kubelet know; asked after kubelet.

    ``probed`` returns the resources whose device nodes the open-file probe looks for.
    """

    def __init__(
        self,
        ledger_service: LedgerService,
        devices: Callable[[], Mapping[str, Device]],
        probed: Callable[[], frozenset[str]],
    ) -> None:
        self._ledger_service = ledger_service
        self._devices = devices
        self._probed = probed
        self.pods: PodWatch | None = None  # None: there is no API server
        self.claims: Claims | None = None
        self.error = ""  # why the probe does not know what is open, for people
        self._unaccounted: Mapping[str, tuple[str, ...]] = {}
        self._lingering: Mapping[str, tuple[str, ...]] = {}
        self._prober = IoThread("probe")
        self._hanging: Job[OpenDevices] | None = None

    async def enrich(self, observed: events.Observed) -> events.Observed:
        """Return ``observed`` with what the other sources know. Never raises."""
        ledger = self._ledger_service.ledger
        unaccounted = self.pods.unaccounted(ledger, observed) if self.pods is not None else None
        self._unaccounted = unaccounted or {}
        self._lingering = self.pods.may_run_yet(ledger) if self.pods is not None else {}
        observed = replace(observed, alone=True) if self.pods is None else self.pods.enrich(observed)
        return replace(
            observed,
            unaccounted=unaccounted,
            lingering=self._lingering,
            opened=await self._opened(ledger, observed),
            allocated=await self._allocated(ledger, observed, unaccounted),
        )

    def notes(self) -> list[str]:
        """Name the pods that keep devices held (``pod-unaccounted``), a line for each resource or device."""
        waiting = [
            entry
            for entry in self._ledger_service.ledger.entries.values()
            if entry.hold is not None and entry.hold.because is HeldBecause.POD_UNACCOUNTED
        ]
        resources = {resource for entry in waiting for resource in entry.counted_as}
        return [
            f"{resource}: no hold ends while kubelet shows fewer devices than are asked for by {_few(pods)}"
            for resource, pods in self._unaccounted.items()
            if resource in resources
        ] + [
            f"{entry.name}: is held while pods may run that are gone and were not seen to end: "
            f"{_few(self._lingering[entry.name])}"
            for entry in waiting
            if entry.name in self._lingering
        ]

    async def _allocated(
        self, ledger: Ledger, observed: events.Observed, unaccounted: Mapping[str, tuple[str, ...]] | None
    ) -> tuple[events.ClaimDevices, ...] | None:
        """Ask for the allocated claims, but only if nothing else keeps a device in quarantine.

        The question is a LIST of all claims of the cluster.
        """
        if self.claims is None or unaccounted is None or observed.listed is None:
            return None
        if not any(
            entry.owner is Owner.QUARANTINE
            and not holding_claims(entry, observed.claimed.get(entry.name, ()))
            and entry.device.resource not in unaccounted
            and entry.name not in self._lingering
            for entry in absent(ledger, observed.listed)
        ):
            return ()
        return await self.claims()

    async def _opened(self, ledger: Ledger, observed: events.Observed) -> dict[str, bool] | None:
        """Probe only devices that the List does not show: a probe costs a few milliseconds of the whole machine.

        Without a List no hold ends, so nothing is looked at.
        """
        if observed.listed is None:
            return None
        unseen = {entry.name for entry in absent(ledger, observed.listed)}
        if (found := await self._find_open(unseen)) is None:
            return None
        answers = {name: found.of(name) for name in unseen}
        return {name: answer for name, answer in answers.items() if answer is not None}

    async def in_use(self, names: set[str]) -> Mapping[str, str]:
        """Return those of the devices that a process has open -> that process, in words."""
        found = await self._find_open(names)
        return found.by if found is not None else {}

    async def _find_open(self, names: set[str]) -> OpenDevices | None:
        """Probe those of the devices whose resources ask for it; None if none does."""
        probed = self._probed()
        chosen = {
            name: device for name, device in self._devices().items() if name in names and device.resource in probed
        }
        if not chosen:
            return None
        found = await self._probe(chosen)
        if found.blind and found.blind != self.error:
            log.error("open-file probe incomplete", extra={"reason": found.blind})
        self.error = found.blind
        return found

    async def _probe(self, chosen: Mapping[str, Device]) -> OpenDevices:
        """Run the probe; without an answer in time any of the devices may be open.

        Never runs two probes at once.
        """
        if self._hanging is None or self._hanging.over():
            self._hanging, job = None, self._prober.submit(lambda: find_open(chosen))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._prober.wait_all()
            if job.over():
                return job.result()
            self._hanging = job
        return OpenDevices(
            dict.fromkeys(chosen, "a process, perhaps: the open-file probe has not answered"), PROBE_HANGS
        )


def _few(pods: tuple[str, ...]) -> str:
    """Name the first of the pods, and how many more there are."""
    more = len(pods) - NAMED_PODS
    return ", ".join(pods[:NAMED_PODS]) + (f" and {more} more" if more > 0 else "")
