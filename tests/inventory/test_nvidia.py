"""What NVIDIA's driver says of GPUs in its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.inventory import nvidia
from tests.support import machines


def test_the_driver_s_files_are_read(tmp_path: Path) -> None:
    facts = nvidia.read(machines.nvidia_proc(tmp_path, 2, excluded=[1]) / "driver/nvidia")
    assert dict(facts.of(machines.gpu_address(0))) == {
        "uuid": machines.GPU_UUID.format(0),
        "minor": "0",
        "model": "NVIDIA H100 80GB HBM3",
        "excluded": "false",
        "driver_version": "580.95.05",
    }
    assert facts.of(machines.gpu_address(1))["excluded"] == "true"
    assert facts.of("0000:00:00.0") == {}


def test_no_driver_is_no_error(tmp_path: Path) -> None:
    assert nvidia.read(tmp_path / "none") is nvidia.NOTHING


@pytest.mark.parametrize(
    "text", ["", "\0\xff", "GPU UUID: GPU-????????-????-????-????-????????????\nVideo BIOS: ??.??", "no colon\n:::\n"]
)
def test_unfinished_and_odd_information_gives_nothing(text: str) -> None:
    assert nvidia.parse_information(text) == {"excluded": "false"}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\n", "535.54.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n", "580.95.05"),
        ("something else", ""),
    ],
)
def test_driver_versions(text: str, version: str) -> None:
    assert nvidia.parse_version(text) == version
