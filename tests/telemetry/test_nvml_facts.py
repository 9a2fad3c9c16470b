"""What log and metrics say of NVML: each trouble once, every XID counted, a flood of one logged once."""

from __future__ import annotations

import logging

import pytest

from drabridge.inventory.observer import NvmlChanged, XidSeen
from drabridge.telemetry.metrics import Metrics
from drabridge.telemetry.sinks import Sinks


def test_a_flood_of_one_xid_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics(lambda: ())
    sinks = Sinks(metrics, lambda device: "")
    with caplog.at_level(logging.INFO, "drabridge"):
        for fact in (*[XidSeen("GPU-a", 31)] * 1000, XidSeen("GPU-b", 31), XidSeen("GPU-b", 79), XidSeen("", 123456)):
            sinks.inventory(fact)
        sinks.inventory(NvmlChanged("it hangs"))
        sinks.inventory(NvmlChanged(""))
    said = [(entry.message, getattr(entry, "gpu", ""), getattr(entry, "xid", 0)) for entry in caplog.records]
    assert said == [
        ("XID", "GPU-a", 31),
        ("XID", "GPU-b", 31),
        ("XID", "GPU-b", 79),
        ("XID", "", 123456),
        ("NVML is not asked, or does not answer", "", 0),
        ("NVML answers", "", 0),
    ]
    page = metrics.exposition().decode()
    for xid, count in (("31", 1001), ("79", 1), ("other", 1)):
        assert f'drabridge_nvml_xids_total{{xid="{xid}"}} {count:.1f}' in page
    assert "drabridge_nvml_failures_total 1.0" in page
