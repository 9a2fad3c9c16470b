"""Run one coordinator: wait for the leadership; write hints and publish fabric devices until it is lost."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drabridge.config.schema import Config
from drabridge.coordinator.fabric import Fabric
from drabridge.coordinator.hint_writer import HintWriter
from drabridge.coordinator.pages import CoordinatorState, Pages
from drabridge.coordinator.pending_claims import PendingClaims
from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, UnreachableError, backoff, resource_claims, served_version
from drabridge.kube.leader_election import Election, lead
from drabridge.kube.watch import follow
from drabridge.system.port import Port
from drabridge.system.supervise import end, forever

log = logging.getLogger(__name__)

BEAT_SECONDS = 0.5
SILENT_SECONDS = 8.0  # after this time without a turn of the loop, this process does not work
BLIND_SECONDS = 60.0  # after this time without following claims or writing a pool, another process may try
FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0  # between attempts to find the version of resource.k8s.io


class Coordinator:
    """One process of a driver's coordinators. :meth:`run` returns when it is told to end."""

    def __init__(
        self,
        clusters: tuple[Cluster, ...],
        driver: str,
        election: Election,
        load: Callable[[], Any],
        port: Port,
        config: tuple[Path, Config] | None = None,
    ) -> None:
        """``clusters`` are connections to one API server: the first one reads, each of them writes.

        ``config``: the agents' configuration file and what it says, for its fabric devices.
        """
        self._clusters = clusters
        self._port = port
        self._election = election
        self._load = load
        self._leads = asyncio.Event()
        self._beat: float  # when the loop last turned
        self._pending = PendingClaims(driver, lambda pool: self._writer.changed(pool))
        self._heard_at = -math.inf  # when the API server last showed or took the Lease
        self._fabric = Fabric(clusters[0], *config, self._version) if config is not None else None
        self._pages = Pages(self._state)
        self._writer = HintWriter(clusters, driver, election.namespace, self._pending, self._pages.wrote)

    async def run(self) -> None:
        """Lead when elected, until SIGTERM. Raises LostLeadershipError, or ConfigError for a taken port."""
        await self._pages.serve(self._port)
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        tasks = [
            asyncio.create_task(work)
            for work in (
                lead(self._election, self._load, self._started, self._healthy, self._heard),
                self._keep_beating(),
                self._work(),
                stop.wait(),
            )
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await end(*tasks)
            await self._port.close()

    def _started(self) -> None:
        log.info("leading", extra={"identity": self._election.identity})
        self._pending.lost_at = self._beat = time.monotonic()
        self._leads.set()

    def _healthy(self) -> bool:
        """Whether the leader does its work. Called in the thread of the election."""
        now, lost_at = time.monotonic(), self._pending.lost_at
        return not self._leads.is_set() or (
            now - self._beat < SILENT_SECONDS
            and (lost_at is None or now - lost_at < BLIND_SECONDS)
            and self._writer.failing_seconds < BLIND_SECONDS
        )

    def _heard(self) -> None:
        """Note that the election goes on. Called in its thread."""
        self._heard_at = time.monotonic()

    def _state(self) -> CoordinatorState:
        now, lost_at = time.monotonic(), self._pending.lost_at
        return CoordinatorState(
            leads=self._leads.is_set(),
            claims=len(self._pending),
            unheard_seconds=now - self._heard_at,
            lease_seconds=self._election.lease_seconds,
            unfollowed_seconds=0.0 if lost_at is None else now - lost_at,
            unwritten_seconds=self._writer.failing_seconds,
            unpublished_seconds=self._fabric.failing_seconds if self._fabric is not None else 0.0,
        )

    async def _keep_beating(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(BEAT_SECONDS)

    async def _work(self) -> None:
        await self._leads.wait()
        log.info("following claims")
        async with asyncio.TaskGroup() as group:
            group.create_task(forever("claims", self._follow))
            group.create_task(forever("hints", self._write))
            if self._fabric is not None:
                group.create_task(forever("fabric", self._fabric.run))

    async def _follow(self) -> None:
        kind = resource_claims(await self._version())
        await follow(self._clusters[0], kind, "", self._pending)

    async def _version(self) -> str:
        for delay in backoff(FIRST_SECONDS, MOST_SECONDS):
            try:
                if version := await served_version(self._clusters[0]):
                    return version
                raise UnreachableError("the API server does not serve resource.k8s.io")
            except ClusterError as error:
                log.warning("claims not followed", extra={"reason": str(error), "retry_seconds": round(delay, 1)})
                await asyncio.sleep(delay)
        raise AssertionError("backoff() does not end")

    async def _write(self) -> None:
        while not self._pending.complete:  # otherwise hints of waiting claims would be removed first
            await asyncio.sleep(BEAT_SECONDS / 10)
        await self._writer.run()
