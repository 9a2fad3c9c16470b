"""What ``drabridge migrate report`` and ``plan`` cost with 5,000 nodes and 50,000 pods, process start to end."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.core import Benchmark
from tests.support.large_cluster import CLASS, GPU, NODES, PODS

ROOT = Path(__file__).resolve().parents[2]


def benchmarks() -> list[Benchmark]:
    """All of this area. Both numbers of the report are of one run."""
    return [
        Benchmark("migrate_report_5000_nodes_s", "s", 30, lambda: _report()[0]),
        Benchmark("migrate_report_rss_mib", "MiB", 300, lambda: _report()[1]),
        Benchmark("migrate_plan_5000_nodes_s", "s", 20, _plan),
    ]


MEASURING = """\
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
"""A small process between this one and the command: a child begins with the peak of the one that made it."""


@functools.cache
def _report() -> tuple[float, float]:
    """Seconds, and the most resident memory in MiB."""
    seconds, mib, report = _measured("report")
    (gpu,) = report["resources"]
    assert (report["nodes"], report["pods"]) == (NODES, PODS)
    assert gpu["pods"] == {"kubelet": PODS // 2, "dra": 0, "claims": PODS // 4, "pending": 0}
    return seconds, mib


def _plan() -> float:
    seconds, _, plan = _measured("plan", "--class", f"{GPU}={CLASS}")
    assert sum(move["pods"] for step in plan["steps"] for move in step.get("moves", ())) == PODS // 2
    assert not [step for step in plan["steps"] if step.get("missing")]
    return seconds


def _measured(*words: str) -> tuple[float, float, Any]:
    """Seconds, the most resident memory in MiB and the answer of a command; the API server is another process."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    server = [sys.executable, "-m", "tests.support.large_cluster"]
    with tempfile.TemporaryDirectory() as directory:
        with subprocess.Popen(server, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as serving:
            try:
                assert serving.stdout is not None
                kubeconfig = _kubeconfig(Path(directory, "kubeconfig"), serving.stdout.readline().strip())
                answer = Path(directory, "answer.json")
                command = [sys.executable, "-m", "drabridge", "migrate", *words, "-o", "json"]
                began = time.perf_counter()
                with answer.open("w") as out:
                    done = subprocess.run(
                        [sys.executable, "-c", MEASURING, *command, "--kubeconfig", kubeconfig],
                        stdout=out,
                        stderr=subprocess.PIPE,
                        text=True,
                        env=environment,
                        check=False,
                    )
                seconds = time.perf_counter() - began
                kib = int(done.stderr.splitlines()[-1])
                return seconds, kib / 1024, json.loads(answer.read_text())
            finally:
                serving.kill()


def _kubeconfig(path: Path, url: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "large", "cluster": {"server": url}}],
        "users": [{"name": "large", "user": {}}],
        "contexts": [{"name": "large", "context": {"cluster": "large", "user": "large"}}],
        "current-context": "large",
    }
    path.write_text(json.dumps(config))
    return path
