"""What AMD's compute driver says of GPUs and partitions, whatever the files hold; the trees are in tests/support."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.inventory import amdgpu

GPU = "simd_count 80\nsimd_per_cu 4\nlocation_id 2561\ndomain 1\ndrm_render_minor 129\nunique_id 5\n"


def node(root: Path, number: str, text: str | bytes, memory: str = "") -> None:
    folder = root / number
    (folder / "mem_banks/0").mkdir(parents=True)
    (folder / "properties").write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "mem_banks/0/properties").write_text(memory)


def test_a_node_is_found_by_its_render_node_with_its_gpu(tmp_path: Path) -> None:
    node(tmp_path, "0", "cpu_cores_count 64\nlocation_id 0\ndrm_render_minor 0\n")
    node(tmp_path, "3", GPU, "heap_type 1\nsize_in_bytes 51539607552\n")
    ((minor, found),) = amdgpu.read_topology(tmp_path).items()
    assert (minor, found.number, found.gpu, found.vram_bytes) == (129, "3", "0001:0a:00.0", "51539607552")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "drm_render_minor\n",
        "drm_render_minor 129\n",
        GPU.replace("2561", "-1"),
        GPU.replace("2561", "9" * 40),
        GPU.replace("129", "٣"),
        b"\xff\x00" * 9000,
        "drm_render_minor 129\nlocation_id 0x\n" + "x" * 100_000,
    ],
)
def test_nodes_that_say_something_else_are_left_out(tmp_path: Path, text: str | bytes) -> None:
    node(tmp_path, "1", text)
    node(tmp_path, "2", GPU.replace("129", "130"))
    (tmp_path / "3").mkdir()
    (tmp_path / "4").touch()
    assert set(amdgpu.read_topology(tmp_path)) == {130}


def test_without_the_driver_there_is_nothing(tmp_path: Path) -> None:
    assert amdgpu.read_topology(tmp_path / "none") == {}


@pytest.mark.parametrize("name", ["amdgpu_xcp_3", "amdgpu_xcp.3"])  # the latter in older kernels
def test_a_partition_has_the_gpu_that_its_render_node_computes_on(tmp_path: Path, name: str) -> None:
    node(tmp_path / "nodes", "3", GPU)
    topology = amdgpu.read_topology(tmp_path / "nodes")
    for minor in (129, 130):
        (tmp_path / str(minor) / name / "drm" / f"renderD{minor}").mkdir(parents=True)
    used, unused = str(tmp_path / "129" / name), str(tmp_path / "130" / name)
    assert amdgpu.is_partition(name)
    assert amdgpu.gpu_of_partition(used, topology) == "0001:0a:00.0"
    assert amdgpu.gpu_of_partition(unused, topology) == ""
    found = amdgpu.properties_of("renderD129", used, topology)
    assert found == {
        "AMDGPU_DEVICE": name,
        "AMDGPU_KFD_NODE": "3",
        "AMDGPU_UNIQUE_ID": "5",
        "AMDGPU_COMPUTE_UNITS": "20",
        "AMDGPU_SIMD_UNITS": "80",
    }
    assert amdgpu.properties_of("renderD130", unused, topology) == {}
    assert amdgpu.properties_of("card1", used, topology) == {}


def test_a_gpu_that_the_compute_driver_does_not_know_is_a_device_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "0000:03:00.0/drm/card7").mkdir(parents=True)
    found = amdgpu.properties_of("renderD128", str(tmp_path / "0000:03:00.0"), {})
    assert found == {"AMDGPU_DEVICE": "0000:03:00.0", "AMDGPU_CARD": "7"}


@pytest.mark.parametrize("units", ["0", "-4", "x"])
def test_compute_units_that_cannot_be_computed_are_left_out(tmp_path: Path, units: str) -> None:
    node(tmp_path, "3", GPU.replace("simd_per_cu 4", f"simd_per_cu {units}"))
    found = amdgpu.properties_of("renderD129", "/nonexistent/0001:0a:00.0", amdgpu.read_topology(tmp_path))
    assert "AMDGPU_COMPUTE_UNITS" not in found


@pytest.mark.parametrize(("said", "hive"), [("hive_id 7203405203", "7203405203"), ("hive_id 0", None), ("", None)])
def test_gpus_that_xgmi_links_name_one_hive(tmp_path: Path, said: str, hive: str | None) -> None:
    node(tmp_path, "3", f"{GPU}{said}\n")
    found = amdgpu.properties_of("renderD129", "/nonexistent/0001:0a:00.0", amdgpu.read_topology(tmp_path))
    assert found.get("AMDGPU_XGMI_HIVE") == hive
