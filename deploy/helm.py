"""Run Helm on the chart: its Go library, from the wheel ``helm-python-sdk``, in a process of its own.

The Go runtime brings threads and signal handlers, which must not get into a test process that uses gRPC.
"""

from __future__ import annotations

import atexit
import functools
import json
import select
import subprocess
import sys
import unittest
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy/chart"
HOOK = "helm.sh/hook"
LIMIT_SECONDS = 600.0  # ends a render that hangs
Json = dict[str, Any]

_PROGRAM = """
import json, sys
import helm_python
for line in sys.stdin:
    job = json.loads(line)
    try:
        if job["do"] == "render":
            with helm_python.Chart.load(job["chart"]) as chart:
                chart.validate_schema(job["values"])
                result = chart.render(job["values"], name=job["name"], namespace=job["namespace"])
        elif job["do"] == "push":
            with helm_python.RegistryClient(plain_http=job["plain_http"]) as client:
                if job["password"]:
                    host = job["remote"].removeprefix("oci://").partition("/")[0]
                    client.login(host, job["user"], job["password"], plain_http=job["plain_http"])
                result = client.push(job["chart"], job["remote"], plain_http=job["plain_http"])
        else:
            result = helm_python.chart.lint(job["chart"], job["values"], strict=True, kube_version=job["kube_version"])
    except helm_python.HelmError as error:
        result = {"error": str(error)}
    print(json.dumps(result), flush=True)
"""


class HelmRefusedError(Exception):
    """Helm refused the values or the chart; the text is Helm's."""


class HelmNotInstalledError(unittest.SkipTest):
    """The wheel ``helm-python-sdk`` is not installed (there is one for x86_64 only). Pytest skips such a test."""


@functools.cache
def _helm() -> subprocess.Popen[bytes]:
    """Start the process. It ends with its standard input, so with this process at the latest."""
    if find_spec("helm_python") is None:
        raise HelmNotInstalledError("Helm's library is not installed: pip install helm-python-sdk")
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _PROGRAM]
    helm = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)  # it tells of symbolic links
    atexit.register(_end, helm)
    return helm


def _end(helm: subprocess.Popen[bytes]) -> None:
    helm.kill()
    helm.communicate()


@functools.lru_cache(maxsize=64)
def _run(job: str) -> Json:
    helm = _helm()
    assert helm.stdin is not None
    assert helm.stdout is not None
    helm.stdin.write(job.encode() + b"\n")
    helm.stdin.flush()
    ready, _, _ = select.select([helm.stdout], [], [], LIMIT_SECONDS)
    said = helm.stdout.readline() if ready else b""
    if not said:
        _helm.cache_clear()
        _end(helm)
        raise RuntimeError(f"Helm did not answer: {job}")
    answer: Json = json.loads(said)
    if "error" in answer:
        raise HelmRefusedError(answer["error"])
    return answer


def templates(
    values: Mapping[str, Any] | None = None,
    *,
    name: str = "drabridge",
    namespace: str = "drabridge",
    chart: Path = CHART,
) -> dict[str, str]:
    """Return the rendered text by template file name. Raises HelmRefusedError for values that are refused."""
    job = {"do": "render", "chart": str(chart), "values": values or {}, "name": name, "namespace": namespace}
    return {Path(path).name: text for path, text in _run(json.dumps(job)).items()}


def manifests(
    values: Mapping[str, Any] | None = None,
    *,
    name: str = "drabridge",
    namespace: str = "drabridge",
    chart: Path = CHART,
) -> list[Json]:
    """Return every object of a release in Helm's order of files, without hooks, which do not belong to it."""
    return [obj for obj in _objects(values, name, namespace, chart) if HOOK not in _annotations(obj)]


def hooks(
    values: Mapping[str, Any] | None = None,
    *,
    name: str = "drabridge",
    namespace: str = "drabridge",
    when: str = "pre-delete",
) -> list[Json]:
    """Return the objects of hooks, which Helm makes only for a while: before an uninstall, or for ``helm test``."""
    return [obj for obj in _objects(values, name, namespace, CHART) if _annotations(obj).get(HOOK) == when]


def _annotations(obj: Json) -> Json:
    found: Json = obj["metadata"].get("annotations") or {}
    return found


def _objects(values: Mapping[str, Any] | None, name: str, namespace: str, chart: Path) -> list[Json]:
    rendered = templates(values, name=name, namespace=namespace, chart=chart)
    documents = [
        document
        for file, text in sorted(rendered.items())
        if file.endswith(".yaml")
        for document in yaml.load_all(text, Loader=yaml.CSafeLoader)
    ]
    return [document for document in documents if document]


def lint(values: Mapping[str, Any] | None = None, *, kube_version: str = "v1.36.0", chart: Path = CHART) -> list[Json]:
    """Return what ``helm lint --strict`` complains about: warnings and errors, with their path."""
    job = {"do": "lint", "chart": str(chart), "values": values or {}, "kube_version": kube_version}
    report = _run(json.dumps(job))
    return [message for message in report["messages"] if message["severity"] >= 2]


def push(chart: Path, remote: str, *, plain_http: bool = False, user: str = "", password: str = "") -> None:
    """Upload a packed chart below ``remote``, ``oci://HOST/PATH``. Raises HelmRefusedError with what Helm says."""
    job = {"do": "push", "chart": str(chart), "remote": remote, "plain_http": plain_http}
    _run.__wrapped__(json.dumps(job | {"user": user, "password": password}))  # not cached: it has an effect


def one(objects: list[Json], kind: str) -> Json:
    """Return the only object of a kind."""
    (found,) = (each for each in objects if each["kind"] == kind)
    return found
