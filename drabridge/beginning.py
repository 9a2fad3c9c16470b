"""The merge at the start: what the ledger, kubelet, the claims' records and the CDI files say, hold-biased.

Nothing is granted before. A ledger that no agent has compared with kubelet's view yet knows nothing: its free devices
are free only if everybody who could know more was asked and understood. Else it counts as lost.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable

from msgspec.structs import replace

from drabridge.cdi import Family
from drabridge.claims import earlier, prepared
from drabridge.evidence import checkpoint as checkpoint_file
from drabridge.evidence.witness import Listed
from drabridge.ledger import Allocation, ClaimDeallocated, ClaimRef, Ledger, Lost, Restarted, Use
from drabridge.ledger.store import Loaded
from drabridge.runtime import Runtime

log = logging.getLogger(__name__)

FIRST_LIST_SECONDS = 0.5  # kubelet answers in milliseconds when it is there; registration must not wait when it is not
AGAIN_SECONDS = 0.2  # between questions on a new node: nothing can be registered there before kubelet is up, either
_SHARE = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")  # the API server's share ids


async def merge(runtime: Runtime, *, rebooted: bool) -> None:
    """If kubelet is away the ledger alone counts, once it has been compared with kubelet's view."""
    keeper, directory = runtime.keeper, runtime.paths.device_plugins
    node = keeper.ledger.node
    listed = await _listed(runtime)
    if not node.ever_merged and not node.lost:
        if listed is None and not checkpoint_file.exists(directory):
            log.info("waits for kubelet to say who holds devices: no agent has seen this node before")
        while listed is None and not checkpoint_file.exists(directory):
            await asyncio.sleep(AGAIN_SECONDS)
            listed = await _listed(runtime)
    checkpoint = runtime.witness.checkpoint()
    if not node.ever_merged and not node.lost:
        doubt = ""
        if any(runtime.cdi.keys(family) for family in Family):
            doubt = f"CDI files in {runtime.cdi.directory} are of an agent whose ledger is gone"
        elif checkpoint is None and checkpoint_file.exists(directory):
            doubt = "kubelet's checkpoint of devices is not understood, and it alone knows every pod"
        if doubt:
            await _lose(runtime, doubt)
    claims = _claims(runtime, listed, rebooted=rebooted)
    if listed is not None and (nameless := _without_uid(keeper.ledger, listed, claims)):
        await keeper.apply(Lost(runtime.now(), nameless, "kubelet shows a claim on it that is not on record"))
    unknown = [one.claim.uid for one in claims if not one.claim.name and one.claim.uid not in keeper.ledger.by_claim]
    pods = None if listed is None else listed.pods
    await keeper.apply(Restarted(runtime.now(), claims, pods, checkpoint))
    for uid in unknown:  # without a name the API server cannot be asked: they end with Unprepare, or by the operator
        await keeper.apply(ClaimDeallocated(uid, runtime.now()))
    runtime.files.restore(keeper.ledger, runtime.devices)


async def _listed(runtime: Runtime) -> Listed | None:
    try:
        async with asyncio.timeout(FIRST_LIST_SECONDS):  # wait_for of Python 3.11 may swallow a cancellation
            return await runtime.witness.listed()
    except TimeoutError:
        return None


async def _lose(runtime: Runtime, doubt: str) -> None:
    keeper = runtime.keeper
    message = f"there is no ledger of this node, and {doubt}: every device without a known holder is quarantined"
    log.error("ledger", extra={"found": str(Loaded.LOST), "message_text": message})
    await keeper.apply(Lost(runtime.now(), reason=doubt))
    keeper.loaded = replace(keeper.loaded, kind=Loaded.LOST, message=message)


def _claims(runtime: Runtime, listed: Listed | None, *, rebooted: bool) -> tuple[Allocation, ...]:
    """Claims that a container may use: by our records; else as kubelet shows them; else by their CDI files."""
    state, boot_id = runtime.paths.state, runtime.options.boot_id.read_text().strip()
    found = {one.claim.uid: one for one in prepared(state, boot_id)}
    if rebooted:  # whatever was left lying there, no container has it
        return tuple(found.values())
    before = earlier(state, boot_id)
    for one in listed.claims if listed is not None else ():
        if one.claim.uid and one.claim.uid not in before:
            found.setdefault(one.claim.uid, one)
    for uid, texts in runtime.cdi.claimed().items():
        if uid in found or uid in before:
            continue
        names = [name for text in texts for name in _named(text, runtime.keeper.ledger.entries)]
        found[uid] = Allocation(ClaimRef(uid), tuple(map(Use, dict.fromkeys(names))))
        log.warning(
            "a CDI file of a claim without a record: its devices are held", extra={"uid": uid, "devices": names}
        )
    return tuple(found.values())


def _named(text: str, devices: Iterable[str]) -> list[str]:
    """The devices that ``<request>-<device>[-<share>]`` may mean; where names are alike, all of them."""
    whole = _SHARE.sub("", text)
    return [name for name in devices if text.endswith(f"-{name}") or whole.endswith(f"-{name}")]


def _without_uid(ledger: Ledger, listed: Listed, claims: Iterable[Allocation]) -> tuple[str, ...]:
    """Devices of claims that nobody knows by their UID; nothing but a quarantine can hold them."""
    known = {(one.claim.namespace, one.claim.name) for one in claims}
    return tuple(
        use.device
        for one in listed.claims
        for use in one.uses
        if not one.claim.uid and (one.claim.namespace, one.claim.name) not in known and use.device in ledger.entries
    )
