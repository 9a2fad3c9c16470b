"""The status document tells which CDI devices are handed out, and which resources get their fallback."""

from __future__ import annotations

from drabridge.inventory.devices import Device, Fallback, Snapshot
from drabridge.ledger.entries import Entry, Ledger, LedgerDevice
from drabridge.ledger.policy import LedgerPolicy
from drabridge.status.document import AgentInfo, Document, Findings, NodeDevices, document

GPU = "nvidia.com/gpu"


def of(*devices: Device) -> Document:
    ledger = Ledger.of([Entry(LedgerDevice.of(device)) for device in devices])
    known = NodeDevices(ledger, Snapshot(1, devices), LedgerPolicy())
    return document(AgentInfo("n", "gpu.example.com", "1", 0.0), known, Findings(), now=1.0)


def test_cdi_devices_are_shown_by_name() -> None:
    found = of(Device("gpu-0", "GPU-0", GPU, cdi_devices=("nvidia.com/gpu=GPU-0",)), Device("x", "X", "a.com/x"))
    assert {row["name"]: row["cdiDevices"] for row in found["devices"]} == {"gpu-0": ["nvidia.com/gpu=GPU-0"], "x": []}
    assert found["notes"] == []


def test_a_fallback_is_said_once_for_each_resource() -> None:
    why = "CDI device nvidia.com/gpu=GPU-0 is in no file of /etc/cdi"
    two = [Device(f"gpu-{n}", f"GPU-{n}", GPU, fallback=Fallback(), cdi_missing=why) for n in range(2)]
    assert of(*two)["notes"] == [f"nvidia.com/gpu: cdiFallback is given, because {why}"]
