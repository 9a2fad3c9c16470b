"""The merge at the start: what the ledger, kubelet, the claims' records and the CDI files say, hold-biased.

Nothing is granted before. A ledger that no agent has compared with kubelet's view yet knows nothing: its free devices
are free only if everybody who could know more was asked and understood. Else it counts as lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from deviceplugin import kubelet_process
from drabridge.agent.runtime import Runtime
from drabridge.containers.cdi_spec import ClaimDeviceName
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.dra.lifecycle import names_in, recorded
from drabridge.errors import HostError
from drabridge.evidence import checkpoint as checkpoint_file
from drabridge.evidence.kubelet import LIST_SECONDS, KubeletList
from drabridge.inventory.model import Snapshot, device_id_of
from drabridge.ledger import startup_events
from drabridge.ledger.events import (
    CheckpointRead,
    ClaimDeallocated,
    ClaimDevices,
    DeviceUse,
    Discovered,
    RecordLost,
    Unit,
)
from drabridge.ledger.model import ClaimRef, Lane, Ledger, LedgerDevice
from drabridge.ledger.observation import record_lost_by_unknown_units, unknown_units
from drabridge.ledger.store import Loaded

log = logging.getLogger(__name__)

FIRST_LIST_SECONDS = 0.5  # kubelet answers in milliseconds when it is there; what it says later is evidence too
NAMED = 4  # of the ids that nobody knows: enough to see how they differ from ours
_SHARE = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")  # the API server's share ids


async def merge(runtime: Runtime, *, rebooted: bool) -> bool:
    """Whether it is on disk; else it is to be tried again, and nothing is served before.

    If kubelet is away the ledger alone counts. On a new node that may be empty: where kubelet has no checkpoint no
    plugin has ever registered, and in a directory that is not kubelet's nobody asks us for devices.
    """
    ledger_service, directory = runtime.ledger_service, runtime.paths.device_plugins
    node = ledger_service.ledger.node
    # Where not all is on record kubelet alone may know of a claim, or that it ended: waited for while it is there.
    listed = await _listed(runtime, FIRST_LIST_SECONDS if node.whole else LIST_SECONDS)
    checkpoint = runtime.kubelet_evidence.read_checkpoint()
    if not node.ever_merged and not node.lost:
        doubt = _of_files(runtime)
        if not doubt and checkpoint is None and checkpoint_file.exists(directory):
            doubt = "kubelet's checkpoint of devices is not understood, and it alone knows every pod"
        doubt = doubt or _of_ids(runtime, listed, checkpoint)
        if doubt and not await _lose(runtime, doubt):
            return False
    elif not await _doubt(runtime, listed, checkpoint):
        return False
    found = _findings(runtime, listed, checkpoint, ledger_service.ledger.entries, rebooted=rebooted)
    found = replace(found, kubelet=kubelet_process(directory))
    claims = _in_use(ledger_service.ledger, found)
    if rebooted:
        _clear(runtime.cdi, claims)
    for event in tuple(startup_events.events(ledger_service.ledger, found, claims)):
        if not (await ledger_service.apply(event)).accepted:
            return False
    runtime.files.restore_soon(ledger_service.ledger, runtime.devices)
    return True


async def discover(runtime: Runtime, snapshot: Snapshot, lanes: Mapping[str, Lane], *, rebooted: bool) -> bool:
    """Bring a snapshot to the ledger; whether that is on disk.

    A device that was not there at the merge, or that only a changed configuration names, may be a running claim's.
    """
    ledger_service = runtime.ledger_service
    shareable = {r.name: r.sharing.allow_multiple_allocations for r in runtime.config.resources}
    runtime.devices = snapshot.by_name()
    facts = tuple(
        LedgerDevice.of(device, shareable=shareable.get(device.resource, False)) for device in snapshot.devices
    )
    prepared: tuple[ClaimDevices, ...] = ()
    if ledger_service.ledger.node.ever_merged and runtime.devices.keys() - ledger_service.ledger.entries.keys():
        found = _findings(runtime, None, None, runtime.devices, rebooted=rebooted)
        prepared = _in_use(ledger_service.ledger, found)
    unknown = startup_events.nameless(ledger_service.ledger, prepared)
    taken = await ledger_service.apply(Discovered(facts, runtime.now(), lanes, prepared))
    for uid in unknown:
        await ledger_service.apply(ClaimDeallocated(uid, runtime.now()))
    return taken.accepted


def _of_files(runtime: Runtime) -> str:
    """What CDI files and records of claims say against a new node; nothing if there are none, of whatever content."""
    cdi, records = runtime.cdi, runtime.paths.claim_records
    try:
        left = any(cdi.keys(family) for family in Family)
    except HostError as error:
        return str(error)
    if left or names_in(records):
        return f"the files in {cdi.directory if left else records} are of an agent whose ledger is gone"
    return ""


def _of_ids(runtime: Runtime, listed: KubeletList | None, checkpoint: CheckpointRead | None) -> str:
    """What kubelet shows against a new node: pods with our resources, or with claims of our driver, by names that no
    device here has. They have some of the hardware, and nobody can say which: who was before us called it otherwise.
    """
    devices = [entry.device for entry in runtime.ledger_service.ledger.entries.values()]
    ids, ours = {device.id for device in devices}, {resource.name for resource in runtime.config.resources}
    shown = _of_pods(listed, checkpoint)
    unknown = {f"{name} {unit}" for name, unit in shown if name in ours and device_id_of(unit) not in ids}
    uses = [(one.claim, use.device) for one in (listed.claims if listed else ()) for use in one.uses if not use.admin]
    names = {device.name for device in devices}
    unknown |= {f"{name} of claim {claim.namespace}/{claim.name}" for claim, name in uses if name not in names}
    if not unknown:
        return ""
    words = ", ".join(sorted(unknown)[:NAMED])
    return f"kubelet shows pods with devices that this configuration calls otherwise or does not match: {words}"


def _of_pods(listed: KubeletList | None, checkpoint: CheckpointRead | None) -> set[Unit]:
    """What kubelet says that pods have."""
    return {*(listed.pods if listed else ()), *(checkpoint.pods if checkpoint else ())}


async def _doubt(runtime: Runtime, listed: KubeletList | None, checkpoint: CheckpointRead | None) -> bool:
    """Doubt the devices of a resource that another plugin served while no agent ran, by ids of its own. Returns whether
    that is on disk.
    """
    ledger_service, shown = runtime.ledger_service, _of_pods(listed, checkpoint)
    for resource in runtime.config.resources:
        if units := unknown_units(ledger_service.ledger, resource.name, shown):
            lost = record_lost_by_unknown_units(ledger_service.ledger, resource.name, units, runtime.now())
            if lost is not None and not (await ledger_service.apply(lost)).accepted:
                return False
    return True


def _claimed(cdi: CdiStore) -> dict[str, tuple[ClaimDeviceName, ...]]:
    """What CDI files say of claims. A directory that cannot be read is no reason to serve nobody: the ledger and the
    records know more, and where they know nothing it counts as lost.
    """
    try:
        return cdi.claims()
    except HostError as error:
        log.error("what CDI files say of claims is not known", extra={"reason": str(error)})
        return {}


def _clear(cdi: CdiStore, claims: Iterable[ClaimDevices]) -> None:
    """After a reboot no container has what lies there of other claims; a later start would not know that any more."""
    try:
        cdi.regenerate(Family.CLAIM, (), keep={one.claim.uid for one in claims})
    except HostError as error:
        log.error("CDI files of before the reboot are not removed", extra={"reason": str(error)})


async def _listed(runtime: Runtime, seconds: float) -> KubeletList | None:
    try:
        async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may swallow a cancellation
            return await runtime.kubelet_evidence.list_pods()
    except TimeoutError:
        return None


async def _lose(runtime: Runtime, doubt: str) -> bool:
    ledger_service = runtime.ledger_service
    message = f"there is no ledger of this node, and {doubt}: every device without a known holder is quarantined"
    log.error("ledger", extra={"found": str(Loaded.LOST), "message_text": message})
    if not (await ledger_service.apply(RecordLost(runtime.now(), reason=doubt))).accepted:
        return False
    ledger_service.loaded = replace(ledger_service.loaded, kind=Loaded.LOST, message=message)
    return True


def _findings(
    runtime: Runtime,
    listed: KubeletList | None,
    checkpoint: CheckpointRead | None,
    devices: Collection[str],
    *,
    rebooted: bool,
) -> startup_events.StartupFindings:
    """Everything that says who has what. ``devices``: those that CDI files may mean."""
    state, boot_id = runtime.paths.state, runtime.options.boot_id.read_text().strip()
    prepared, before = recorded(state, boot_id, runtime.ledger_service.ledger)
    left: frozenset[str] | None
    left = frozenset(name.partition(".json")[0] for name in names_in(runtime.paths.claim_records))
    try:
        left = left.union(runtime.cdi.keys(Family.CLAIM))
    except HostError:
        left = None
    files = tuple(
        ClaimDevices(
            ClaimRef(uid),
            tuple(DeviceUse(name, admin=admin) for text, admin in texts for name in _named(text, devices)),
        )
        for uid, texts in ({} if rebooted else _claimed(runtime.cdi)).items()
    )
    return startup_events.StartupFindings(
        runtime.now(),
        prepared,
        before,
        files,
        left,
        None if listed is None else listed.pods,
        () if listed is None else listed.claims,
        checkpoint,
        rebooted=rebooted,
    )


def _in_use(ledger: Ledger, found: startup_events.StartupFindings) -> tuple[ClaimDevices, ...]:
    claims = startup_events.in_use(ledger, found)
    known = {one.claim.uid for one in (*found.recorded, *found.claims)}
    files = {one.claim.uid for one in found.files} - known
    for one in claims:
        if one.claim.uid in files:
            named = {"uid": one.claim.uid, "devices": [use.device for use in one.uses if not use.admin]}
            log.warning("a CDI file of a claim without a record: its devices are held", extra=named)
    return claims


def _named(text: str, devices: Iterable[str]) -> list[str]:
    """The devices that ``<request>-<device>[-<share>]`` may mean; where names are alike, all of them."""
    whole = _SHARE.sub("", text)
    return [name for name in devices if text.endswith(f"-{name}") or whole.endswith(f"-{name}")]
