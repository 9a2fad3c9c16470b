"""Read and change the records of prepared claims, even where no DRA driver runs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from drabridge.config.fabric import is_fabric_pool
from drabridge.config.schema import Config
from drabridge.containers.cdi_store import CdiStore, Family
from drabridge.ledger.entries import Ledger
from drabridge.ledger.events import ClaimDevices

RECORD_SUFFIX = ".json"


def record_names(directory: Path) -> frozenset[str]:
    """List the files of records, including damaged ones: kubelet may still ask to unprepare these claims."""
    try:
        return frozenset(name for name in os.listdir(directory) if not name.startswith("."))
    except OSError:
        return frozenset()


def recorded_uids(directory: Path) -> frozenset[str]:
    """List the UIDs of the claims with a record, by the names of the files."""
    return frozenset(
        name.removesuffix(RECORD_SUFFIX) for name in record_names(directory) if name.endswith(RECORD_SUFFIX)
    )


def recorded_claims(directory: Path, boot_id: str, ledger: Ledger) -> tuple[tuple[ClaimDevices, ...], frozenset[str]]:
    """Return the claims that were prepared in this boot, and the UIDs of those prepared before the node rebooted.

    The claims of this boot hold their devices, whatever other sources say. No container of the others runs. A claim
    whose prepare was only begun holds nothing beyond the ledger: the rest was refused, or never asked for.
    """
    if not directory.exists():  # DRA was never on here
        return (), frozenset()
    from drabridge.dra.records import RecordState, RecordStore

    prepared, earlier = [], set()
    for record in RecordStore(directory).all():
        uses = record.uses
        if record.boot_id != boot_id:
            earlier.add(record.claim.uid)
            continue
        if record.state is RecordState.STARTED and ledger.node.whole:
            known = ledger.by_claim.get(record.claim.uid, ())
            uses = tuple(use for use in uses if use.device in known)
        if uses:
            prepared.append(ClaimDevices(record.claim, uses))
    return tuple(prepared), frozenset(earlier)


def with_pool_in_use(config: Config, directory: Path, node: str, ledger: Ledger) -> Config:
    """Return ``config`` with the pool in which claims have devices, if ``config`` names another one.

    Under another name the scheduler would take those devices for free. A reload uses the new name once no claim has a
    device. A record counts only if the ledger knows its claim, unless the ledger may lack holders: a record may outlive
    a claim that kubelet forgot.
    """
    if not record_names(directory):  # DRA was never on here; or the directory is unreadable, which the merge reports
        return config
    from drabridge.dra.records import RecordStore

    found = RecordStore(directory).all()
    records = [record for record in found if record.claim.uid in ledger.by_claim or not ledger.node.whole]
    devices = [device for record in records for device in record.devices if not device.admin]
    pools = {device.pool for device in devices if not is_fabric_pool(device.pool)}
    if not pools or (config.dra.pool or node) in pools:
        return config
    return with_pool(config, min(pools))


def with_pool(config: Config, pool: str | None) -> Config:
    """Return ``config`` with another ``dra.pool``."""
    return replace(config, dra=replace(config.dra, pool=pool))


def forget_device(directory: Path, cdi: CdiStore, ledger: Ledger, device: str, uids: Iterable[str]) -> None:
    """Take a device out of the records of claims that have ended; else a restart would give it back to them.

    A claim without another device in the ledger loses its record and its CDI file.
    """
    from drabridge.dra.records import RecordStore

    records = RecordStore(directory)
    for uid in uids:
        if not set(ledger.by_claim.get(uid, ())) - {device}:
            cdi.remove(Family.CLAIM, uid)
            records.delete(uid)
        elif (record := records.load(uid)) is not None:
            records.save(replace(record, devices=tuple(one for one in record.devices if one.device != device)))
