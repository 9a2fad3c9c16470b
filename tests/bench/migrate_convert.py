"""The numbers of ``drabridge migrate``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.core import Benchmark

FILES = 1000
_CONTAINER = """\
      - name: worker-{number}
        image: registry.example.com/team/worker:1.{number}
        command: ["/bin/sh", "-c", "exec worker --shard {number}"]
        env:
        - {{name: MODEL, value: "model-{number}"}}   # which model
        - name: TOKEN
          valueFrom:
            secretKeyRef: {{name: token, key: value}}
        resources:
          limits:
            nvidia.com/gpu: {number}
            memory: 16Gi
          requests:
            nvidia.com/gpu: {number}
            cpu: "4"
        volumeMounts:
        - name: data
          mountPath: /data
"""
_DEPLOYMENT = """\
# Workload {number}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: workload-{number}
  namespace: team-{team}
  labels:
    app: workload-{number}
spec:
  replicas: 2
  selector:
    matchLabels:
      app: workload-{number}
  template:
    metadata:
      labels:
        app: workload-{number}
    spec:
      nodeSelector:
        zone: a
      containers:
{containers}      volumes:
      - name: data
        emptyDir: {{}}
---
apiVersion: v1
kind: Service
metadata:
  name: workload-{number}
  namespace: team-{team}
spec:
  selector:
    app: workload-{number}
  ports:
  - name: http
    port: 80
    targetPort: 8080
"""


def benchmarks() -> list[Benchmark]:
    """All of this area."""
    return [Benchmark("migrate_convert_1000_files_s", "s", 10, convert_1000_files_s)]


def convert_1000_files_s() -> float:
    """The command converts a folder of 1,000 files in place: each a Deployment of two containers, and a Service."""
    containers = "".join(_CONTAINER.format(number=number) for number in (1, 2))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            text = _DEPLOYMENT.format(number=number, team=number % 20, containers=containers)
            Path(folder, f"workload-{number}.yaml").write_text(text)
        command = [sys.executable, "-m", "drabridge.cli", "migrate", "convert", "--in-place"]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "--class", "nvidia.com/gpu=gpu.example.com", folder],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds = time.perf_counter() - started
        assert len(done.stdout.splitlines()) == FILES, done.stderr
    return seconds
