"""A claim of a real API server in its protobuf encoding: entries of devices change, and no other byte."""

from __future__ import annotations

import base64
import json

import pytest

from drabridge.dra.claim_encoding import MAGIC, with_devices
from drabridge.kube.api import ConflictError
from drabridge.ledger.entries import ClaimRef
from drabridge.wire import claims_pb2 as wire

# The answer of Kubernetes 1.36.3 to a GET; parameters of the claim: {"z": 1.0, "a": "<x>"}.
STORED = base64.b64decode("""
azhzAAojChJyZXNvdXJjZS5rOHMuaW8vdjESDVJlc291cmNlQ2xhaW0SrgQK9AIKBXNwZWx0EgAaB2RlZmF1bHQiACokZTZjODM5MmYtNDU1My
00NWI3LTkzMTMtYmFhZTZjYTMxMDVmMgMzNjM4AEIICNGspdgGEACKAX4KDnB5dGhvbi11cmxsaWIzEgZVcGRhdGUaEnJlc291cmNlLms4cy5p
by92MSIICNGspdgGEAAyCEZpZWxkc1YxOjoKOHsiZjpzcGVjIjp7ImY6ZGV2aWNlcyI6eyJmOmNvbmZpZyI6e30sImY6cmVxdWVzdHMiOnt9fX
19QgCKAaQBCg5weXRob24tdXJsbGliMxIGVXBkYXRlGhJyZXNvdXJjZS5rOHMuaW8vdjEiCAjRrKXYBhAAMghGaWVsZHNWMTpaClh7ImY6c3Rh
dHVzIjp7ImY6YWxsb2NhdGlvbiI6eyIuIjp7fSwiZjpkZXZpY2VzIjp7Ii4iOnt9LCJmOmNvbmZpZyI6e30sImY6cmVzdWx0cyI6e319fX19Qg
ZzdGF0dXMSUQpPChgKA29uZRIRCgF4GgpFeGFjdENvdW50IAEaMwoDb25lEiwKKgoOZ3B1Lm52aWRpYS5jb20SGAoWeyJ6IjogMS4wLCAiYSI6
ICI8eD4ifRpiCmAKXgocCgNvbmUSDmdwdS5udmlkaWEuY29tGgFuIgJkMBI+CglGcm9tQ2xhaW0SA29uZRosCioKDmdwdS5udmlkaWEuY29tEh
gKFnsieiI6IDEuMCwgImEiOiAiPHg+In0aACIA
""")
PARAMETERS = b'{"z": 1.0, "a": "<x>"}'
UID, VERSION = "e6c8392f-4553-45b7-9313-baae6ca3105f", "363"
CLAIM = ClaimRef(UID, "default", "spelt")


def entry(kind: str, status: str = "True", **more: object) -> dict[str, object]:
    condition = {"type": kind, "status": status, "reason": "R", "message": "m"}
    return {
        "driver": "gpu.nvidia.com",
        "pool": "n",
        "device": "d0",
        "conditions": [{**condition, "lastTransitionTime": "2026-11-27T10:00:00Z"}],
        **more,
    }


def claim_of(data: bytes) -> wire.ResourceClaim:
    assert data.startswith(MAGIC)
    return wire.ResourceClaim.FromString(wire.Unknown.FromString(data[len(MAGIC) :]).raw)


def test_all_but_the_entries_stays_byte_by_byte() -> None:
    changed = with_devices(STORED, CLAIM, [entry("x/lease")], VERSION)
    assert changed.count(PARAMETERS) == STORED.count(PARAMETERS) == 2  # of the spec, and of the allocation
    (device,) = claim_of(changed).status.devices
    assert (device.driver, device.pool, device.device, device.shareID) == ("gpu.nvidia.com", "n", "d0", "")
    assert [(one.type, one.lastTransitionTime.seconds) for one in device.conditions] == [("x/lease", 1795773600)]
    bare = claim_of(changed)
    bare.status.ClearField("devices")
    assert sorted(bare.SerializeToString()) == sorted(claim_of(STORED).SerializeToString())


def test_a_condition_replaces_that_of_its_type_and_joins_the_others() -> None:
    data = with_devices(STORED, CLAIM, [entry("x/lease")])
    data = with_devices(data, CLAIM, [entry("Ready", "False", data={"nodes": ["/dev/d0"]})])
    data = with_devices(data, CLAIM, [entry("Ready"), entry("Ready", shareID="second")])
    first, second = claim_of(data).status.devices
    assert [(one.type, one.status) for one in first.conditions] == [("x/lease", "True"), ("Ready", "True")]
    assert json.loads(first.data.raw) == {"nodes": ["/dev/d0"]}
    assert second.shareID == "second"


@pytest.mark.parametrize(("claim", "version"), [(ClaimRef("another", "default", "spelt"), ""), (CLAIM, "1")])
def test_another_claim_of_the_name_or_a_changed_one_is_refused(claim: ClaimRef, version: str) -> None:
    with pytest.raises(ConflictError, match="changed meanwhile"):
        with_devices(STORED, claim, [entry("Ready")], version)


@pytest.mark.parametrize("data", [b"", b'{"kind": "Status"}', MAGIC + b"\xff\xff"])
def test_what_is_no_claim_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"instead of|pars"):
        with_devices(data, CLAIM, [entry("Ready")])
