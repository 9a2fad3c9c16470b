"""``python3 trim.py DIRECTORY``: remove from installed packages what the agent never imports.

Two thirds of the Kubernetes client are a second, asynchronous copy of itself with its HTTP library, and one module per
API and per type; reading a kubeconfig loads none of them, and the election of a coordinator few. The rest is
compiled, because a container with a read-only root could not keep bytecode.
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import sys
from pathlib import Path

WHOLE = (
    "kubernetes/aio",  # an asynchronous copy of the client, 68 MiB with its bytecode
    "drabridge/sim",  # the simulated cluster of `drabridge demo`, an extra that the image does not install
    *("aiohttp", "aiohttp_retry", "aiosignal", "aiohappyeyeballs", "frozenlist", "multidict", "propcache", "yarl"),
)
MODULES = ("kubernetes/client/api", "kubernetes/client/models")  # everything in these except KEPT is removed
# The election of a coordinator imports these, through the client library's lock.
KEPT = frozenset(
    f"{name}.py"
    for name in (
        "__init__",
        "coordination_v1_api",
        "v1_api_resource",
        "v1_api_resource_list",
        "v1_delete_options",
        "v1_lease",
        "v1_lease_list",
        "v1_lease_spec",
        "v1_list_meta",
        "v1_managed_fields_entry",
        "v1_object_meta",
        "v1_owner_reference",
        "v1_preconditions",
        "v1_shard_info",
        "v1_status",
        "v1_status_cause",
        "v1_status_details",
    )
)
SCRIPTS = ("drabridge", "podresources")
SHEBANG = "#!/usr/bin/env python3\n"


def trim(target: Path) -> None:
    """Remove what is listed, then compile the rest. Raises SystemExit for a name that is not installed any more."""
    for name in WHOLE:
        found = [target / name, *target.glob(f"{name}-*.dist-info")]
        if not any(path.exists() for path in found):
            raise SystemExit(f"{name} is not installed: take it out of the list in trim.py")
        for path in found:
            shutil.rmtree(path, ignore_errors=True)
    for name in MODULES:
        for path in (target / name).iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (*target.rglob("*.pyi"), *target.rglob("*.c"), *target.rglob("*.pyx"), *target.rglob("*.pxd")):
        path.unlink()
    for path in (*target.rglob("__pycache__"), *target.rglob("tests")):
        shutil.rmtree(path, ignore_errors=True)
    for script in set((target / "bin").iterdir()) - {target / "bin" / name for name in SCRIPTS}:
        script.unlink()
    for name in SCRIPTS:
        script = target / "bin" / name
        script.write_text(re.sub(r"\A#!.*\n", SHEBANG, script.read_text()))
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # no dates in it: an image is the same whenever it is built
    if not compileall.compile_dir(target, quiet=1, workers=0, invalidation_mode=mode):
        raise SystemExit("not everything could be compiled")


if __name__ == "__main__":
    trim(Path(sys.argv[1]))
