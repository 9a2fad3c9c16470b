"""The operator releases a device: what is checked about claims, and what stays of those that had it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.agent.manual_release import OperatorRelease
from drabridge.containers.cdi_spec import CdiDevice, ContainerEdits, claim_device_name
from drabridge.containers.cdi_store import CdiStore
from drabridge.dra.recorded_claims import forget_device
from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordState, RecordStore
from drabridge.errors import RefusedError
from drabridge.ledger.entries import ClaimHold, ClaimPhase, ClaimRef, Entry, Ledger, LedgerDevice, Owner, PodRef

CLAIM = ClaimRef("34553fd1-cf06-469c-b877-c1432ff67333", "default", "c")
WATCHER = ClaimRef("5bd47ba5-dc39-4e01-b577-25147473f530", "default", "watcher")


def entry(name: str, *holds: ClaimHold) -> Entry:
    return Entry(LedgerDevice(name, "r", (name,)), Owner.DRA_PREPARED if holds else Owner.NONE, claims=holds)


HOLD = ClaimHold(CLAIM, ClaimPhase.PREPARED, 0.0)
ADMIN = ClaimHold(WATCHER, ClaimPhase.PREPARED, 0.0, admin=True)


@pytest.mark.parametrize(("elsewhere", "left"), [((), [WATCHER.uid]), ((HOLD,), [CLAIM.uid, WATCHER.uid])])
def test_a_claim_is_forgotten_with_its_last_device(
    tmp_path: Path, elsewhere: tuple[ClaimHold, ...], left: list[str]
) -> None:
    cdi, records = CdiStore(tmp_path / "cdi", "gpu.example.com"), RecordStore(tmp_path / "claims")
    for claim in (CLAIM, WATCHER):
        name = claim_device_name(claim.uid, "r", "gpu-0")
        cdi.write(cdi.claim_spec(claim.uid, [CdiDevice(name, ContainerEdits(env={"A": "1"}))]))
        records.save(ClaimRecord(claim, RecordState.COMPLETED, "boot", (PreparedDevice("r", "node-a", "gpu-0"),)))
    ledger = Ledger.of([entry("gpu-0", HOLD, ADMIN), entry("gpu-1", *elsewhere)])
    forget_device(tmp_path / "claims", cdi, ledger, "gpu-0", [CLAIM.uid])
    assert sorted(cdi.claims()) == left
    assert [record.claim.uid for record in records.all()] == left
    assert [len(record.devices) for record in records.all()] == [0, 1][-len(left) :]


@pytest.mark.parametrize(
    ("allocated", "users", "opened", "refused"),
    [
        (False, (), {}, ""),
        (True, (), {}, ""),
        (False, (PodRef("default", "p", "main"),), {}, "gpu-0 is still used by pod default/p (container main)"),
        (False, (), {"gpu-0": "process 7 (train)"}, "gpu-0 is still used by process 7 (train)"),
        (False, None, {}, "kubelet could not be asked who uses it: it is away"),
    ],
)
async def test_a_deleted_claim_ends_when_nobody_is_seen_with_its_device(
    allocated: bool, users: tuple[PodRef, ...] | None, opened: dict[str, str], refused: str
) -> None:
    async def released(claim: ClaimRef) -> bool:
        return True

    hold = replace(HOLD, api_allocated=allocated)
    ledger = Ledger.of([entry("gpu-0", hold)])

    async def shown(claim: ClaimRef, device: str) -> tuple[PodRef, ...] | None:
        return users

    async def in_use(names: set[str]) -> dict[str, str]:
        return opened

    async def forget(device: str, uids: Sequence[str]) -> None:
        raise AssertionError

    nobody: Any = SimpleNamespace()
    service: Any = SimpleNamespace(ledger=ledger)
    kubelet: Any = SimpleNamespace(users=shown, error="it is away")
    others: Any = SimpleNamespace(in_use=in_use)
    claims: Any = SimpleNamespace(release_if_deallocated=released)
    release = OperatorRelease(service, nobody, kubelet, others, claims, nobody, forget)
    with pytest.raises(RefusedError, match=re.escape(refused)) if refused else contextlib.nullcontext():
        ended = await release._has_ended(ledger.entries["gpu-0"], hold)
        assert ended is not allocated
