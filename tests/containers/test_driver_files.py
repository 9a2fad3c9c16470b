"""A container's own linker finds the libraries of a driver that are mounted for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

from drabridge.config.nvidia import Nvidia
from drabridge.containers.cdi_spec import CdiDevice, CdiSpec, ContainerEdits
from drabridge.inventory import nvidia_files
from tests.support import nvidia_h100
from tests.support.containers import CDI_DIRECTORY, rootfs, run
from tests.support.nvidia_h100 import VERSION
from tests.support.nvml import COMPILER

pytestmark = [
    pytest.mark.podman,
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("busybox") or COMPILER is None,
        reason="needs root, podman, runc, busybox-static and gcc (apt-get install podman runc busybox-static gcc)",
    ),
]

PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names) {
  for (int n = 1; n < count; n++) {
    int (*answer)(void) = 0;
    void *library = dlopen(names[n], RTLD_NOW);
    if (library) answer = (int (*)(void))dlsym(library, "answer");
    printf("%s %s\\n", names[n], answer ? (answer() == 42 ? "42" : "wrong") : dlerror());
  }
}
"""


def compiled(source: str, path: Path, *options: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert COMPILER is not None
    command = [COMPILER, "-x", "c", "-", "-o", str(path), *options]
    subprocess.run(command, input=source, text=True, check=True)


def needed(program: Path) -> set[str]:
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    return {word for word in listed.split() if word.startswith("/")}


async def test_a_program_in_a_container_of_debian_finds_libraries_by_itself(tmp_path: Path) -> None:
    host, where = tmp_path / "host", nvidia_h100.host_paths(tmp_path)
    for name, soname in ("cuda", "libcuda.so.1"), ("nvidia-glcore", f"libnvidia-glcore.so.{VERSION}"):
        path = host / f"opt/driver/lib64/lib{name}.so.{VERSION}"
        compiled("int answer(void) { return 42; }", path, "-shared", "-fPIC", f"-Wl,-soname,{soname}")
    nvidia_h100.link(host, "/opt/driver/lib64/libcuda.so.1", f"libcuda.so.{VERSION}")
    nvidia_h100.link(host, "/opt/driver/lib64/libcuda.so", "libcuda.so.1")
    found = nvidia_files.find(Nvidia(host_root=str(host), driver_root="/opt/driver"), where)
    mounts = tuple(
        type(one)(f"{host}{one.host_path}", one.container_path, one.read_only) for one in found.mounts
    )  # here the host's root is a folder

    root = rootfs(tmp_path / "rootfs")
    compiled(PROGRAM, root / "bin/find", "-ldl")
    for needs in needed(root / "bin/find"):  # the linker and its libc
        target = root / needs.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(needs, target)
    kind = f"t{uuid.uuid4().hex[:8]}.example.com/gpu"
    spec = CdiSpec(f"{kind.partition('/')[0]}.json", kind, (CdiDevice("gpu", ContainerEdits(mounts=mounts)),))
    CDI_DIRECTORY.mkdir(parents=True, exist_ok=True)
    file = CDI_DIRECTORY / spec.file_name
    file.write_bytes(spec.encode())
    names = ("libcuda.so.1", "libcuda.so", f"libnvidia-glcore.so.{VERSION}")
    try:
        done = await run(root, f"/bin/find {' '.join(names)}", [f"{kind}=gpu"])
    finally:
        file.unlink()
    assert done.stdout == "".join(f"{name} 42\n" for name in names), done.stdout + done.stderr
