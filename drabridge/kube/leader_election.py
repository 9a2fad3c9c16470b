"""Elect one leader among equal processes, by the client library's election over a Lease.

The library blocks, so it runs in a thread. A process that has lost the leadership must end, as programs of client-go
do: it cannot know which of its requests are still under way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from drabridge.errors import ClusterError, ConfigError

log = logging.getLogger(__name__)

REQUEST_SECONDS = (2.0, 3.0)  # to connect, and to read: several attempts fit into a renew deadline


class Election(Struct, frozen=True):
    """Which Lease, for whom, and for how long. The defaults 15, 10 and 2 s are those of client-go's programs."""

    name: str
    namespace: str
    identity: str
    lease_seconds: int = 15

    @property
    def renew_seconds(self) -> int:
        """Seconds for which the leader tries to renew before it gives up: fewer than the others wait."""
        return self.lease_seconds * 2 // 3

    @property
    def retry_seconds(self) -> float:
        return max(1.0, self.lease_seconds / 7.5)


class LostLeadershipError(ClusterError):
    """Another process leads from now on, or may."""

    code = "ABORTED"


async def lead(
    election: Election,
    load: Callable[[], Any],
    started: Callable[[], None],
    healthy: Callable[[], bool],
    heard: Callable[[], None],
) -> None:
    """Wait for the leadership, call ``started`` on the loop, and keep it. Raises LostLeadershipError when it is lost.

    ``load`` makes a ``Configuration`` of the client. While ``healthy`` (called in the thread) says no, the lease is
    not renewed. ``heard`` is called in the thread whenever the API server showed or took the lease. Raises ConfigError
    where the client library has no lock by Lease (before version 37).
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[str] = loop.create_future()

    def tell(call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(call)

    def end(reason: str) -> None:
        if not over.done():
            over.set_result(reason)

    def run() -> None:
        reason = "it could not be renewed in time, or another process has it"
        try:
            _elect(election, load, lambda: tell(started), healthy, heard)
        except SystemExit as error:  # the library raises it for invalid durations
            reason = str(error)
        except Exception as error:
            log.exception("election failed")
            reason = f"{type(error).__name__}: {error}"
        tell(lambda: end(reason))

    _lock_class()  # raises its error in the caller
    threading.Thread(target=run, name="leader-election", daemon=True).start()
    raise LostLeadershipError(f"the leadership {election.namespace}/{election.name} is lost: {await over}")


def _lock_class() -> Any:
    try:
        from kubernetes.leaderelection.resourcelock.leaselock import LeaseLock
    except ImportError as error:
        raise ConfigError("a coordinator needs the Python package kubernetes 37 or later") from error
    return LeaseLock


def _elect(
    election: Election,
    load: Callable[[], Any],
    started: Callable[[], None],
    healthy: Callable[[], bool],
    heard: Callable[[], None],
) -> None:
    from kubernetes import client
    from kubernetes.client.exceptions import ApiException
    from kubernetes.leaderelection import electionconfig, leaderelection
    from urllib3.exceptions import HTTPError

    logging.getLogger("leaderelection").setLevel(logging.WARNING)  # it says every two seconds that all is well
    configuration = load()
    configuration.retries = False
    lock_class = _lock_class()
    broken = (HTTPError, OSError, ValueError)

    class Api(client.ApiClient):  # type: ignore[misc]
        """Every request has a timeout: one that hangs must not outlive the lease."""

        def call_api(self, *args: Any, **options: Any) -> Any:
            options["_request_timeout"] = REQUEST_SECONDS
            return super().call_api(*args, **options)

    class Lock(lock_class):  # type: ignore[misc, valid-type]
        """The library's lock. By itself it handles error answers of the API server, but no broken connections."""

        def get(self, name: str, namespace: str) -> Any:
            try:
                found, answer = super().get(name, namespace)
            except broken as error:
                return False, ApiException(status=0, reason=f"{type(error).__name__}: {error}")
            if found:
                heard()
            return found, answer

        def create(self, name: str, namespace: str, election_record: Any) -> Any:
            with contextlib.suppress(*broken):
                if super().create(name, namespace, election_record):
                    heard()
                    return True
            return False

        def update(self, name: str, namespace: str, updated_record: Any) -> Any:
            if not healthy():
                log.error("leadership not renewed: this process does not do its work")
                return False
            with contextlib.suppress(*broken):
                return super().update(name, namespace, updated_record)
            return False

    lock = Lock(election.name, election.namespace, election.identity)
    lock.api_instance = client.CoordinationV1Api(Api(configuration))
    settings = electionconfig.Config(
        lock,
        lease_duration=election.lease_seconds,
        renew_deadline=election.renew_seconds,
        retry_period=election.retry_seconds,
        onstarted_leading=started,
        onstopped_leading=lambda: None,
    )
    began = time.monotonic()
    leaderelection.LeaderElection(settings).run()
    log.error(
        "leadership lost",
        extra={"lock": f"{election.namespace}/{election.name}", "after_seconds": round(time.monotonic() - began)},
    )
