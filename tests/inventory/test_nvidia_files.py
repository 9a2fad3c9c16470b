"""Which files of NVIDIA's driver a container gets where there is no nvidia.yaml."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from drabridge.cli import devices
from drabridge.config.nvidia import Nvidia
from drabridge.inventory import driver_follower, nvidia_files
from drabridge.inventory.cdi_index import _Reader
from drabridge.inventory.cdi_names import other_drivers
from drabridge.inventory.devices import Device, NvidiaFiles, Presence, Snapshot
from drabridge.inventory.fallbacks import not_given, why_fallbacks
from drabridge.inventory.host import HostPaths
from drabridge.inventory.nvidia_files import LIBRARY_FOLDERS, MACHINE
from drabridge.inventory.observer import FallbackGiven
from tests.support import nvidia_h100 as h100
from tests.support.cdi_files import KIND, write_spec
from tests.support.hardware import config, watching
from tests.support.nvidia_h100 import ELF, ELF_32, VERSION, libraries, link, put
from tests.support.waiting import until

DEBIAN, RED_HAT = LIBRARY_FOLDERS


def only(snapshot: Snapshot) -> Device:
    (device,) = snapshot.devices
    return device


def found(tmp_path: Path, driver_root: str | None = None) -> NvidiaFiles:
    settings = Nvidia(host_root=str(tmp_path / "host"), driver_root=driver_root)
    return nvidia_files.find(settings, h100.host_paths(tmp_path))


def paths(files: NvidiaFiles) -> set[str]:
    return {mount.host_path for mount in files.mounts}


def inside(files: NvidiaFiles, host_path: str) -> set[str]:
    return {mount.container_path for mount in files.mounts if mount.host_path == host_path}


def test_on_an_h100_the_same_files_are_mounted_as_nvidia_yaml_mounts(tmp_path: Path) -> None:
    h100.h100(tmp_path / "host")
    files = found(tmp_path)
    # /dev/null is mounted where NVIDIA's own runtime could be asked for devices: here a variable tells it to add none
    assert paths(files) == {mount["hostPath"] for mount in h100.MOUNTS} - {"/dev/null"}
    assert {one.found for one in files.files} == {"ld.so.cache"}
    for target, path in h100.LINKS:  # every name that nvidia-cdi-hook makes leads to the same file
        name = path.removeprefix("/usr/local/nvidia/lib64/")
        hosts = {mount.host_path for mount in files.mounts if mount.container_path == f"{RED_HAT}/{name}"}
        real = (tmp_path / "host" / path.lstrip("/")).resolve()
        assert hosts == {f"/usr/local/nvidia/lib64/{real.name}"}, target
    assert inside(files, f"/usr/local/nvidia/lib64/libcuda.so.{VERSION}") == {
        f"{folder}/{name}" for folder in (DEBIAN, RED_HAT) for name in ("libcuda.so", "libcuda.so.1")
    }
    assert inside(files, "/usr/local/nvidia/bin/nvidia-smi") == {"/usr/bin/nvidia-smi"}
    firmware = f"/usr/local/nvidia/firmware/nvidia/{VERSION}/gsp_ga10x.bin"
    assert inside(files, firmware) == {firmware}
    assert all(mount.read_only for mount in files.mounts)


@pytest.mark.parametrize(
    ("folder", "root", "says"),
    [
        (f"/usr/lib/{MACHINE}-linux-gnu", "", "the linker's folders"),
        ("/usr/lib64", "/run/nvidia/driver", "/run/nvidia/driver"),
        ("/home/kubernetes/bin/nvidia/lib64", "", "GKE"),
        ("/usr/local/glibc/usr/lib", "", "Talos"),
        ("/opt/nvidia/current/usr/lib64", "", "Flatcar"),
        ("/usr/lib/nvidia/tesla", "", "Bottlerocket"),
        ("/usr/local/nvidia/lib64", "", "NVIDIA's folder"),
    ],
)
def test_a_driver_is_found_where_distributions_have_it(folder: str, root: str, says: str, tmp_path: Path) -> None:
    libraries(tmp_path / f"host{root}", folder)
    files = found(tmp_path)
    assert paths(files) == {f"{root}{folder}/lib{name}.so.{VERSION}" for name in ("cuda", "nvidia-ml")}
    assert {one.found for one in files.files} == {says}


def test_the_store_of_nixos_is_found_by_its_link(tmp_path: Path) -> None:
    libraries(tmp_path / "host", "/nix/store/abc-nvidia/lib")
    link(tmp_path / "host", "/nix/store/def-graphics/lib", "/nix/store/abc-nvidia/lib")
    link(tmp_path / "host", "/run/opengl-driver", "/nix/store/def-graphics")
    assert paths(found(tmp_path)) == {
        f"/nix/store/abc-nvidia/lib/lib{name}.so.{VERSION}" for name in ("cuda", "nvidia-ml")
    }


@pytest.mark.parametrize("folder", ["/opt/here/usr/lib64", "/opt/here/lib64", "/opt/here/lib", "/opt/here"])
def test_the_place_that_the_configuration_names_is_the_only_one(folder: str, tmp_path: Path) -> None:
    libraries(tmp_path / "host", "/usr/lib64")
    assert found(tmp_path, "/opt/here").problem.startswith(
        f"no library of NVIDIA's driver {VERSION} was found in /opt/here:"
    )
    libraries(tmp_path / "host", folder)
    put(tmp_path / "host", "/opt/here/bin/nvidia-smi")
    files = found(tmp_path, "/opt/here")
    assert {path for path in paths(files) if ".so" in path} == {
        f"{folder}/lib{name}.so.{VERSION}" for name in ("cuda", "nvidia-ml")
    }


def test_a_library_for_32_bits_or_of_another_version_is_not_given(tmp_path: Path) -> None:
    libraries(tmp_path / "host", "/usr/lib64", version="570.1.2")
    assert "580.159.04" in found(tmp_path).problem
    libraries(tmp_path / "host", "/usr/lib64")
    put(tmp_path / "host", f"/usr/lib64/libnvidia-old.so.{VERSION}", ELF_32)
    put(tmp_path / "host", f"/usr/lib64/libnvidia-mips.so.{VERSION}", ELF[:18] + b"\x08\x00")
    put(tmp_path / "host", "/usr/lib64/libz.so.1.3", ELF)
    assert paths(found(tmp_path)) == {f"/usr/lib64/lib{name}.so.{VERSION}" for name in ("cuda", "nvidia-ml")}


@pytest.mark.parametrize("made", ["a link", "a folder of somebody", "a folder of root's"])
def test_only_a_folder_of_roots_is_given_for_mps_as_anybody_may_write_to_tmp(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries(tmp_path / "host", "/usr/lib64")
    folder = tmp_path / "host/tmp/nvidia-mps"
    if made == "a link":
        put(tmp_path / "host", "/etc/shadow")
        link(tmp_path / "host", "/tmp/nvidia-mps", "/etc")
    else:
        folder.mkdir(parents=True)
    owner = os.getuid() + 1 if made == "a folder of somebody" else 0
    own = os.lstat

    def lstat(path: str) -> os.stat_result:
        found = own(path)
        return os.stat_result((*found[:4], owner, *found[5:])) if str(path) == str(folder) else found

    monkeypatch.setattr(os, "lstat", lstat)
    given = {mount for mount in found(tmp_path).mounts if not mount.read_only}
    assert {mount.host_path for mount in given} == ({"/tmp/nvidia-mps"} if made == "a folder of root's" else set())


def test_a_link_of_a_driver_root_does_not_lead_to_the_agents_own_files(tmp_path: Path) -> None:
    libraries(tmp_path / "host/run/nvidia/driver", "/opt/v")
    link(tmp_path / "host/run/nvidia/driver", f"/usr/lib64/libcuda.so.{VERSION}", f"/opt/v/libcuda.so.{VERSION}")
    link(tmp_path / "host/run/nvidia/driver", "/usr/lib64/libnvidia-x.so.1", "../../../../../../../etc/passwd")
    files = found(tmp_path)
    assert paths(files) == {f"/run/nvidia/driver/opt/v/lib{name}.so.{VERSION}" for name in ("cuda", "nvidia-ml")}


def test_what_the_host_has_for_programs_is_given_with_sockets_that_may_be_written(tmp_path: Path) -> None:
    libraries(tmp_path / "host", "/usr/lib64")
    put(tmp_path / "host", "/usr/bin/nvidia-smi")
    put(tmp_path / "host", "/usr/bin/nvidia-debugdump", mode=0o644)  # not executable
    put(tmp_path / "host", "/run/nvidia-persistenced/socket")
    files = found(tmp_path)
    assert "/usr/bin/nvidia-debugdump" not in paths(files)
    assert [mount.read_only for mount in files.mounts if "persistenced" in mount.host_path] == [False]
    assert files.hook == ()
    put(tmp_path / "host", "/usr/bin/nvidia-cdi-hook")
    assert found(tmp_path).hook == (), "it runs the host's ldconfig"
    put(tmp_path / "host", "/sbin/ldconfig")
    assert found(tmp_path).hook[:3] == ("/usr/bin/nvidia-cdi-hook", "nvidia-cdi-hook", "update-ldcache")


def test_a_driver_that_is_not_loaded_is_said(tmp_path: Path) -> None:
    libraries(tmp_path / "host", "/usr/lib64")
    nothing = HostPaths(proc=tmp_path, modules=tmp_path)
    assert (
        nvidia_files.find(Nvidia(host_root=str(tmp_path / "host")), nothing).problem == "NVIDIA's driver is not loaded"
    )
    put(tmp_path, "nvidia/version", f"{VERSION}\n".encode())
    assert nvidia_files.find(Nvidia(host_root=str(tmp_path / "host")), nothing).problem == ""


def test_nothing_is_read_again_until_something_has_changed(tmp_path: Path) -> None:
    h100.h100(tmp_path / "host")
    settings, where = Nvidia(host_root=str(tmp_path / "host")), h100.host_paths(tmp_path)
    first = nvidia_files.find(settings, where)
    assert nvidia_files.find(settings, where, first) is first
    put(tmp_path / "host", f"/usr/local/nvidia/lib64/libnvidia-new.so.{VERSION}", ELF)
    second = nvidia_files.find(settings, where, first)
    assert len(second.files) == len(first.files) + 1
    put(tmp_path / "host", "/run/nvidia-persistenced/socket")
    assert len(nvidia_files.find(settings, where, second).files) == len(second.files) + 1
    h100.load(where.proc, "999.1")
    assert nvidia_files.find(settings, where, second).problem


def test_the_linkers_cache_of_this_machine_is_read_as_ldconfig_reads_it() -> None:
    cache = Path("/etc/ld.so.cache").read_bytes()
    known = dict(nvidia_files.cached_libraries(cache, MACHINE))
    assert known["libc.so.6"].endswith("/libc.so.6")
    assert all(os.path.exists(path) for path in known.values())
    assert not list(nvidia_files.cached_libraries(h100.ld_cache(h100.CACHED, flags=0x0003), MACHINE)), "for 32 bits"
    assert list(
        nvidia_files.cached_libraries(b"ld.so-1.7.0\0" + (1).to_bytes(4, "little") + bytes(16) + cache, MACHINE)
    ) == list(nvidia_files.cached_libraries(cache, MACHINE)), "behind a table in the old format"


def test_a_damaged_cache_of_the_linker_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries(tmp_path / "host", "/usr/lib64")
    put(tmp_path / "host", "/etc/ld.so.cache", h100.ld_cache([("libcuda.so.1", "/a/b/c")] * 20_000))
    looks: list[str] = []
    resolve = nvidia_files._real_path

    def counted(root: str, path: str) -> str:
        looks.append(path)
        return resolve(root, path)

    monkeypatch.setattr(nvidia_files, "_real_path", counted)
    assert not found(tmp_path).problem
    assert len(looks) < 10_000


def test_the_hosts_own_root_may_be_named(tmp_path: Path) -> None:
    libraries(tmp_path / "host", "/usr/lib64")
    assert paths(found(tmp_path, "/")) == {f"/usr/lib64/lib{name}.so.{VERSION}" for name in ("cuda", "nvidia-ml")}


def test_an_nvidia_yaml_of_another_driver_is_told(tmp_path: Path) -> None:
    (tmp_path / "nvidia.yaml").write_bytes((h100.HERE / "nvidia.yaml").read_bytes())
    names = _Reader([tmp_path], "gpu.example.com").look(frozenset({KIND}))
    assert names.drivers == {f"{tmp_path}/nvidia.yaml": VERSION}
    assert other_drivers(names, [{"driver_version": VERSION}]) == other_drivers(names, [{}]) == []
    (said,) = other_drivers(names, [{}, {"driver_version": "999.1"}])
    assert f"nvidia.yaml is of NVIDIA's driver {VERSION}, and 999.1 is loaded" in said


async def test_a_gpu_without_libraries_is_not_given_out_until_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_follower, "LOOK_SECONDS", 0.05)
    where = h100.host_paths(tmp_path)
    nvidia = {"hostRoot": str(tmp_path / "host")}
    fallback = {"nodes": [{"path": "/dev/null"}], "driverFiles": "nvidia"}
    resource = {
        "name": "example.com/mem", "match": [{"subsystem": "mem", "sysname": "zero"}], "id": ["{sysname}"],
        "nodes": [], "cdiDevices": [f"{KIND}=GPU-{{sysname}}"], "cdiFallback": fallback,
    }  # fmt: skip
    mem = config(resource, resyncSeconds=3600, udevEvents="kernel", nvidia=nvidia)
    async with watching(mem, paths=where) as watched:
        device = only(watched.snapshots[0])
        assert device.presence is Presence.FAULTY
        assert not_given(watched.snapshots[0].devices).keys() == {"example.com/mem"}
        assert not why_fallbacks(watched.snapshots[0].devices), "it is not given"
        assert [fact.lacks[:10] for fact in watched.told(FallbackGiven)] == ["no library"]
        assert f"no library of NVIDIA's driver {VERSION} was found in ld.so.cache" in device.reason
        h100.h100(tmp_path / "host")
        device = only(await watched.snapshot_with(lambda s: only(s).presence is Presence.PRESENT))
        assert (not_given([device]), len(why_fallbacks([device]))) == ({}, 1)
        assert devices.row(device)["reason"] == ""
        shown = devices._driver_files(device, watched.inventory.driver.current)
        assert shown["driver"] == f"{VERSION}: 35 files by ld.so.cache"
        (cuda,) = [one for one in shown["driverFiles"] if "libcuda.so" in one["path"]]
        assert (cuda["path"], cuda["found"]) == (f"/usr/local/nvidia/lib64/libcuda.so.{VERSION}", "ld.so.cache")
        assert device.fallback is not None
        assert f"{DEBIAN}/libcuda.so.1" in {mount.container_path for mount in device.fallback.mounts}
        (where.cdi[0]).mkdir()
        write_spec(where.cdi[0] / "nvidia.yaml", "GPU-zero")
        assert only(await watched.snapshot_with(lambda s: bool(only(s).cdi_devices))).cdi_devices == (
            f"{KIND}=GPU-zero",
        )
        followers = {"CDI files", "driver files"}
        assert followers <= {task.get_name() for task in asyncio.all_tasks()}
        plain = {key: value for key, value in resource.items() if not key.startswith("cdi")}
        watched.inventory.reconfigure(config(plain, resyncSeconds=3600, udevEvents="kernel"))

        def stopped() -> bool:
            watched.inventory.refresh()  # the round after the one that took the new configuration stops them
            return not followers & {task.get_name() for task in asyncio.all_tasks()}

        await until(stopped, why="nothing to follow")
