"""What witnesses beside kubelet add to a round of evidence: the API server's pods, and who has a node open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

from msgspec.structs import replace

from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.evidence.kubelet import absent
from drabridge.evidence.open_files import Opened, opened
from drabridge.inventory.model import Device
from drabridge.ledger import events
from drabridge.ledger.model import HeldBecause, Ledger, Owner
from drabridge.ledger.release_rule import holding_claims
from drabridge.system.io_thread import IoThread, Job

log = logging.getLogger(__name__)

NAMED = 4  # pods in one sentence
PROBE_SECONDS = 5.0  # it takes milliseconds, unless a process has a file open where nobody answers

Claims = Callable[[], Awaitable[tuple[events.ClaimDevices, ...] | None]]
"""The claims that the API server shows allocated; None if it cannot be asked."""


class OtherEvidence:
    """Asked after kubelet, about what kubelet does not show. ``probed``: the resources whose nodes are looked at."""

    def __init__(
        self,
        ledger: Callable[[], Ledger],
        devices: Callable[[], Mapping[str, Device]],
        probed: Callable[[], frozenset[str]],
    ) -> None:
        self._ledger = ledger
        self._devices = devices
        self._probed = probed
        self.pods: PodWatch | None = None  # where there is an API server
        self.claims: Claims | None = None  # and what it shows allocated here
        self.error = ""  # why the probe cannot vouch for anything, for people
        self._unaccounted: Mapping[str, tuple[str, ...]] = {}
        self._prober = IoThread("probe")
        self._hanging: Job[Opened] | None = None

    async def enrich(self, observed: events.Observed) -> events.Observed:
        """``observed`` with what the others know. Never raises."""
        ledger = self._ledger()
        unaccounted = self.pods.unaccounted(ledger, observed) if self.pods is not None else None
        self._unaccounted = unaccounted or {}
        observed = replace(observed, alone=True) if self.pods is None else self.pods.enrich(observed)
        return replace(
            observed,
            unaccounted=unaccounted,
            opened=await self._opened(ledger, observed),
            allocated=await self._allocated(ledger, observed, unaccounted),
        )

    def notes(self) -> list[str]:
        """For which pods those devices wait that are held because of ``pod-unaccounted``, for people."""
        waiting = {
            resource
            for entry in self._ledger().entries.values()
            if entry.hold is not None and entry.hold.because is HeldBecause.POD_UNACCOUNTED
            for resource in entry.counted_as
        }
        return [
            f"{resource}: no hold ends while kubelet shows fewer devices than are asked for by "
            f"{', '.join(pods[:NAMED])}{f' and {len(pods) - NAMED} more' if len(pods) > NAMED else ''}"
            for resource, pods in self._unaccounted.items()
            if resource in waiting
        ]

    async def _allocated(
        self, ledger: Ledger, observed: events.Observed, unaccounted: Mapping[str, tuple[str, ...]] | None
    ) -> tuple[events.ClaimDevices, ...] | None:
        """Asked only where nothing else keeps a device in quarantine: it is a LIST of the claims of the cluster."""
        if self.claims is None or unaccounted is None or observed.listed is None:
            return None
        if not any(
            entry.owner is Owner.QUARANTINE
            and not holding_claims(entry, observed.claimed.get(entry.name, ()))
            and entry.device.resource not in unaccounted
            for entry in absent(ledger, observed.listed)
        ):
            return ()
        return await self.claims()

    async def _opened(self, ledger: Ledger, observed: events.Observed) -> dict[str, bool] | None:
        """Only devices whose hold may be about to end: looking costs a few milliseconds of the whole machine."""
        unseen = {entry.name for entry in absent(ledger, observed.listed or {})}
        found = await self.look(unseen)
        if found is None:
            return None
        answers = {name: found.of(name) for name in unseen}
        return {name: answer for name, answer in answers.items() if answer is not None}

    async def in_use(self, names: set[str]) -> Mapping[str, str]:
        """Those of the devices that a process is seen to have open, with that process in words."""
        found = await self.look(names)
        return found.by if found is not None else {}

    async def look(self, names: set[str]) -> Opened | None:
        """Who has these devices open, as far as their resources are to be probed. None: none of them is."""
        probed = self._probed()
        chosen = {
            name: device for name, device in self._devices().items() if name in names and device.resource in probed
        }
        if not chosen:
            return None
        found = await self._probe(chosen)
        if found.blind and found.blind != self.error:
            log.error("the probe is blind", extra={"reason": found.blind})
        self.error = found.blind
        return found

    async def _probe(self, chosen: Mapping[str, Device]) -> Opened:
        """Where no answer comes any of them may be open; nobody asks a second time beside that."""
        if self._hanging is None or self._hanging.over():
            self._hanging, job = None, self._prober.submit(lambda: opened(chosen))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._prober.wait_all()
            if job.over():
                return job.result()
            self._hanging = job
        why = "the probe hangs at a file that some process has open, and what it is to look at stays held"
        return Opened(dict.fromkeys(chosen, "a process, perhaps: the probe hangs"), why)
