"""Publish the devices that several nodes reach: ResourceSlices that belong to no node.

All slices are listed now and then and compared with the configuration and the checks; only a difference is written.
What is written is guarded by UID and resource version, so an ended leader that writes late changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from drabridge.config.fabric import is_fabric_pool
from drabridge.config.loader import load
from drabridge.config.problems import ConfigErrors
from drabridge.config.schema import Config
from drabridge.coordinator.tcp_checks import TcpChecks
from drabridge.dra.publisher import read_slice, slice_view
from drabridge.errors import ClusterError
from drabridge.kube.api import (
    Cluster,
    ConflictError,
    DeniedError,
    InvalidError,
    UnreachableError,
    backoff,
    resource_slices,
)
from drabridge.kube.feature_questions import slice_features
from drabridge.kube.json_reader import Json
from drabridge.kube.versions import slice_from_v1
from drabridge.offers.fabric import fabric_pools, taint_key, unreachable
from drabridge.offers.slice_writes import Accepted, Verb, Write, accept, dropped, plan
from drabridge.offers.slices import Feature, desired_slices
from drabridge.system.supervise import WakeUp
from drabridge.system.untrusted import reading

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0  # between looks at the file, as the agents look at theirs
LOOK_SECONDS = 5.0  # between looks at the slices, which people change and delete: one LIST of a few objects
FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0  # between attempts after an error


class Fabric:
    """Publishes the configuration's fabric devices. :meth:`run` is for the leader alone."""

    def __init__(self, cluster: Cluster, file: Path, config: Config, version: Callable[[], Awaitable[str]]) -> None:
        """``version`` finds the version of resource.k8s.io. ``config`` is what ``file`` said at the start."""
        self._cluster = cluster
        self._file = file
        self._text = b""
        self._config = config
        self._find_version = version
        self._version = ""
        self._features: frozenset[Feature] | None = None  # whose fields the server keeps; None: not asked
        self._accepted: dict[str, Accepted] = {}
        self._due = WakeUp()
        self._checks = TcpChecks(self._due.set)
        self._failing_since: float | None = None

    @property
    def failing_seconds(self) -> float:
        """For how long the slices could not be brought up to date."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    async def run(self) -> None:
        """Publish until cancelled."""
        delays, due_at = backoff(FIRST_SECONDS, MOST_SECONDS), 0.0
        try:
            while True:
                await self._read_file()
                if not await self._due.wait(POLL_SECONDS) and time.monotonic() < due_at:
                    continue
                try:
                    self._version = self._version or await self._find_version()
                    await self._publish()
                    self._failing_since, delays = None, backoff(FIRST_SECONDS, MOST_SECONDS)
                    due_at = time.monotonic() + LOOK_SECONDS
                except ClusterError as error:
                    self._failing_since = self._failing_since or time.monotonic()
                    self._version, self._features = "", None  # it may be another server now
                    delay = next(delays)
                    fields = {"reason": str(error), "retry_seconds": round(delay, 1)}
                    log.warning("fabric devices not published", extra=fields)
                    await asyncio.sleep(delay)
                    self._due.set()
        finally:
            self._checks.stop()

    async def _read_file(self) -> None:
        """Take a changed file; a wrong one is refused, and the last good one stays."""
        try:
            text = await asyncio.to_thread(self._file.read_bytes)
            if text == self._text:
                return
            config = await asyncio.to_thread(load, text, name=str(self._file))
        except ConfigErrors as errors:
            self._text = text
            for fault in errors.faults:
                log.error("the changed configuration is refused, the last good one stays", extra={"reason": str(fault)})
        except (OSError, RuntimeError) as error:
            log.error("the configuration cannot be read, the last good one stays", extra={"reason": str(error)})
        else:
            self._text = text
            if config.driver != self._config.driver:
                why = f"driver: found {config.driver}, this coordinator runs for {self._config.driver}"
                log.error("the changed configuration is refused, the last good one stays", extra={"reason": why})
            else:
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
        if pools and self._features is None:
            found = await slice_features(self._cluster, self._version, config.driver, "", next(iter(pools)))
            self._features = found.kept
        for name, pool in pools.items():
            wanted[name] = dict(desired_slices(pool, self._features or frozenset()).slices)
        # Nobody knows what an unreadable one offers, or keeps from being offered: it goes.
        strange = [Write(Verb.DELETE, str(one.name), uid=one.uid or "") for one in listing.unreadable]
        refused = [error for write in strange if (error := await self._refusal([write]))]
        for name, specs in wanted.items():
            mine = [one for one in actual if one["spec"]["pool"]["name"] == name]
            if error := await self._refusal(plan(specs, mine, pool=name, accepted=self._accepted)):
                refused.append(error)
        if refused:
            raise refused[0]

    async def _refusal(self, writes: Iterable[Write]) -> ClusterError | None:
        """Send these writes; the error if the server refuses one. Other pools can be written all the same."""
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
        kind = resource_slices(self._version)
        if write.verb is Verb.DELETE:
            await self._cluster.delete(kind, write.name, uid=write.uid, resource_version=write.resource_version)
        else:
            assert write.body is not None
            request = self._cluster.create if write.verb is Verb.CREATE else self._cluster.replace
            answer = await request(kind, slice_from_v1(write.body, self._version))
            with reading("the answer to a slice", UnreachableError):
                stored = read_slice(answer, self._version)
            self._accepted[write.name] = accept(write.body, stored)
            self._features = (self._features or frozenset()) - dropped(write.body, stored)
        log.info("fabric slice written", extra={"slice": write.name, "verb": write.verb.value})
