"""What the operator's release of a device leaves of the claims that had it: nothing, or all that others still need."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from drabridge.cdi import CdiDevice, CdiStore, Edits
from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordStore, State
from drabridge.ledger import ClaimRef, Entry, Facts, Ledger, Owner
from drabridge.ledger.model import ClaimHold, Phase
from drabridge.resolve import _forget_claims

CLAIM = ClaimRef("34553fd1-cf06-469c-b877-c1432ff67333", "default", "c")
WATCHER = ClaimRef("5bd47ba5-dc39-4e01-b577-25147473f530", "default", "watcher")


def entry(name: str, *holds: ClaimHold) -> Entry:
    return Entry(Facts(name, "r", (name,)), Owner.DRA_PREPARED if holds else Owner.NONE, claims=holds)


HOLD = ClaimHold(CLAIM, Phase.PREPARED, 0.0)
ADMIN = ClaimHold(WATCHER, Phase.PREPARED, 0.0, admin=True)


@pytest.mark.parametrize(("elsewhere", "left"), [((), [WATCHER.uid]), ((HOLD,), [CLAIM.uid, WATCHER.uid])])
def test_a_claim_is_forgotten_with_its_last_device(
    tmp_path: Path, elsewhere: tuple[ClaimHold, ...], left: list[str]
) -> None:
    cdi, records = CdiStore(tmp_path / "cdi", "gpu.example.com"), RecordStore(tmp_path / "claims")
    for claim in (CLAIM, WATCHER):
        name = CdiStore.claim_device_name(claim.uid, "r", "gpu-0")
        cdi.write(cdi.claim_spec(claim.uid, [CdiDevice(name, Edits(env={"A": "1"}))]))
        records.save(ClaimRecord(claim, State.COMPLETED, "boot", (PreparedDevice("r", "node-a", "gpu-0"),)))
    before = entry("gpu-0", HOLD, ADMIN)
    after = replace(before, claims=(ADMIN,), owner=Owner.NONE)
    ledger = Ledger.of([after, entry("gpu-1", *elsewhere)])
    # All that is asked of an agent:
    runtime = SimpleNamespace(paths=SimpleNamespace(state=tmp_path), cdi=cdi, keeper=SimpleNamespace(ledger=ledger))
    _forget_claims(runtime, before, after)  # type: ignore[arg-type]
    assert sorted(cdi.claimed()) == left
    assert [record.claim.uid for record in records.all()] == left
