"""A release is pushed to a registry, and image and chart come back from there."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import registry
from deploy.helm import ROOT
from deploy.release import artefacts
from drabridge import __version__
from tests.support import docker_registry
from tests.support.servers import free_port
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.podman, pytest.mark.root, pytest.mark.slow]
TYPES = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
OCI = "application/vnd.oci.image.manifest.v1+json"
PULL = """
import sys, helm_python
with helm_python.RegistryClient(plain_http=True) as client:
    client.pull(sys.argv[1], version=sys.argv[2], destination=sys.argv[3], plain_http=True)
"""


def ask(host: str, path: str, kinds: str) -> dict[str, Any]:
    request = urllib.request.Request(f"http://{host}/v2/{path}", headers={"Accept": kinds})
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def tiny_image(folder: Path, architecture: str) -> None:
    """An image with one file in it, as ``make release`` names it."""
    name = f"localhost/drabridge-push:{os.getpid()}"
    context = folder.parent / f"context-{architecture}"
    context.mkdir()
    (context / "Containerfile").write_text("FROM scratch\nCOPY file /\n")
    (context / "file").write_text(architecture)
    target = folder / f"drabridge-{__version__}-image-{architecture}.oci.tar"
    build = ("podman", "build", "-q", "--platform", f"linux/{architecture}", "--format", "oci", "--isolation=chroot")
    try:
        subprocess.run([*build, "-t", name, str(context)], check=True, capture_output=True, timeout=HANG_SECONDS * 4)
        save = ("podman", "save", "-q", "--format", "oci-archive", "-o", str(target), name)
        subprocess.run(save, check=True, capture_output=True, timeout=HANG_SECONDS * 4)
    finally:
        subprocess.run(["podman", "rmi", "-f", name], check=False, capture_output=True, timeout=HANG_SECONDS * 4)


def release(folder: Path, where: str) -> Path:
    """A folder as ``make release REGISTRY=where`` leaves it, as far as it is pushed."""
    source = folder / "source"
    shutil.copytree(ROOT / "deploy/chart", source / "deploy/chart")
    dist = folder / "dist"
    dist.mkdir()
    artefacts.chart(source, dist, 0, (registry(), where))
    return dist


def push(dist: Path, where: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "deploy.release.push", str(dist), "--registry", where, "--plain-http"]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=HANG_SECONDS * 6)


def test_image_and_chart_come_from_the_registry_that_they_were_pushed_to(tmp_path: Path) -> None:
    """Nobody needs a clone: ``helm install oci://...`` finds the chart, and the chart the image."""
    with docker_registry.running(tmp_path, free_port()) as host:
        where = f"{host}/me"
        dist = release(tmp_path, where)
        for architecture in ("amd64", "arm64"):
            tiny_image(dist, architecture)
        done = push(dist, where)
        assert done.returncode == 0, done.stdout + done.stderr

        index = ask(host, f"me/drabridge/manifests/{__version__}", TYPES)
        assert {one["platform"]["architecture"] for one in index["manifests"]} == {"amd64", "arm64"}
        chart = ask(host, f"me/charts/drabridge/manifests/{__version__}", OCI)
        assert chart["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
        pull = [sys.executable, "-c", PULL, f"oci://{where}/charts/drabridge", __version__, str(tmp_path)]
        subprocess.run(pull, check=True, capture_output=True, timeout=HANG_SECONDS * 2)
    pulled = tmp_path / f"drabridge-{__version__}.tgz"
    assert pulled.read_bytes() == (dist / pulled.name).read_bytes()
    with tarfile.open(pulled) as files:
        read = {one.name: files.extractfile(one) or io.BytesIO() for one in files.getmembers()}
        assert yaml.safe_load(read["drabridge/values.yaml"])["image"]["repository"] == f"{where}/drabridge"
        assert f"oci://{where}/charts/drabridge" in read["drabridge/README.md"].read().decode()
        assert b"alert: DrabridgeAgentGone" in read["drabridge/files/drabridge-alerts.yaml"].read()  # no link


def test_a_chart_that_names_another_registry_is_not_pushed(tmp_path: Path) -> None:
    done = push(release(tmp_path, registry()), "127.0.0.1:1/me")
    assert done.returncode == 1
    assert "make release REGISTRY=127.0.0.1:1/me" in done.stderr


def test_what_the_registry_refuses_is_said(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}/me"
    dist = release(tmp_path, where)
    tiny_image(dist, "amd64")
    done = push(dist, where)
    assert done.returncode == 1
    assert done.stderr.startswith("not pushed: podman manifest push: ")
