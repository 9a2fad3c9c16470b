"""Upstream's e2e_node DRA cases, by number, about retries across restarts and forced deletions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from drabridge.ledger.entries import Owner
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pods import PodSpec
from tests.dra.kubelet_beside import kubelet_beside, pod, ran, registered
from tests.support.dra_node import DraNode, a_node, with_profile
from tests.support.waiting import until


def stuck_while(path: Path) -> str:
    """A clean-up that fails as long as the file exists."""
    return f"unprepare: {{command: [/bin/sh, -c, 'test ! -e {path} || {{ echo stuck; exit 3; }}']}}"


@contextlib.asynccontextmanager
async def unprepare_fails_while(broken: Path) -> AsyncIterator[tuple[DraNode, SimKubelet, PodSpec]]:
    """A node with kubelet and a running pod, whose claim cannot be unprepared while the file exists: it does."""
    broken.touch()
    async with a_node(with_profile(stuck_while(broken))) as node, kubelet_beside(node) as kubelet:
        await registered(node)
        spec = pod(node, "p", "cl", "gpu-0")
        await ran(kubelet, spec)
        yield node, kubelet, spec


async def test_dr10_unprepare_fails_kubelet_restarts_and_it_succeeds(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    async with unprepare_fails_while(broken) as (node, kubelet, spec):
        deleting = asyncio.ensure_future(kubelet.delete_pod(spec.uid))
        await until(lambda: node.handled("unprepare"), why="a try")
        await kubelet.restart()
        tried = len(node.handled("unprepare"))
        await until(lambda: len(node.handled("unprepare")) > tried, why="a try of the new kubelet")
        assert node.owner("gpu-0") is Owner.DRA_PREPARED
        broken.unlink()
        await until(lambda: node.records() == [] and node.cdi_files() == [], why="unprepare")
        await asyncio.gather(deleting, return_exceptions=True)


async def test_dr12_a_pod_is_force_deleted_while_unprepare_fails_over_a_kubelet_restart(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    async with unprepare_fails_while(broken) as (node, kubelet, spec):
        await kubelet.delete_pod(spec.uid, force=True)
        await until(lambda: node.handled("unprepare"), why="a try")
        node.claims.delete("cl")
        tries = len(node.handled("unprepare"))
        await kubelet.restart()
        await until(lambda: len(node.handled("unprepare")) > tries, why="a try of the next kubelet")
        assert node.owner("gpu-0") is Owner.DRA_PREPARED  # not clean, so not free
        assert len(node.records()) == 1
        broken.unlink()
        await until(lambda: node.records() == [] and node.cdi_files() == [], why="unprepare")
        await until(lambda: node.owner("gpu-0") is Owner.NONE, why="the release")
        assert len(node.handled("prepare")) == 1
