"""A claim record with everything that a record can have."""

from __future__ import annotations

from drabridge.dra.records import ClaimRecord, PreparedDevice, RecordState
from drabridge.ledger.entries import ClaimRef

UID = "34553fd1-cf06-469c-b877-c1432ff67333"


HOOK = {"command": ["/bin/true"], "timeoutSeconds": 5}


RECORD = ClaimRecord(
    ClaimRef(UID, "default", "cl"),
    RecordState.COMPLETED,
    "boot-1",
    (
        PreparedDevice("gpu/large", "node-a", "gpu-0", "share-1", False, "fast", {"A": "1"}, ("x/y=z",), HOOK),
        PreparedDevice("look", "node-a", "gpu-1", admin=True),
        PreparedDevice("part", "node-a", "gpu-2", "share-2", consumed={"memory": 5}),
    ),
    123.5,
    "mine",
)
