"""Build what the guest boots from: Debian's kernel, a small root of Debian's packages, and this checkout.

Three files in the user's cache, each named by a digest of what it is made of, so that one that is there is right. They
are built under another name and renamed when they are whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = (
    *("busybox-static", "ca-certificates", "crun", "e2fsprogs", "iproute2", "kmod", "pciutils", "runc", "udev"),
    *("usbutils", "python3-minimal", "libpython3-stdlib", "procps"),
)
TESTS_NEED = ("pytest>=8.3", "pytest-asyncio>=1.0", "hypothesis>=6.115", "promql-parser>=0.4", "cel-python>=0.5,<1")
KERNEL = "linux-image-amd64"
BOOT_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
NO_USE = (  # of the kernel's 390 MiB: hardware that QEMU has not, or that the guest must not wait for
    *("drivers/gpu/drm/amd", "drivers/gpu/drm/i915", "drivers/gpu/drm/nouveau", "drivers/gpu/drm/radeon"),
    *("drivers/infiniband", "drivers/media/dvb-frontends", "drivers/net/wireless", "drivers/staging", "sound/soc"),
)
IN_CHECKOUT = ("deploy", "deviceplugin", "drabridge", "podresources", "tests", "pyproject.toml", "README.md")
WHERE = "/opt/drabridge"
"""The checkout in the guest."""
BUILD_SECONDS = 900.0
KEPT = 3
"""Images of a kind that stay in the cache; the oldest go."""

_INIT = """\
#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /root
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do /bin/busybox insmod "$module"; done
disk() {
  for try in $(/bin/busybox seq 100); do
    for name in /sys/block/*; do
      if [ "$(/bin/busybox cat "$name/serial" 2>/dev/null)" = "$1" ]; then
        echo "/dev/${name##*/}"
        return
      fi
    done
    /bin/busybox usleep 50000
  done
}
/bin/busybox mount -t ext4 -o noatime "$(disk lab-root)" /root
/bin/busybox mount -t ext4 -o ro "$(disk lab-project)" /root/opt/drabridge
/bin/busybox umount /proc /sys
/bin/busybox mount --move /dev /root/dev
exec /bin/busybox switch_root /root /opt/drabridge/tests/lab/inside/init
"""


class LabError(Exception):
    """What keeps the lab from working on this machine; its text says what to do."""


UBUNTU = "http://archive.ubuntu.com/ubuntu/pool/main/l/linux/linux-{}-6.8.0-31-generic_6.8.0-31.31_amd64.deb"
KERNELS = {
    "debian": {},  # the newest of its suite, by apt
    # What Ubuntu 24.04 came with: it has IOMMUFD and a node for each function bound to vfio-pci, unlike Debian's.
    "ubuntu": {
        "image-unsigned": "35115ceb5ddc1e73034a73d6b064b9c6d38c534f20279fd7229c510515b931d8",
        "modules": "3f17f2c279257eb50e40da44390bdf8272c440ca078831c348773d1314b5c2fe",
        "modules-extra": "8880451586278da0522a178ad54e940328447d80f47393a0e46185e1dd9dd879",
    },
}
"""The kernels that a guest may boot: what is downloaded for each, with its SHA-256."""


def chosen_kernel() -> str:
    """Return the kernel that DRABRIDGE_LAB_KERNEL names, Debian's by default. Raises LabError."""
    name = os.environ.get("DRABRIDGE_LAB_KERNEL") or "debian"
    if name not in KERNELS:
        raise LabError(f"DRABRIDGE_LAB_KERNEL={name}: no such kernel; there are {', '.join(KERNELS)}")
    return name


@dataclass(frozen=True)
class Image:
    kernel: Path
    initrd: Path
    root: Path
    project: Path


def cache() -> Path:
    """The folder of the user's cache that holds what was built."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "drabridge" / "lab"


def build() -> Image:
    """What the guest boots from, built where it is not there. Raises LabError."""
    missing = [name for name in ("debootstrap", "chroot", "mke2fs", "cpio") if not _program(name)]
    with _alone():
        system = cache() / f"system-{_system_digest()}"
        if not system.exists():
            if missing:
                raise LabError(f"{', '.join(missing)} missing: apt-get install debootstrap e2fsprogs cpio")
            if os.geteuid() != 0:
                raise LabError("building the guest's root needs root (debootstrap): run this once as root")
            _tell(f"building the guest's system once, in {system.parent} (three minutes)")
            with aside(system) as folder:
                _build_system(folder)
        project = cache() / f"project-{_project_digest()}.img"
        if not project.exists():
            with aside(project) as file:
                _build_project(file)
        for kind in ("system-*", "project-*"):
            forget_old(kind)
        os.utime(system)
        os.utime(project)
    return Image(system / "vmlinuz", system / "initrd.gz", system / "root.img", project)


# --- the system: kernel, initial file system, root -----------------------------------------------------------------


def _build_system(folder: Path) -> None:
    folder.mkdir()
    root = folder / "root"
    _command(["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), MIRROR])
    if packages := KERNELS[chosen_kernel()]:
        for name, digest in packages.items():
            (root / f"tmp/{name}.deb").write_bytes(_download(UBUNTU.format(name), digest))
    else:
        depends = _in(root, "apt-cache", "depends", KERNEL)
        kernel = next(line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line)
        _in(root, "sh", "-c", f"cd /tmp && apt-get download -q {kernel}")
    _in(root, "sh", "-ec", "cd /tmp; for package in *.deb; do dpkg -x $package kernel; rm $package; done")
    (version,) = [path.name for path in (root / "tmp/kernel/lib/modules").iterdir()]
    shutil.move(root / "tmp/kernel/lib/modules", root / "usr/lib/modules")  # dpkg -x would make /lib a folder
    (root / "tmp/kernel/boot" / f"vmlinuz-{version}").rename(folder / "vmlinuz")
    shutil.rmtree(root / "tmp/kernel")
    for name in NO_USE:
        shutil.rmtree(root / "usr/lib/modules" / version / "kernel" / name, ignore_errors=True)
    _in(root, "depmod", version)
    _install_packages(root)
    _build_initrd(root, version, folder / "initrd.gz")
    for path in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
        shutil.rmtree(root / path, ignore_errors=True)
    (root / WHERE[1:]).mkdir()
    (root / "etc/hostname").write_text("lab\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    make_disk(folder / "root.img", "1536M", root)
    shutil.rmtree(root)


def _download(url: str, digest: str) -> bytes:
    with urllib.request.urlopen(url, timeout=BUILD_SECONDS) as answer:
        content: bytes = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise LabError(f"{url} is not the file that it was: its SHA-256 is another")
    return content


def _install_packages(root: Path) -> None:
    """The project's dependencies and those of its tests, into the guest's Python."""
    target = root / "usr/local/lib/python3.11/dist-packages"
    requirements = _requirements()
    _command(
        [
            *(sys.executable, "-m", "pip", "install", "-q", "--target", str(target), "--only-binary", ":all:"),
            *("--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64"),
            *("--no-compile", *requirements),
        ]
    )
    _in(
        root,
        "python3",
        "-m",
        "compileall",
        "-q",
        "-j2",
        "--invalidation-mode",
        "unchecked-hash",
        f"/{target.relative_to(root)}",
    )


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *TESTS_NEED]


def _build_initrd(root: Path, version: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="lab-initrd") as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        (folder / "modules").mkdir()
        shutil.copy(root / "bin/busybox", folder / "bin/busybox")
        (folder / "init").write_text(_INIT)
        (folder / "init").chmod(0o755)
        files: dict[str, None] = {}
        for module in BOOT_MODULES:
            shown = _in(root, "modprobe", "-S", version, "--show-depends", module)
            files |= dict.fromkeys(line.split()[1] for line in shown.splitlines() if line.startswith("insmod "))
        for number, file in enumerate(files):
            shutil.copy(root / file[1:], folder / "modules" / f"{number:02}-{Path(file).name}")
        names = "\n".join(str(path.relative_to(folder)) for path in sorted(folder.rglob("*")))
        archive = subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            cwd=folder,
            input=names.encode(),
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        target.write_bytes(gzip.compress(archive, 6))


def _system_digest() -> str:
    made_of = [SUITE, PACKAGES, _requirements(), KERNEL, BOOT_MODULES, NO_USE, _INIT, KERNELS[chosen_kernel()]]
    return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


# --- the project ----------------------------------------------------------------------------------------------------


def _files() -> list[Path]:
    found = []
    for name in IN_CHECKOUT:
        path = ROOT / name
        found += [path] if path.is_file() else [one for one in sorted(path.rglob("*")) if one.is_file()]
    return [path for path in found if "__pycache__" not in path.parts]


def _build_project(target: Path) -> None:
    if not list((ROOT / "deviceplugin/wire").glob("*_pb2.py")):
        raise LabError("the stubs of kubelet's protocols are not generated: make protos")
    with tempfile.TemporaryDirectory(prefix="lab-project") as name:
        folder = Path(name)
        for path in _files():
            to = folder / path.relative_to(ROOT)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, to)
        if sys.implementation.cache_tag == "cpython-311":  # the guest's: it need not compile them, which takes a minute
            _command(
                [
                    *(sys.executable, "-m", "compileall", "-q", "-j2", "-s", name, "-p", WHERE),
                    *("--invalidation-mode", "unchecked-hash", name),
                ]
            )
        make_disk(target, "96M", folder)


def _project_digest() -> str:
    digest = hashlib.sha256()
    for path in _files():
        digest.update(f"{path.relative_to(ROOT)} {path.stat().st_mode & 0o111:o}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


# --- helpers --------------------------------------------------------------------------------------------------------


def make_disk(file: Path, size: str, folder: Path | None = None) -> None:
    """An ext4 file system in a file; with the files of a folder."""
    source = ["-d", str(folder)] if folder else []
    _command(["mke2fs", "-q", "-F", "-t", "ext4", "-E", "root_owner=0:0", *source, str(file), size])


def _in(root: Path, *words: str) -> str:
    return _command(["chroot", str(root), *words])


def _command(words: list[str]) -> str:
    environment = os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive", "PATH": _PATH}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, errors="replace", env=environment
    )
    if done.returncode != 0:
        raise LabError(f"{' '.join(words)[:200]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


_PATH = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/local/sbin:/usr/sbin:/sbin"


def _program(name: str) -> str | None:
    return shutil.which(name, path=_PATH)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One build at a time: a second one waits, and finds what the first made."""
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def aside(target: Path) -> Iterator[Path]:
    """A name to build under; it becomes ``target`` when the block ends well, and goes when it does not."""
    half = target.with_name(f"half-{target.name}")
    _remove(half)  # of a build that was killed
    try:
        yield half
        half.rename(target)
    finally:
        _remove(half)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def forget_old(pattern: str) -> None:
    for path in sorted(cache().glob(pattern), key=lambda one: one.stat().st_mtime, reverse=True)[KEPT:]:
        _remove(path)


def _tell(text: str) -> None:
    print(f"lab: {text}", file=sys.stderr, flush=True)
