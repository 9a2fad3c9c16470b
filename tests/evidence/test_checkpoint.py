"""Kubelet's checkpoint as a real 1.36.2 node wrote it, and with every kind of damage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.evidence.checkpoint import FILE_NAME, parse, read
from drabridge.ledger.entries import PodRef

OBSERVED = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"b","ResourceName":"y.example.com/gpu",'
    '"DeviceIDs":{"-1":["d2"],"0":["d1"],"1":["d1"]},"AllocResp":"CgA="}],'
    '"RegisteredDevices":{"y.example.com/gpu":["d0","d1","d2","d3"]}},"Checksum":3949000686}'
)


def test_a_device_on_two_numa_nodes_counts_once() -> None:
    holder = (PodRef(container="b", uid="u1"),)
    assert parse(OBSERVED) == {("y.example.com/gpu", "d1"): holder, ("y.example.com/gpu", "d2"): holder}


def test_null_means_nobody() -> None:
    assert parse('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"r":null}},"Checksum":1}') == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"Data":{}}',
        '{"Data":{"PodDeviceEntries":null}}',
        '{"Data":{"PodDeviceEntries":null,"RegisteredDevices":["d0"]}}',
        '{"Data":{"PodDeviceEntries":[{"PodUID":1}],"RegisteredDevices":{}}}',
        '{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":["d"]}],'
        '"RegisteredDevices":{}}}',
        OBSERVED[: len(OBSERVED) // 2],
        "[" * 100_000,
    ],
)
def test_an_unknown_format_is_unknown_not_empty(text: str) -> None:
    assert parse(text) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_reading_never_raises(value: object) -> None:
    parse(json.dumps({"Data": {"PodDeviceEntries": value, "RegisteredDevices": value}}))
    parse(json.dumps(value))


def test_a_checkpoint_of_kubelet_is_read(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    (tmp_path / FILE_NAME).write_text(OBSERVED)
    assert read(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(b"\xff\xfe" + OBSERVED.encode())
    assert read(tmp_path) is None
