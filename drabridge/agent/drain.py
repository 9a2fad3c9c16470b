"""Tell whether the agent can be removed from this node: which devices must still move, and which claims are left.

Only this driver can unprepare its claims: kubelet keeps a pod Terminating until the driver has done so
(pkg/kubelet/cm/dra/manager.go, unprepareResources). So a node is drained when no claim on its devices is left: not in
the ledger, not among the records on disk, not in the API server. Pods with limits can run and end without a driver.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from drabridge.agent.requests import read_request
from drabridge.coexistence.vendor_software import is_vendors
from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.claim_queries import ClaimQueries
from drabridge.dra.lifecycle import ClaimSide
from drabridge.errors import HostError, RefusedError
from drabridge.evidence.kubelet import KubeletEvidence, is_same
from drabridge.inventory.devices import Presence
from drabridge.lanes.desired import DesiredLanes
from drabridge.ledger.entries import ClaimRef, Entry, Lane, Ledger, Owner, PodRef
from drabridge.ledger.events import ClaimDevices
from drabridge.ledger.lock import FILE as LOCK_FILE
from drabridge.ledger.service import LedgerService
from drabridge.legacy.cdi_files import LegacyCdiFiles
from drabridge.status.document import API_VERSION, evidence, stamp

log = logging.getLogger(__name__)

LIST_SECONDS = 5.0  # between two LISTs of all claims while an operator waits for the drain: each loads the API server
DOUBTFUL = frozenset({Owner.QUARANTINE, Owner.CONFLICT})
ALLOCATED = "allocated"  # phase of a claim that the API server shows and nobody has asked to prepare
UNPREPARED = "unprepared"  # phase of a claim whose pod is gone: processes may run until ``lingersUntil``
Document = dict[str, Any]


class DriverFiles(Struct, frozen=True):
    """The CDI files of this driver. Calls run in the thread that writes them: a hanging disk blocks no loop."""

    cdi: CdiStore
    legacy_files: LegacyCdiFiles

    async def paths(self) -> list[str]:
        """Return their paths, sorted; [] if the directory cannot be read."""
        return await self.cdi.thread.promptly(lambda: files_of(self.cdi))

    async def remove(self, paths: Sequence[str], ledger: Ledger) -> None:
        """Remove those of ``paths`` that claims use, and every file for limits that no pod needs."""
        await self.cdi.thread.promptly(lambda: self.legacy_files.sweep(ledger))
        legacy = self.cdi.prefix(Family.LEGACY)
        names = [name for path in paths if not (name := Path(path).name).startswith(legacy)]
        await self.cdi.thread.promptly(lambda: self._remove(names))

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            self.cdi.remove_file(name)


class ClaimsLeft:
    """Lists every claim that needs this driver: of the ledger and the records, or else of the API server."""

    def __init__(
        self, ledger_service: LedgerService, claims: ClaimSide, queries: ClaimQueries, kubelet: KubeletEvidence
    ) -> None:
        self._ledger_service = ledger_service
        self._claims = claims
        self._queries = queries
        self._kubelet = kubelet
        self._listed: tuple[ClaimDevices, ...] | None = ()
        self._list_due = 0.0

    async def rows(self, *, ask_api_server: bool) -> list[Document]:
        """Return one row for each claim. ``ask_api_server``: ask it if no other source has a claim."""
        found: dict[str, Document] = {}
        for entry in self._ledger_service.ledger.entries.values():
            for held in entry.claims:
                phase = UNPREPARED if held.lingers else str(held.phase)
                row = found.setdefault(held.claim.uid, _claim(held.claim, phase, stamp(held.lingers_until)))
                row["devices"].append(entry.name)
        for uid in sorted(await self._claims.recorded_uids()):
            if uid not in found:
                found[uid] = _claim(ClaimRef(uid), "on record")
        if not found and ask_api_server:
            for allocation in await self.allocated() or ():
                row = found[allocation.claim.uid] = _claim(allocation.claim, ALLOCATED)
                row["devices"] += [use.device for use in allocation.uses]
        if found:
            users = await self._kubelet.claim_users() or {}
            for row in found.values():
                claim = ClaimRef(row["uid"], row["namespace"], row["name"])
                known = (used for used in users if (used.uid or claim.name) and is_same(claim, used))
                row["pods"] = [pod for used in known for pod in users[used]]
        return sorted(found.values(), key=lambda row: (row["namespace"], row["name"], row["uid"]))

    async def allocated(self) -> Sequence[ClaimDevices] | None:
        """Return the claims that the API server shows allocated here; ask it every 5 s at most. None: no answer."""
        if self._queries.nobody_to_ask:  # no claims are served; former claims are in the records
            return ()
        if time.monotonic() >= self._list_due:
            self._listed = await self._queries.allocated()
            self._list_due = time.monotonic() + LIST_SECONDS
        return self._listed

    def ask_again(self) -> None:
        """Make the next call ask the API server, even if it was asked less than 5 s ago."""
        self._list_due = 0.0


class _Asked(Struct):
    drain: bool
    clean: bool = False


class Drain(Struct, frozen=True):
    """``drabridge drain``: begins or undoes a drain, reports its progress, and removes files that nobody needs."""

    config: Callable[[], Config]
    node: str
    ledger_service: LedgerService
    desired: DesiredLanes
    claims_left: ClaimsLeft
    files: DriverFiles

    async def request(self, body: bytes) -> Document:
        """Answer ``drabridge drain``: ``{"drain": true}`` begins, ``{"drain": false}`` undoes; empty: only report.

        ``"clean": true`` also removes files that nobody needs. Raises ConfigError for a malformed body, HostError if
        the disk fails, RefusedError for ``clean`` before the drain is complete (pods with limits do not matter).
        """
        if not body:
            return await self.document()
        asked = read_request(body, _Asked, '{"drain": true or false, "clean": true or false} was expected')
        if not asked.drain:
            await self.desired.undo_drain()
            return await self.document()
        if not self.desired.drained:
            await self.desired.drain()
            log.warning("node drained by the operator: no device is for claims from now on")
        self.claims_left.ask_again()
        before = await self.files.paths()  # files that are written after this are needed
        document = await self.document()
        if asked.clean:
            if not document["complete"]:
                raise RefusedError(
                    f"nothing is removed: {'; '.join(document['because'])}", hint="Run drabridge drain until it is done"
                )
            await self.desired.drain(clean=True)
            await self.files.remove(before, self.ledger_service.ledger)
            document["files"] = await self.files.paths()
            document["removed"] = sorted(set(before) - set(document["files"]))
        return document

    async def document(self) -> Document:
        """Return the progress. ``because`` says in words what is left to do; it is empty when the node is drained."""
        config, ledger = self.config(), self.ledger_service.ledger
        astray = _outside_legacy(ledger, {one.name for one in config.resources})
        claims = await self.claims_left.rows(ask_api_server=not astray)
        moving = [_moving(entry) for entry in astray]
        doubt = [_doubt(entry) for entry in ledger.entries.values() if entry.owner in DOUBTFUL]
        because = [] if self.desired.drained else ["the node is not drained: drabridge drain"]
        if not ledger.node.merged:
            because.append("the ledger has not been compared with what kubelet says yet")
        because += [_claim_words(claim) for claim in claims]
        because += [f"{one['device']} is in doubt ({one['owner']}): {one['evidence']}" for one in doubt]
        because += [f"{one['device']} is in lane {one['lane']}: {one['reason']}" for one in moving if not one["held"]]
        if not because and await self.claims_left.allocated() is None:
            because.append("the API server cannot be asked whether claims have devices of this node")
        in_legacy = sum(entry.lane is Lane.LEGACY for entry in ledger.entries.values())
        return {
            "apiVersion": API_VERSION,
            "kind": "Drain",
            "node": self.node,
            "driver": config.driver,
            "drained": self.desired.drained,
            "complete": not because,
            "because": because,
            "devices": len(ledger.entries),
            "inLegacyLane": in_legacy,
            "moving": moving,
            "claims": claims,
            "doubt": doubt,
            "pods": [pod for entry in ledger.entries.values() for pod in _pods(entry)],
            "files": await self.files.paths(),
        }


def is_state_unneeded(ledger: Ledger, desired: DesiredLanes) -> bool:
    """Whether nobody needs the agent's files: the operator asked for ``clean``, and the whole ledger has no holder."""
    held = any(entry.owner is not Owner.NONE or entry.claims for entry in ledger.entries.values())
    return desired.drained and desired.clean_at_end and ledger.node.whole and not held


def remove_state(state: Path) -> None:
    """Remove our files in the state directory, the lock last. Logs failures. The directory stays: it may be a mount.

    Files of a vendor's driver with the same name stay too: that driver may already run.
    """
    lock = state / LOCK_FILE
    try:
        for path in [*(one for one in state.iterdir() if one != lock and not is_vendors(one)), lock]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        log.error("state directory not emptied", extra={"directory": str(state), "reason": str(error)})
    else:
        log.info("state directory emptied: nobody holds a device", extra={"directory": str(state)})


def files_of(cdi: CdiStore) -> list[str]:
    """Return the paths of this driver's CDI files, sorted; [] if the directory cannot be read."""
    try:
        names = [cdi.file_name(family, key) for family in Family for key in cdi.keys(family)]
        names += cdi.metadata_files()
    except HostError:
        return []
    return sorted(str(cdi.directory / name) for name in names)


def _outside_legacy(ledger: Ledger, resources: set[str]) -> list[Entry]:
    """Return the devices outside the legacy lane. Gone and unconfigured ones do not count: nobody is offered those."""
    return [
        entry
        for entry in ledger.entries.values()
        if entry.device.resource in resources
        and entry.lane is not Lane.LEGACY
        and entry.device.presence is not Presence.GONE
    ]


def _moving(entry: Entry) -> Document:
    move = entry.move
    return {
        "device": entry.name,
        "resource": entry.device.resource,
        "lane": str(entry.lane),
        "held": entry.owner is not Owner.NONE,
        "reason": move.reason or str(move.step) if move else "its move has not begun",
    }


def _doubt(entry: Entry) -> Document:
    found = {"device": entry.name, "resource": entry.device.resource, "owner": str(entry.owner)}
    return {**found, "evidence": evidence(entry)}


def _claim(claim: ClaimRef, phase: str, lingers_until: str = "") -> Document:
    found = {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid, "phase": phase}
    return {**found, "lingersUntil": lingers_until, "devices": [], "pods": []}


def _claim_words(claim: Mapping[str, Any]) -> str:
    name = f"{claim['namespace']}/{claim['name']}" if claim["name"] else f"uid {claim['uid']}"
    devices = f" {', '.join(claim['devices'])}" if claim["devices"] else ""
    pods = f" (pod {', '.join(claim['pods'])})" if claim["pods"] else ""
    until = f", its processes may go on until {claim['lingersUntil']}" if claim["lingersUntil"] else ""
    return f"claim {name} has{devices or ' devices'}, {claim['phase']}{pods}{until}"


def _pods(entry: Entry) -> list[Document]:
    """Return the pods that have the device by limits."""
    if entry.hold is None or entry.owner is Owner.QUARANTINE:
        return []
    return [
        {"namespace": pod.namespace, "pod": pod.name, "container": pod.container, "device": entry.name}
        for pod in entry.hold.pods or (PodRef(),)
    ]
