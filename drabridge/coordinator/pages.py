"""Serve whether a coordinator lives and works, and its metrics. No name of a claim is shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from http import HTTPStatus

from msgspec import Struct

from drabridge.system.http import Request, Response
from drabridge.system.port import Port
from drabridge.telemetry.metrics import COORDINATOR_TABLE, Metrics, Sample

log = logging.getLogger(__name__)

FAULT_SECONDS = 10.0  # shorter faults are repaired by the next attempt


class CoordinatorState(Struct, frozen=True, kw_only=True):
    """What a coordinator reports about itself."""

    leads: bool
    claims: int
    """How many claims wait for a lease."""
    unheard_seconds: float
    """For how long the API server has neither shown nor taken the Lease."""
    lease_seconds: float
    unfollowed_seconds: float
    """For how long the claims have not been followed; 0 while they are."""
    unwritten_seconds: float
    """For how long some node's hints could not be written."""
    unpublished_seconds: float = 0.0
    """For how long the slices of fabric devices could not be brought up to date."""


def not_ready(state: CoordinatorState) -> Iterator[str]:
    """Yield sentences why this process does not do a leader's work, or could not take it over."""
    if state.unheard_seconds > state.lease_seconds:
        yield "the API server does not show the Lease of the election"
    for fault, seconds in (
        ("the claims have not been followed", state.unfollowed_seconds),
        ("some node's hints could not be written", state.unwritten_seconds),
        ("fabric devices could not be published", state.unpublished_seconds),
    ):
        if state.leads and seconds > FAULT_SECONDS:
            yield f"{fault} for {seconds:.0f} s"


class Pages:
    """The pages of one process. ``state`` is asked at each request."""

    def __init__(self, state: Callable[[], CoordinatorState]) -> None:
        self._state = state
        self._metrics = Metrics(self._samples, COORDINATOR_TABLE)
        for result in ("OK", "failed"):
            self.wrote(result, 0)

    def wrote(self, result: str, times: int = 1) -> None:
        """Count writes of hints with this outcome."""
        self._metrics.count("coordinator_hint_writes", result, by=times)

    async def serve(self, port: Port) -> None:
        """Serve on the port; nowhere if it has no address. Raises ConfigError when it is taken."""
        port.serve(
            {
                ("GET", "/healthz"): lambda _: Response("ok\n"),  # an answer shows that the loop runs
                ("GET", "/readyz"): self._readyz,
                ("GET", "/metrics"): self._exposition,
            }
        )
        await port.bind()
        if port.address:
            log.info("listening", extra={"address": port.address})

    def _readyz(self, _: Request) -> Response:
        if reasons := list(not_ready(self._state())):
            return Response("".join(f"not ready: {reason}\n" for reason in reasons), HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")

    def _exposition(self, _: Request) -> Response:
        return Response(self._metrics.exposition(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def _samples(self) -> Iterator[Sample]:
        state = self._state()
        yield "coordinator_leading", (), state.leads
        yield "coordinator_following", (), not state.unfollowed_seconds  # only the leader follows claims
        yield "coordinator_pending_claims", (), state.claims
