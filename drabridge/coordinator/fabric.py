"""Publish the devices that several nodes reach: ResourceSlices that belong to no node.

All slices are listed every few seconds and compared with the configuration and the checks; only a difference is
written. Each write names UID and resource version, so an ended leader that writes late changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from drabridge.config.fabric import is_fabric_pool
from drabridge.config.follower import ConfigFollower
from drabridge.config.schema import Config
from drabridge.coordinator.tcp_checks import TcpChecks
from drabridge.dra.publisher import send, slice_view
from drabridge.errors import ClusterError
from drabridge.kube.api import (
    Cluster,
    ConflictError,
    DeniedError,
    InvalidError,
    backoff,
    resource_slices,
)
from drabridge.kube.feature_questions import slice_features
from drabridge.kube.json_reader import Json
from drabridge.offers.fabric import fabric_pools, taint_key, unreachable
from drabridge.offers.slice_writes import Accepted, Verb, Write, accept, dropped, plan
from drabridge.offers.slices import Feature, desired_slices
from drabridge.system.supervise import WakeUp, forever

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between looks at the slices, which people may change or delete: each is one LIST of a few objects
FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0  # between attempts after an error


class Fabric:
    """Publishes the configuration's fabric devices. :meth:`run` is for the leader alone."""

    def __init__(self, cluster: Cluster, file: Path, config: Config, version: Callable[[], Awaitable[str]]) -> None:
        """``version`` finds the version of resource.k8s.io. ``config`` is the content of ``file`` at the start."""
        self._cluster = cluster
        self._config = config
        self._follower = ConfigFollower(
            file, config, WakeUp(), self._take, lambda faults: None, driver_stays="this coordinator runs for {}"
        )
        self._find_version = version
        self._version = ""
        self._features: frozenset[Feature] | None = None  # features whose fields the server keeps; None: not asked
        self._accepted: dict[str, Accepted] = {}
        self._due = WakeUp()
        self._checks = TcpChecks(self._due.set)
        self._failing_since: float | None = None

    @property
    def failing_seconds(self) -> float:
        """Return for how many seconds the slices could not be brought up to date."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    async def run(self) -> None:
        """Publish until cancelled."""
        following = asyncio.create_task(forever("configuration", self._follower.run))
        delays = backoff(FIRST_SECONDS, MOST_SECONDS)
        try:
            while True:
                try:
                    self._version = self._version or await self._find_version()
                    await self._publish()
                except ClusterError as error:
                    self._failing_since = self._failing_since or time.monotonic()
                    self._version, self._features = "", None  # the server may be another one now
                    delay = next(delays)
                    fields = {"reason": str(error), "retry_seconds": round(delay, 1)}
                    log.warning("fabric devices not published", extra=fields)
                    await asyncio.sleep(delay)
                else:
                    self._failing_since, delays = None, backoff(FIRST_SECONDS, MOST_SECONDS)
                    await self._due.wait(LOOK_SECONDS)
        finally:
            following.cancel()
            self._checks.stop()

    async def _take(self, config: Config) -> None:
        self._config = config
        self._due.set()

    async def _publish(self) -> None:
        """Compare once, and write the difference. Raises ClusterError."""
        config, kind = self._config, resource_slices(self._version)
        listing = await self._cluster.list(
            kind, field_selector=f"spec.nodeName=,spec.driver={config.driver}", view=slice_view(self._version)
        )
        actual = [one for one in listing.items if is_fabric_pool(one["spec"]["pool"]["name"])]
        self._checks.follow(config.fabric, dict(self._published(actual)))
        failing = self._checks.failing
        taints = {d.name: unreachable(config.driver, d, failing[d.name]) for d in config.fabric if d.name in failing}
        pools = fabric_pools(config, taints)
        wanted: dict[str, dict[str, Json]] = {one["spec"]["pool"]["name"]: {} for one in actual}
        for name, pool in pools.items():
            wanted[name] = dict(desired_slices(pool, await self._kept(name)).slices)
        # Unreadable slices are deleted: nobody knows what they offer, or keep from being offered.
        unreadable = [Write(Verb.DELETE, str(one.name), uid=one.uid or "") for one in listing.unreadable]
        refused = [error for write in unreadable if (error := await self._refusal([write]))]
        for name, specs in wanted.items():
            mine = [one for one in actual if one["spec"]["pool"]["name"] == name]
            if error := await self._refusal(plan(specs, mine, pool=name, accepted=self._accepted)):
                refused.append(error)
        if refused:
            raise refused[0]

    async def _kept(self, pool: str) -> frozenset[Feature]:
        """Ask once whose fields the server keeps, with a slice of ``pool`` that is not stored. Raises ClusterError."""
        if self._features is None:
            self._features = (await slice_features(self._cluster, self._version, self._config.driver, "", pool)).kept
        return self._features

    async def _refusal(self, writes: Iterable[Write]) -> ClusterError | None:
        """Send these writes; return the error if the server refuses one, because other pools can still be written."""
        try:
            for write in writes:
                await self._send(write)
        except (ConflictError, DeniedError, InvalidError) as error:
            return error
        return None

    def _published(self, actual: Iterable[Json]) -> Iterable[tuple[str, str]]:
        key = taint_key(self._config.driver)
        for one in actual:
            for device in one["spec"].get("devices") or ():
                found = (str(taint.get("value", "")) for taint in device.get("taints") or () if taint["key"] == key)
                yield str(device["name"]), next(found, "")

    async def _send(self, write: Write) -> None:
        stored = await send(self._cluster, self._version, write)
        if stored is not None:
            assert write.body is not None
            self._accepted[write.name] = accept(write.body, stored)
            self._features = await self._kept(stored["spec"]["pool"]["name"]) - dropped(write.body, stored)
        log.info("fabric slice written", extra={"slice": write.name, "verb": write.verb.value})
