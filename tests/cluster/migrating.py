"""What tests of ``drabridge migrate`` on a real cluster have in common."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.bed import NAMESPACE, RESOURCE, Bed, Json
from tests.cluster.real_bed import ask
from tests.cluster.releases.features import missing
from tests.support.waiting import HANG_SECONDS


async def interrupted(*words: str | Path) -> None:
    """Run a command several times and end it in the middle, each time a little later, by both signals in turn."""
    for moment, number in enumerate((signal.SIGKILL, signal.SIGINT) * 3):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "drabridge", "migrate", *map(str, words)),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await asyncio.wait_for(process.wait(), 0.7 + 0.4 * moment)
        except TimeoutError:
            process.send_signal(number)
        _, said = await process.communicate()
        # When its work is done, Python takes back SIGINT's default: one that comes then ends it, without a word.
        at_the_end = process.returncode == -signal.SIGINT and b"Traceback" not in said
        assert process.returncode in (0, -signal.SIGKILL, 130) or at_the_end, said.decode()


async def migrate(*words: str | Path, status: int = 0) -> str:
    """Run a command, and return what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "drabridge", "migrate", *map(str, words)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    said = bytearray()
    try:
        async with asyncio.timeout(2 * HANG_SECONDS):
            async for line in process.stdout:
                said += line
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            print(said.decode())
    assert process.returncode == status, said.decode()
    return said.decode()


async def back_on_limits() -> None:
    """Switch the namespace back, where the cluster could have switched it: a test may have failed in the middle."""
    if not missing(("admission policies that change pods",), ask):
        await migrate("switch", NAMESPACE, "--to", "limits")


def pods_of(name: str, spec: Json) -> Json:
    """Return selector and template of a workload."""
    labels = {"app": name}
    body = {**spec, "restartPolicy": "Always"}
    return {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": body}}


async def used(bed: Bed) -> dict[str, list[str]]:
    """Return how each workload's pods get their devices: ``limits`` or ``claims`` of every pod that is not ended."""
    found: dict[str, list[str]] = {}
    for pod in await bed.workload_pods():
        claims = bool(pod["spec"].get("resourceClaims"))
        limits = any(RESOURCE in one["resources"].get("limits", {}) for one in _containers(pod))
        assert claims is not limits, "a pod is whole on one side"
        if pod["status"]["phase"] in ("Pending", "Running"):
            owner = pod["metadata"]["ownerReferences"][0]["name"].split("-")[0]
            found.setdefault(owner, []).append("claims" if claims else "limits")
    return found


def _containers(pod: Json) -> Iterator[Json]:
    yield from pod["spec"].get("initContainers", ())
    yield from pod["spec"]["containers"]
