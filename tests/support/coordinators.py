"""Run ``drabridge coordinator`` as a process of its own, and make claims that wait for a lease."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from drabridge.kube.claim_hints import hints_name
from drabridge.offers.slices import lease_condition, lease_denied_condition
from drabridge.sim.apiserver.objects import Objects
from tests.support import forks
from tests.support.agent_process import DRIVER, python_path
from tests.support.waiting import PATIENCE

NAMESPACE = "kube-system"
Json = dict[str, Any]


class CoordinatorProcess:
    """One coordinator; the shortest lease that the client library allows."""

    def __init__(
        self,
        root: Path,
        kubeconfig: Path,
        identity: str = "one",
        driver: str = DRIVER,
        listen: str = "127.0.0.1:0",
        config: Path | None = None,
    ) -> None:
        self.log = root / f"coordinator-{identity}.log"
        self._words = (
            *("--driver", driver, "--namespace", NAMESPACE, "--identity", identity),
            *("--lease-seconds", "3", "--listen", listen),
            *(() if config is None else ("--config", str(config))),
        )
        self._kubeconfig = kubeconfig
        self.process: asyncio.subprocess.Process | forks.Forked | None = None

    async def start(self) -> None:
        words = ("-m", "drabridge", "coordinator", *self._words, "--kubeconfig", str(self._kubeconfig))
        self.process = await forks.start(words, self.log, {**os.environ, "PYTHONPATH": python_path()})

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; returns the exit status."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 10 * PATIENCE)

    async def ended(self) -> int:
        """Wait until it ends by itself; returns the exit status."""
        assert self.process is not None
        return await asyncio.wait_for(self.process.wait(), 20 * PATIENCE)

    async def page(self, path: str) -> tuple[int, str]:
        """Status and text of one of its pages."""
        address = re.findall(r"msg=listening address=(\S+)", self.text())[-1]
        return await asyncio.to_thread(_get, f"http://{address}{path}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")


@contextlib.asynccontextmanager
async def running(*all_of_them: CoordinatorProcess) -> AsyncIterator[None]:
    """While these coordinators run."""
    try:
        for one in all_of_them:
            await one.start()
        yield
    finally:
        for one in all_of_them:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                await one.stop(signal.SIGKILL)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def waiting_claim(
    objects: Objects, name: str, pool: str = "node-a", allocated: str = "2026-01-01T00:00:00Z", device: str = "zero"
) -> None:
    """Store a claim that is allocated a device of ``pool`` and waits for its lease."""
    objects.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "mem"}}]}},
        }
    )
    result = {
        "request": "r",
        "driver": DRIVER,
        "pool": pool,
        "device": device,
        "bindingConditions": [lease_condition(DRIVER)],
        "bindingFailureConditions": [lease_denied_condition(DRIVER)],
    }
    allocation = {"devices": {"results": [result]}, "allocationTimestamp": allocated}
    objects.modify(
        "resourceclaims",
        name,
        lambda one: one.setdefault("status", {}).update(allocation=allocation),
        namespace="default",
        subresource="status",
    )


def settle(objects: Objects, name: str, condition: str, pool: str = "node-a") -> None:
    """Set a condition of the claim's device, as its agent does."""
    state = {
        "type": condition,
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    entry = {"driver": DRIVER, "pool": pool, "device": "zero", "conditions": [state]}
    objects.modify(
        "resourceclaims",
        name,
        lambda one: one["status"].update(devices=[entry]),
        namespace="default",
        subresource="status",
    )


def hinted(objects: Objects, pool: str = "node-a") -> list[str] | None:
    """Names of the claims that the pool's ConfigMap has; None if there is none."""
    found = objects.find("configmaps", hints_name(DRIVER, pool), NAMESPACE)
    return None if found is None else [one["name"] for one in json.loads(found["data"]["claims"])]
