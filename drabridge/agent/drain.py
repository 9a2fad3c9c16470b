"""Whether the agent can be removed from this node: what moves to the legacy lane first, and who still holds devices.

Only this driver can unprepare its claims: kubelet keeps a pod Terminating until it has (pkg/kubelet/cm/dra/manager.go,
unprepareResources). So a node is drained when no claim of it is left anywhere: not in the ledger, not among the records
on disk, not in the API server. Pods with limits need no driver to end, and run on.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drabridge.agent.runtime import Runtime
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.lifecycle import ClaimSide, names_in
from drabridge.errors import ConfigError, HostError, RefusedError
from drabridge.inventory.model import Presence
from drabridge.lanes.desired import Wishes
from drabridge.ledger.events import ClaimDevices
from drabridge.ledger.lock import FILE as LOCK_FILE
from drabridge.ledger.model import ClaimRef, Entry, Lane, Ledger, Owner, PodRef
from drabridge.status.document import API_VERSION, evidence, stamp

log = logging.getLogger(__name__)

LIST_SECONDS = 5.0  # between LISTs of all claims while somebody waits for the end: they cost the API server
DOUBTFUL = frozenset({Owner.QUARANTINE, Owner.CONFLICT})
ALLOCATED = "allocated"  # phase of a claim that the API server shows and nobody has asked to prepare
UNPREPARED = "unprepared"  # phase of one whose pod is gone: its processes may go on until ``lingersUntil``
Document = dict[str, Any]


class Drain:
    """``drabridge drain``: begins, undoes, tells how far it is, and removes what nobody needs afterwards."""

    def __init__(self, runtime: Runtime, claims: ClaimSide, wishes: Wishes) -> None:
        self._runtime = runtime
        self._claims = claims
        self._wishes = wishes
        self._listed: tuple[ClaimDevices, ...] | None = ()
        self._list_due = 0.0

    async def request(self, body: bytes) -> Document:
        """``{"drain": true}`` begins, ``{"drain": false}`` undoes; ``"clean": true`` removes what is no longer needed.

        Raises ConfigError for what cannot be meant, HostError where it cannot be kept, RefusedError for a node that is
        to be cleaned and still held.
        """
        try:
            wish = json.loads(body)
            begin, clean = wish["drain"], wish.get("clean", False)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            begin = clean = None
        if not isinstance(begin, bool) or not isinstance(clean, bool):
            raise ConfigError('{"drain": true or false, "clean": true or false} was expected')
        if not begin:
            await self._wishes.undo_drain()
            return await self.document()
        if not self._wishes.drained:
            await self._wishes.drain()
            log.warning("drained by the operator: no device is for claims from now on")
        self._list_due = 0.0  # somebody asks anew
        before = await self._files()  # what comes later is somebody's
        document = await self.document()
        if clean:
            if not document["complete"]:
                raise RefusedError(
                    f"nothing is removed: {'; '.join(document['because'])}", hint="Run drabridge drain until it is done"
                )
            await self._wishes.drain(clean=True)
            runtime = self._runtime
            await runtime.cdi.thread.promptly(lambda: runtime.files.sweep(runtime.ledger_service.ledger))
            legacy = self._runtime.cdi.prefix(Family.LEGACY)
            claims = [path for path in before if not Path(path).name.startswith(legacy)]
            await runtime.cdi.thread.promptly(lambda: _remove(runtime.cdi, claims))
            document["files"] = await self._files()
            document["removed"] = sorted(set(before) - set(document["files"]))
        return document

    async def document(self) -> Document:
        """How far it is. ``because`` says in words what is left; it is empty when the node is drained."""
        runtime, ledger = self._runtime, self._runtime.ledger_service.ledger
        claims = await self._claims_left(ledger)
        moving = [_moving(entry) for entry in _astray(ledger, {one.name for one in runtime.config.resources})]
        doubt = [_doubt(entry) for entry in ledger.entries.values() if entry.owner in DOUBTFUL]
        because = [] if self._wishes.drained else ["the node is not drained: drabridge drain"]
        if not ledger.node.merged:
            because.append("the ledger has not been compared with what kubelet says yet")
        because += [_claim_words(claim) for claim in claims]
        because += [f"{one['device']} is in doubt ({one['owner']}): {one['evidence']}" for one in doubt]
        because += [f"{one['device']} is in lane {one['lane']}: {one['reason']}" for one in moving if not one["held"]]
        if not because and await self._allocated() is None:
            because.append("the API server cannot be asked whether claims have devices of this node")
        in_legacy = sum(entry.lane is Lane.LEGACY for entry in ledger.entries.values())
        return {
            "apiVersion": API_VERSION,
            "kind": "Drain",
            "node": runtime.options.node_name,
            "driver": runtime.config.driver,
            "drained": self._wishes.drained,
            "complete": not because,
            "because": because,
            "devices": len(ledger.entries),
            "inLegacyLane": in_legacy,
            "moving": moving,
            "claims": claims,
            "doubt": doubt,
            "pods": [pod for entry in ledger.entries.values() for pod in _pods(entry)],
            "files": await self._files(),
        }

    async def _claims_left(self, ledger: Ledger) -> list[Document]:
        """Every claim that needs this driver, by the ledger, the records and, once those have none, the API server."""
        found: dict[str, Document] = {}
        for entry in ledger.entries.values():
            for held in entry.claims:
                phase = UNPREPARED if held.lingers else str(held.phase)
                row = found.setdefault(held.claim.uid, _claim(held.claim, phase, stamp(held.lingers_until)))
                row["devices"].append(entry.name)
        names = await self._runtime.disk.promptly(lambda: names_in(self._runtime.paths.claim_records))
        for name in sorted(names):
            uid = name.removesuffix(".json")
            if name.endswith(".json") and uid not in found:
                found[uid] = _claim(ClaimRef(uid), "on record")
        if not found and not _astray(ledger, {one.name for one in self._runtime.config.resources}):
            for allocation in await self._allocated() or ():
                row = found[allocation.claim.uid] = _claim(allocation.claim, ALLOCATED)
                row["devices"] += [use.device for use in allocation.uses]
        if found:
            users = await self._runtime.kubelet_evidence.claim_users() or {}
            for row in found.values():
                row["pods"] = list(users.get((row["namespace"], row["name"]), ()))
        return sorted(found.values(), key=lambda row: (row["namespace"], row["name"], row["uid"]))

    async def _allocated(self) -> Sequence[ClaimDevices] | None:
        """What the API server shows allocated here. None: it cannot be asked, and there may be something."""
        if self._runtime.cluster is None:  # no claims are served, and what were served are on record
            return ()
        if time.monotonic() >= self._list_due:
            self._listed = await self._claims.allocated()
            self._list_due = time.monotonic() + LIST_SECONDS
        return self._listed

    async def _files(self) -> list[str]:
        """In the thread that writes them: a disk that hangs would keep others of the loop's, and the agent's end."""
        return await self._runtime.cdi.thread.promptly(lambda: files_of(self._runtime.cdi))


def _remove(cdi: CdiStore, paths: Sequence[str]) -> None:
    for path in paths:
        cdi.remove_file(Path(path).name)


def unneeded(ledger: Ledger, wishes: Wishes) -> bool:
    """Whether what the agent keeps on disk serves nobody: the operator said so, and no device has a holder."""
    held = any(entry.owner is not Owner.NONE or entry.claims for entry in ledger.entries.values())
    return wishes.drained and wishes.clean_at_end and ledger.node.whole and not held


def clean(state: Path) -> None:
    """Remove everything in the state directory, the lock last; the directory itself may be a mount. Logs failures."""
    lock = state / LOCK_FILE
    try:
        for path in [*(one for one in state.iterdir() if one != lock), lock]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        log.error("the state directory could not be emptied", extra={"directory": str(state), "reason": str(error)})
    else:
        log.info("the state directory is empty: nobody holds a device", extra={"directory": str(state)})


def files_of(cdi: CdiStore) -> list[str]:
    """Paths of the CDI files of this driver, sorted; [] where the directory cannot be read."""
    try:
        names = [cdi.file_name(family, key) for family in Family for key in cdi.keys(family)]
        names += cdi.metadata_files()
    except HostError:
        return []
    return sorted(str(cdi.directory / name) for name in names)


def _astray(ledger: Ledger, resources: set[str]) -> list[Entry]:
    """Devices that are not in the legacy lane. One that is gone, or no longer configured, is offered to nobody."""
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
    """Those that have the device by limits."""
    if entry.hold is None or entry.owner is Owner.QUARANTINE:
        return []
    return [
        {"namespace": pod.namespace, "pod": pod.name, "container": pod.container, "device": entry.name}
        for pod in entry.hold.pods or (PodRef(),)
    ]
