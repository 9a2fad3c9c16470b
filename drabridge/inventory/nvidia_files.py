"""Find the files of NVIDIA's driver that a container needs: libraries, programs, firmware, sockets.

They are the files that ``nvidia-ctk cdi generate`` lists (NVIDIA/nvidia-container-toolkit, pkg/nvcdi/driver-nvml.go),
all of the loaded driver's version. The agent runs no program of the host to place them. Each library is mounted, under
the names that programs ask for, into the two folders that the linkers of Debian's and of Red Hat's family search by
default; each program is mounted into /usr/bin. If the host has ``nvidia-cdi-hook``, the runtime also runs it to write
the container's ld.so.cache, for programs that ask ``ldconfig -p``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from drabridge.config.nvidia import Nvidia
from drabridge.inventory.devices import Mount, NvidiaFile, NvidiaFiles
from drabridge.inventory.host import HostPaths
from drabridge.inventory.nvidia import parse_version

MACHINE = os.uname().machine
_TRIPLET = f"{MACHINE}-linux-gnu"
LIBRARY_FOLDERS = (f"/usr/lib/{_TRIPLET}", "/usr/lib64")  # in a container: for Debian's family, for Red Hat's
_ELF_MACHINE = {"x86_64": 62, "aarch64": 183}.get(MACHINE)
_LINKS_MAX = 40  # as in the kernel
_ENTRIES_MAX = 100_000  # in a folder
_CACHED_MAX = 4096  # libraries in the linker's cache; a driver has 60

_STANDARD = ("/usr/lib64", f"/usr/lib/{_TRIPLET}", f"/usr/lib/{_TRIPLET}/nvidia/current", "/usr/lib", "/lib64",
             f"/lib/{_TRIPLET}", "/lib64/nvidia", "/lib")  # fmt: skip
_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
OPERATOR_ROOT = "/run/nvidia/driver"
DISTRIBUTIONS = {
    "NVIDIA's folder": ("/usr/local/nvidia/lib64", "/usr/local/nvidia/bin"),
    "GKE": ("/home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia/bin"),
    "Talos": ("/usr/local/glibc/usr/lib", "/usr/local/bin"),
    "Talos, older": ("/usr/local/glibc/lib", "/usr/local/bin"),
    "Flatcar": ("/opt/nvidia/current/usr/lib64", "/opt/nvidia/current/usr/bin"),
    "Bottlerocket": ("/usr/lib/nvidia/tesla", "/usr/libexec/nvidia/tesla/bin"),
    "NixOS": ("/run/opengl-driver/lib", "/run/current-system/sw/bin"),
}
"""Where distributions have libraries and programs, outside the linker's folders."""

_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control",
             "nvidia-cuda-mps-server", "nvidia-imex", "nvidia-imex-ctl")  # fmt: skip
_FIRMWARE = ("/lib/firmware/updates", "/lib/firmware")
_SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
_MPS = "/tmp/nvidia-mps"  # anybody may create it, also as a link or with other programs' sockets
_CONFIGS = {  # path in a container, where loaders look -> path on the host, below /etc or /usr/share
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": "glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/nvidia/nvoptix.bin": "nvidia/nvoptix.bin",
    "/etc/OpenCL/vendors/nvidia.icd": "OpenCL/vendors/nvidia.icd",
    "/etc/vulkan/icd.d/nvidia_icd.json": "vulkan/icd.d/nvidia_icd.json",
    "/etc/vulkan/icd.d/nvidia_layers.json": "vulkan/icd.d/nvidia_layers.json",
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json": "vulkan/implicit_layer.d/nvidia_layers.json",
}
_HOOKS = ("/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook", "/usr/local/bin/nvidia-cdi-hook")
_LDCONFIG = ("/sbin/ldconfig", "/sbin/ldconfig.real")  # programs that the hook runs
_SUBFOLDERS = ("", "vdpau/", "gbm/")  # in a folder of libraries
_VERSION = re.compile(r"\d+(\.\d+)+", re.ASCII)
_NAMES = re.compile(r"nv|cuda|GL")  # one is in every name of the driver's; a folder may have thousands of other files


def find(settings: Nvidia, paths: HostPaths, before: NvidiaFiles | None = None) -> NvidiaFiles:
    """Return the driver's files; ``before`` if nothing changed since. Blocks: run it in a thread. Raises nothing."""
    search = _Search(settings.host_root.rstrip("/"), settings.driver_root, paths)
    if before is None or before.version != search.version or not before.looked_at:
        return search.run()
    return before if all(_stamp(path) == stamp for path, stamp in before.looked_at) else search.run()


class _Place(Struct, frozen=True):
    """Where a driver may be. ``root``: a folder of the host that paths and links start from; ``found``: for people."""

    found: str
    root: str
    libraries: tuple[str, ...]
    programs: tuple[str, ...] = ()
    cache: bool = False


_HOST = _Place("", "", ())


def _places(driver_root: str | None) -> Iterator[_Place]:
    if driver_root:
        root = driver_root.rstrip("/")
        flat = tuple(f"{root}/{name}" for name in ("lib64", "lib", ""))
        yield _Place("nvidia.driverRoot", root, _STANDARD, _PATH, cache=True)
        yield _Place("nvidia.driverRoot", "", flat, (f"{root}/bin",))
        return
    yield _Place("ld.so.cache", "", (), _PATH, cache=True)
    yield _Place("the linker's folders", "", _STANDARD, _PATH)
    yield _Place(OPERATOR_ROOT, OPERATOR_ROOT, _STANDARD, _PATH, cache=True)
    for name, (libraries, programs) in DISTRIBUTIONS.items():
        yield _Place(name, "", (libraries,), (programs, *_PATH))


class _Search:
    def __init__(self, host: str, driver_root: str | None, paths: HostPaths) -> None:
        self._host = host
        self._driver_root = driver_root
        self._paths = paths
        self._looked_at: dict[str, tuple[int, ...]] = {}
        self.version = self._version()

    def run(self) -> NvidiaFiles:
        version = self.version
        if not version:
            return self._nothing("NVIDIA's driver is not loaded")
        for place in _places(self._driver_root):
            if place.root:
                self._look_at(self._host + place.root)
                place = replace(place, root=self._resolve(_HOST, place.root) or place.root)
            if files := list(self._libraries(place, version)):
                folders = tuple(dict.fromkeys(os.path.dirname(file.path) for file in files))
                files += self._programs(place, folders)
                files += self._firmware(place, version)
                files += self._others(place)
                mounts = [Mount(one.path, inside, one.read_only) for one in files for inside in one.container_paths]
                looked_at = tuple(self._looked_at.items())
                return NvidiaFiles(version, tuple(files), self._hook(), looked_at=looked_at, mounts=tuple(mounts))
        where = self._driver_root or "ld.so.cache, /run/nvidia/driver and the folders of known distributions"
        return self._nothing(
            f"no library of NVIDIA's driver {version} was found in {where}: run nvidia-ctk cdi generate "
            "--output=/etc/cdi/nvidia.yaml, or say in nvidia.driverRoot where the driver is, and in a pod in "
            "nvidia.hostRoot where the host's files are"
        )

    def _nothing(self, problem: str) -> NvidiaFiles:
        return NvidiaFiles(self.version, problem=problem, looked_at=tuple(self._looked_at.items()))

    def _version(self) -> str:
        """Return the version of the driver that is loaded."""
        text = self._read(str(self._paths.proc / "driver/nvidia/version"), 4096).decode(errors="replace")
        version = parse_version(text) or self._module("nvidia/version")
        return version if _VERSION.fullmatch(version) else ""

    def _module(self, name: str) -> str:
        return self._read(str(self._paths.modules / name), 4096).decode(errors="replace").strip()

    # --- libraries ----------------------------------------------------------------------------------------------------

    def _libraries(self, place: _Place, version: str) -> Iterator[NvidiaFile]:
        """Yield the libraries of the folders that have ``libcuda.so.VERSION``; none if no folder has it."""
        cached = list(self._cached(place)) if place.cache else []
        folders: dict[str, None] = {}
        for path in [path for _, path in cached] + [f"{folder}/libcuda.so.{version}" for folder in place.libraries]:
            self._look(place, os.path.dirname(path))
            found = self._resolve(place, path)
            if os.path.basename(found) == f"libcuda.so.{version}":
                folders[os.path.dirname(found)] = None
        names: dict[str, set[str]] = {}  # real path below the place's root -> names, below a folder of libraries
        for folder in folders:
            for sub in _SUBFOLDERS:
                self._look(place, f"{folder}/{sub}")
                for name in filter(_NAMES.search, self._list(place, f"{folder}/{sub}")):
                    if ".so" in name and (found := self._resolve(place, f"{folder}/{sub}{name}")):
                        names.setdefault(found, set()).add(sub + name)
        for name, path in cached:
            if (found := self._resolve(place, path)) in names:
                names[found].add(name)
        seen: set[str] = set()
        for path in sorted(names):
            own = os.path.basename(path)
            if own in seen or not (own.endswith(f".so.{version}") or fnmatchcase(own, "libnvidia-nvvm70.so.*")):
                continue
            if not self._is_library(place, path):
                continue
            seen.add(own)
            sonames = sorted(name for name in names[path] if os.path.basename(name) != own) or sorted(names[path])
            inside = tuple(f"{folder}/{name}" for name in sonames for folder in LIBRARY_FOLDERS)
            yield NvidiaFile(place.root + path, inside, place.found)

    def _cached(self, place: _Place) -> Iterator[tuple[str, str]]:
        self._look(place, "/etc/ld.so.cache")
        cache = self._host + place.root + self._resolve(place, "/etc/ld.so.cache")
        try:
            found = cached_libraries(self._read(cache, CACHE_BYTES_MAX), MACHINE)
            yield from islice((one for one in found if _NAMES.search(one[0])), _CACHED_MAX)
        except ValueError:
            return

    def _is_library(self, place: _Place, path: str) -> bool:
        head = self._read(self._host + place.root + path, 20)
        return head[:6] == b"\x7fELF\x02\x01" and int.from_bytes(head[18:20], "little") == _ELF_MACHINE

    # --- the rest -----------------------------------------------------------------------------------------------------

    def _programs(self, place: _Place, libraries: tuple[str, ...]) -> Iterator[NvidiaFile]:
        beside = tuple(f"{os.path.dirname(folder).removeprefix(place.root)}/bin" for folder in libraries)
        for name in _PROGRAMS:
            for folder in (*beside, *place.programs):
                self._look(place, folder)
                found = self._resolve(place, f"{folder}/{name}")
                if found and self._mode(place, found) & 0o111 and stat.S_ISREG(self._mode(place, found)):
                    yield NvidiaFile(place.root + found, (f"/usr/bin/{name}",), place.found)
                    break

    def _firmware(self, place: _Place, version: str) -> Iterator[NvidiaFile]:
        own = self._module("firmware_class/parameters/path")
        release = os.uname().release
        folders = [own] if own.startswith("/") else []
        folders += [each for folder in _FIRMWARE for each in (f"{folder}/{release}", folder)]
        seen = set()
        for folder in (f"{each}/nvidia/{version}" for each in folders):
            for name in sorted(self._list(place, folder)):
                if fnmatchcase(name, "gsp*.bin") and (found := self._resolve(place, f"{folder}/{name}")) not in seen:
                    seen.add(found)
                    yield NvidiaFile(place.root + found, (f"{folder}/{name}",), place.found)

    def _others(self, place: _Place) -> Iterator[NvidiaFile]:
        for inside, name in _CONFIGS.items():
            for folder in ("/etc", "/usr/local/share", "/usr/share"):
                if found := self._resolve(place, f"{folder}/{name}"):
                    yield NvidiaFile(place.root + found, (inside,), place.found)
                    break
        for path in (*_SOCKETS, _MPS):
            self._look(place, path)
            found = self._resolve(place, path)
            if found and (path != _MPS or (found == path and self._is_roots_folder(place, path))):
                yield NvidiaFile(place.root + found, (path,), place.found, read_only=False)

    def _hook(self) -> tuple[str, ...]:
        """Return the hook that writes ld.so.cache in the container, with arguments; () if the host cannot run it."""
        for path in _HOOKS:
            self._look_at(self._host + path)
        program = next((path for path in _HOOKS if self._resolve(_HOST, path)), "")
        if not program or not any(self._resolve(_HOST, path) for path in _LDCONFIG):
            return ()
        folders = [word for folder in LIBRARY_FOLDERS for word in ("--folder", folder)]
        return (program, "nvidia-cdi-hook", "update-ldcache", *folders)

    # --- the host's files ---------------------------------------------------------------------------------------------

    def _resolve(self, place: _Place, path: str) -> str:
        """Return the real path of a path below the place's root, which links never leave; "" if it leads nowhere."""
        try:
            return _real_path(self._host + place.root, path)
        except OSError:
            return ""

    def _look(self, place: _Place, path: str) -> None:
        self._look_at(self._host + place.root + path)

    def _look_at(self, path: str) -> None:
        self._looked_at.setdefault(path, _stamp(path))

    def _list(self, place: _Place, path: str) -> list[str]:
        try:
            folder = _real_path(self._host + place.root, path)
            with os.scandir(self._host + place.root + folder) as entries:
                return [entry.name for entry, _ in zip(entries, range(_ENTRIES_MAX), strict=False)]
        except OSError:
            return []

    def _is_roots_folder(self, place: _Place, path: str) -> bool:
        try:
            status = os.lstat(self._host + place.root + path)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and status.st_uid == 0

    def _mode(self, place: _Place, path: str) -> int:
        try:
            return os.lstat(self._host + place.root + path).st_mode
        except OSError:
            return 0

    @staticmethod
    def _read(path: str, most: int) -> bytes:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                return b""
            with open(path, "rb") as file:
                return file.read(most)
        except OSError:
            return b""


def _real_path(root: str, path: str) -> str:
    """Return the path below ``root`` that ``path`` leads to, without links. Raises OSError."""
    left, done, links = path.split("/")[::-1], list[str](), 0
    while left:
        part = left.pop()
        if part == "..":
            done = done[:-1]
        elif part not in ("", "."):
            here = "/".join(("", *done, part))
            try:
                target = os.readlink(root + here)
            except OSError as error:
                if error.errno != errno.EINVAL:  # it is no link
                    raise
                done.append(part)
                continue
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), here)
            done = [] if target.startswith("/") else done
            left += target.split("/")[::-1]
    return "/" + "/".join(done)


def _stamp(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_mtime_ns


# --- ld.so.cache ------------------------------------------------------------------------------------------------------
# The new format (glibc, sysdeps/generic/dl-cache.h, cache_file_new). A table in the old format may precede it.

CACHE_BYTES_MAX = 8 << 20  # ldconfig makes 60 to 500 KiB
_OLD, _NEW = b"ld.so-1.7.0", b"glibc-ld.so.cache1.1"
_OLD_HEADER, _OLD_ENTRY = 16, 12
_NEW_HEADER, _ENTRY = 48, struct.Struct("<iIIIQ")  # flags, soname, path, kernel, hardware
_TEXT_MAX = 4096
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}  # an ELF library of libc6, for 64 bits


def cached_libraries(data: bytes, machine: str) -> Iterator[tuple[str, str]]:
    """Yield name and path of each 64-bit library for a machine (``x86_64``), in the linker's order.

    Raises ValueError if the data is no such file. Entries that point outside of it are left out.
    """
    if data.startswith(_OLD):
        if len(data) < _OLD_HEADER:
            raise ValueError("it ends in its header")
        end = _OLD_HEADER + int.from_bytes(data[12:16], "little") * _OLD_ENTRY
        data = data[-(-end // 8) * 8 :]
    if not data.startswith(_NEW) or len(data) < _NEW_HEADER:
        raise ValueError("it is no ld.so.cache of glibc 2.2 or later")
    count = int.from_bytes(data[20:24], "little")
    if count > (len(data) - _NEW_HEADER) // _ENTRY.size:
        raise ValueError("it ends in its table")
    wanted = _FLAGS.get(machine)
    for number in range(count):
        flags, name, path, _, _ = _ENTRY.unpack_from(data, _NEW_HEADER + number * _ENTRY.size)
        if flags == wanted and (key := _text(data, name)) and (value := _text(data, path)).startswith("/"):
            yield key, value


def _text(data: bytes, start: int) -> str:
    end = data.find(b"\0", start, start + _TEXT_MAX)
    return data[start:end].decode("utf-8", "surrogateescape") if end > start else ""
