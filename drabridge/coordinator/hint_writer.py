"""Write each pool's ConfigMap of hints: once for many changes, only where it differs, and again after an error."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from drabridge.coordinator.pending_claims import PendingClaims
from drabridge.errors import ClusterError
from drabridge.kube.api import Cluster, backoff
from drabridge.kube.claim_hints import (
    CONFIG_MAPS,
    LABEL,
    HintsFields,
    hints_name,
    hints_object,
    hints_text,
    is_of_before,
)
from drabridge.kube.json_reader import Json, ObjectView

log = logging.getLogger(__name__)

COALESCE_SECONDS = 0.05  # changes of one pool within this time are one write
FIRST_SECONDS, MOST_SECONDS = 0.5, 30.0  # between attempts for one pool
LOOK_SECONDS = 60.0  # all ConfigMaps are compared this often: an ended leader may write late, and people change things
MANAGER = "drabridge-coordinator"


class _Written(Struct, frozen=True):
    """What is in a ConfigMap, as far as is known."""

    pool: str
    digest: bytes

    @classmethod
    def of(cls, pool: str, text: str) -> _Written:
        """Describe the ConfigMap of ``pool`` with these hints."""
        return cls(pool, hashlib.sha256(text.encode()).digest())


class HintWriter:
    """Writes for the pools that :meth:`changed` names. Each connection of ``clusters`` writes one pool at a time."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        driver: str,
        namespace: str,
        pending: PendingClaims,
        count: Callable[[str], None],
    ) -> None:
        """``count`` is called with the outcome of each write: ``OK`` or ``failed``."""
        self._clusters = clusters
        self._driver = driver
        self._namespace = namespace
        self._pending = pending
        self._count = count
        self._due: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()  # pools that are in the queue, or will be soon
        self._writing: set[str] = set()
        self._delays: dict[str, Iterator[float]] = {}  # pools whose last write failed -> delays before further attempts
        self._failing: dict[str, float] = {}  # pool -> since when
        self._written: dict[str, _Written] = {}  # pool -> its ConfigMap, as last known
        self.view = ObjectView(_read, HintsFields)

    @property
    def failing_seconds(self) -> float:
        """Return for how many seconds the pool that waits longest could not be written."""
        return time.monotonic() - min(self._failing.values(), default=time.monotonic())

    def changed(self, pool: str, after_seconds: float = COALESCE_SECONDS) -> None:
        """Note that other claims may wait for a pool. Cheap, never blocks."""
        if pool not in self._waiting:
            self._waiting.add(pool)
            asyncio.get_running_loop().call_later(after_seconds, self._due.put_nowait, pool)

    async def run(self) -> None:
        """Write until cancelled.

        Call it only after all claims were listed: hints of claims that do not wait are removed.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._compare())
            for cluster in self._clusters:
                group.create_task(self._write_due(cluster))

    async def _write_due(self, cluster: Cluster) -> None:
        while True:
            pool = await self._due.get()
            self._waiting.discard(pool)
            if pool in self._writing:  # another connection is writing it, and one object has only one write at a time
                self.changed(pool)
                continue
            self._writing.add(pool)
            try:
                await self._write(cluster, pool)
                self._delays.pop(pool, None)
                self._failing.pop(pool, None)
            except Exception as error:
                if not isinstance(error, ClusterError):
                    log.exception("hints not written", extra={"pool": pool})
                self._again(pool, str(error))
            finally:
                self._writing.discard(pool)

    def _again(self, pool: str, reason: str) -> None:
        self._count("failed")
        delay = next(self._delays.setdefault(pool, backoff(FIRST_SECONDS, MOST_SECONDS)))
        self._failing.setdefault(pool, time.monotonic())
        self._written.pop(pool, None)  # the write may have happened nevertheless
        log.warning("hints not written", extra={"pool": pool, "reason": reason, "retry_seconds": round(delay, 1)})
        self.changed(pool, delay)

    async def _write(self, cluster: Cluster, pool: str) -> None:
        text = hints_text(self._pending.hints(pool))
        wanted = _Written.of(pool, text)
        if self._written.get(pool) != wanted:
            body = hints_object(self._driver, pool, text)
            await cluster.apply(CONFIG_MAPS, body, manager=MANAGER, namespace=self._namespace)
            self._written[pool] = wanted
            self._count("OK")

    async def _compare(self) -> None:
        """Look at all ConfigMaps, at the start and every minute: write those that differ, delete old empty ones."""
        delays, empty_before = backoff(FIRST_SECONDS, MOST_SECONDS), frozenset[str]()
        while True:
            try:
                listing = await self._clusters[0].list(
                    CONFIG_MAPS,
                    namespace=self._namespace,
                    label_selector=f"{LABEL}={self._driver}",
                    view=self.view,
                )
                old = [name for name, _ in listing.items if is_of_before(self._driver, name)]
                found = [one for name, one in listing.items if name not in old]
                self._written = {one.pool: one for one in found}
                for pool in self._written.keys() | self._pending.pools:
                    self.changed(pool)
                empty = frozenset(one.pool for one in found if one == _Written.of(one.pool, "[]"))
                for pool in empty & empty_before:
                    await self._delete_unneeded(pool)
                for name in old:
                    await self._clusters[0].delete(CONFIG_MAPS, name, namespace=self._namespace)
                delays, empty_before = backoff(FIRST_SECONDS, MOST_SECONDS), empty
                await asyncio.sleep(LOOK_SECONDS)
            except ClusterError as error:
                delay = next(delays)
                log.warning("hints not compared", extra={"reason": str(error), "retry_seconds": round(delay, 1)})
                await asyncio.sleep(delay)

    async def _delete_unneeded(self, pool: str) -> None:
        """Delete a ConfigMap of a node that may be gone for ever.

        For an agent a missing ConfigMap means the same as an empty one.
        """
        if pool in self._pending.pools or pool in self._writing:
            return
        self._writing.add(pool)
        try:
            name = hints_name(self._driver, pool)
            await self._clusters[0].delete(CONFIG_MAPS, name, namespace=self._namespace)
        finally:
            self._writing.discard(pool)


def _read(obj: Json) -> tuple[str, _Written]:
    """Read a ConfigMap and its name. Malformed data raises any exception: it is written again if claims wait."""
    return str(obj["metadata"]["name"]), _Written.of(str(obj["data"]["pool"]), str(obj["data"]["claims"]))
