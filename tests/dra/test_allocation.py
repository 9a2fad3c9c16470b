"""A LIST of claims as the API server gives it: which devices of this node's pool each claim has."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.dra.allocation import allocation_here
from drabridge.errors import PeerError
from drabridge.ledger.entries import ClaimRef, ClaimShare
from drabridge.ledger.events import ClaimDevices, DeviceUse


def _claim(name: str, *results: dict[str, Any]) -> dict[str, Any]:
    metadata = {"uid": f"uid-{name}", "namespace": "default", "name": name}
    return {"metadata": metadata, "status": {"allocation": {"devices": {"results": list(results)}}}}


def _result(device: str, **more: Any) -> dict[str, Any]:
    return {"request": "r", "driver": "a.example.com", "pool": "node-a", "device": device, **more}


def test_each_claim_comes_once_with_all_of_its_devices_of_the_pool() -> None:
    listed = (
        {"metadata": {"uid": "uid-new", "name": "new"}},
        {"metadata": {"uid": "uid-old", "name": "old"}, "status": {"devices": [], "allocation": None}},
        _claim("elsewhere", _result("gpu-0", pool="node-b"), _result("gpu-0", driver="b.example.com")),
        _claim("two", _result("gpu-0"), _result("gpu-1", adminAccess=True), _result("gpu-2", pool="node-b")),
        _claim("share", _result("gpu-0", shareID="s", consumedCapacity={"memory": "1Ki"})),
    )
    found = [allocation_here(claim, "a.example.com", "node-a") for claim in listed]
    assert tuple(filter(None, found)) == (
        ClaimDevices(ClaimRef("uid-two", "default", "two"), (DeviceUse("gpu-0"), DeviceUse("gpu-1", admin=True))),
        ClaimDevices(
            ClaimRef("uid-share", "default", "share"), (DeviceUse("gpu-0", ClaimShare("s", (("memory", 1024),))),)
        ),
    )


def test_a_claim_that_cannot_be_read_is_not_taken_for_one_without_devices() -> None:
    with pytest.raises(PeerError, match="default/odd"):
        allocation_here(_claim("odd", {"driver": "a.example.com", "pool": "node-a"}), "a.example.com", "node-a")
