"""Which faults that NVML reports make a device faulty, by the rule of its resource; without a machine."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from drabridge.inventory.builder import DeviceBuilder
from drabridge.inventory.devices import Device
from drabridge.inventory.health_rules import APPLICATION_XIDS
from drabridge.inventory.nvidia import Failure, FailureKind, NvidiaFacts
from tests.support import machines
from tests.support.hardware import MemoryHost, config, record

RESOURCE = {"name": "nvidia.com/gpu", "match": [{"subsystem": "pci"}], "id": ["{nvidia.uuid}"], "nodes": []}
PATHS = [f"/sys{machines.gpu_path(index)}" for index in range(2)]
LOST = Failure(FailureKind.LOST, "lost")
RESET = Failure(FailureKind.RESET, "reset")
ECC = Failure(FailureKind.ECC, "ecc")
HOT = Failure(FailureKind.THERMAL, "hot")


def xid(number: int) -> Failure:
    return Failure(FailureKind.XID, f"XID {number}", number)


def devices(rules: list[dict[str, Any]], failures: tuple[Failure, ...]) -> list[Device]:
    """Two GPUs, of which the first has failures."""
    gpus = {
        machines.gpu_address(index): MappingProxyType({"uuid": machines.GPU_UUID.format(index)}) for index in range(2)
    }
    facts = NvidiaFacts(MappingProxyType(gpus), (), MappingProxyType({machines.GPU_UUID.format(0): failures}))
    builder = DeviceBuilder(config(RESOURCE | {"health": rules}), MemoryHost())
    records = {path: record(path, "pci") for path in PATHS}
    built = builder.build(records, facts, known_ids={}, held=lambda name: False)
    return list(built.devices)


@pytest.mark.parametrize(
    ("rule", "failures", "reason"),
    [
        (True, (xid(79),), "XID 79"),
        (True, (xid(79), xid(48), xid(79)), "XID 79; XID 48"),
        (True, tuple(map(xid, APPLICATION_XIDS)), ""),
        (True, (xid(94), xid(109)), "XID 109"),  # contained: the application alone; a reset is needed
        (True, (LOST, RESET, ECC, HOT), "lost; reset; ecc; hot"),
        ({}, (xid(79), ECC), "XID 79; ecc"),
        ({"xid": False}, (xid(79), ECC), "ecc"),
        ({"ecc": False}, (xid(79), ECC), "XID 79"),
        ({"thermal": False}, (HOT, ECC), "ecc"),
        ({"xid": False, "ecc": False, "thermal": False}, (xid(79), ECC, HOT, LOST, RESET), "lost; reset"),
        ({"ignoreXids": [79, 48]}, (xid(79), xid(48), xid(95)), "XID 95"),
        ({"alsoXids": [31]}, (xid(31), xid(13)), "XID 31"),
        ({"alsoXids": [31], "ignoreXids": [31]}, (xid(31),), ""),
    ],
)
def test_the_rule_says_which_faults_count(rule: Any, failures: tuple[Failure, ...], reason: str) -> None:
    ill, well = devices([{"nvml": rule}], failures)
    assert (ill.reason, well.reason) == (reason, "")


@pytest.mark.parametrize(
    ("failures", "fault"),
    [
        ((HOT, ECC, xid(79), RESET, LOST), "lost"),
        ((HOT, ECC, xid(79), RESET), "reset"),
        ((HOT, ECC, xid(79), xid(48)), "xid-79"),
        ((HOT, ECC), "ecc"),
        ((HOT,), "thermal"),
        ((xid(31),), ""),
    ],
)
def test_the_worst_fault_is_named(failures: tuple[Failure, ...], fault: str) -> None:
    ill, well = devices([{"driverBound": "*"}, {"nvml": True}], failures)
    assert (ill.fault, well.fault) == (fault, "")


def test_without_the_rule_no_fault_counts() -> None:
    assert [device.reason for device in devices([{"nodeExists": True}], (LOST, xid(79)))] == ["", ""]
