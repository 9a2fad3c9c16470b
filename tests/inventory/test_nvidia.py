"""What NVIDIA's driver and NVML say of GPUs, and that their failures take nothing away."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from drabridge.inventory import nvidia
from tests.support import machines


def test_the_driver_s_files_are_read(tmp_path: Path) -> None:
    facts = nvidia.read(machines.nvidia_proc(tmp_path, 2, excluded=[1]) / "driver/nvidia", nvml=False)
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


class NVMLError(Exception):
    pass


def nvml_library(**more: Any) -> types.ModuleType:
    """A pynvml of one GPU. NVML itself needs the hardware; what is tested is how its answers are read."""
    library = types.ModuleType("pynvml")
    answers: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_DEVICE_ARCH_HOPPER": 9,
        "NVML_BRAND_TESLA": 2,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: machines.GPU_UUID.format(0).encode(),
        "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=80 << 30),
        "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
        "nvmlDeviceGetArchitecture": lambda handle: 9,
        "nvmlDeviceGetBrand": lambda handle: 99,
        "nvmlSystemGetCudaDriverVersion_v2": lambda: 12040,
    }
    for name, value in (answers | more).items():
        setattr(library, name, value)
    return library


def fails(*_: object) -> None:
    raise NVMLError


@pytest.mark.parametrize(
    ("more", "known"),
    [
        ({}, {"memory_mib": "81920", "architecture": "Hopper", "compute_capability": "9.0", "cuda_version": "12.4"}),
        ({"nvmlDeviceGetMemoryInfo": fails, "nvmlDeviceGetArchitecture": fails}, {"compute_capability": "9.0"}),
        ({"nvmlInit": fails}, {}),
        ({"nvmlDeviceGetHandleByIndex": fails}, {}),
    ],
)
def test_nvml_adds_what_it_knows_and_its_failures_take_nothing_away(
    more: dict[str, Any], known: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml_library(**more))
    facts = nvidia.read(machines.nvidia_proc(tmp_path, 1) / "driver/nvidia").of(machines.gpu_address(0))
    assert facts["uuid"] == machines.GPU_UUID.format(0)
    assert known.items() <= facts.items()
    assert "brand" not in facts, "a constant that the library has no name for"
