"""What the image is built from: a base by its digest, packages by their hashes for both architectures, floors."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from deploy.helm import ROOT
from tests.deploy.wheels import CHOSEN, LOCKS
from tests.support.image import IMAGE_FOLDER

RENEW = "python -m tests.deploy.wheels"
DEPENDENCIES = [
    Requirement(one) for one in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
]


def test_the_base_is_named_by_its_digest() -> None:
    """A tag is whatever its registry says today."""
    (base,) = re.findall(r"^ARG BASE=(\S+)$", (IMAGE_FOLDER / "Containerfile").read_text(), re.MULTILINE)
    assert re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", base)


def hashes(lock: str) -> dict[tuple[str, str], set[str]]:
    """(package, version) -> SHA-256 of every file that may be installed for it."""
    text = (IMAGE_FOLDER / lock).read_text().replace("\\\n", " ")
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)((?: +--hash=sha256:[0-9a-f]{64})+)", text, re.MULTILINE)
    return {
        (canonicalize_name(name), version): set(re.findall(r"sha256:([0-9a-f]{64})", rest))
        for name, version, rest in found
    }


@pytest.mark.parametrize("lock", LOCKS)
def test_the_locks_have_what_an_aarch64_image_installs(lock: str) -> None:
    chosen, locked = json.loads(CHOSEN.read_text())[lock], hashes(lock)
    wheels = {}
    for name, sha256 in chosen.items():
        package, version, _, tags = parse_wheel_filename(name)
        assert all(tag.platform == "any" or tag.platform.endswith("aarch64") for tag in tags), name
        wheels[str(package), str(version)] = sha256
    assert wheels.keys() == locked.keys(), f"the lock has changed: {RENEW}"
    assert [name for name, sha256 in wheels.items() if sha256 not in locked[name]] == []


def test_the_image_carries_nothing_of_the_demo() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["demo"]
    wanted = {canonicalize_name(Requirement(one).name) for one in extra}
    assert wanted
    assert wanted.isdisjoint(name for name, _ in hashes("requirements.lock"))
    assert '"drabridge/sim"' in (IMAGE_FOLDER / "trim.py").read_text()


ELECTION = """
import json, sys
from kubernetes import client
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
LeaseLock("name", "namespace", "identity")
owner = {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}
metadata = {"name": "x", "ownerReferences": [owner], "managedFields": [{"manager": "m"}]}
lease = {"metadata": metadata, "spec": {"holderIdentity": "y"}}
client.ApiClient(client.Configuration()).deserialize(json.dumps(lease), "V1Lease", "application/json")
ours = ("kubernetes.client.api.", "kubernetes.client.models.")
print(*(name.rpartition(".")[2] for name in sys.modules if name.startswith(ours)))
"""


def test_the_image_keeps_what_an_election_imports() -> None:
    kept = runpy.run_path(str(IMAGE_FOLDER / "trim.py"))["KEPT"]
    done = subprocess.run([sys.executable, "-c", ELECTION], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert {"v1_lease", "coordination_v1_api"} <= set(done.stdout.split())
    assert {f"{name}.py" for name in done.stdout.split()} <= kept


@pytest.mark.parametrize("name", ["urllib3", "requests"])
def test_unpinned_dependencies_of_the_kubernetes_client_have_a_tested_floor(name: str) -> None:
    (requirement,) = (one for one in DEPENDENCIES if one.name == name)
    (floor,) = (one.version for one in requirement.specifier if one.operator == ">=")
    assert f"{name}=={floor}" in (ROOT / "tests/lowest.txt").read_text().splitlines()
