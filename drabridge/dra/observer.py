"""Define the facts of the DRA side, of which metrics and logs are made elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from drabridge.ledger.entries import ClaimRef


class ClaimOutcome(StrEnum):
    """How a prepare or unprepare of one claim ended; a bounded label."""

    OK = "ok"
    REPLAYED = "replayed"  # it was prepared before: the same answer again
    REFUSED = "refused"  # by the ledger: somebody else holds a device
    INVALID = "invalid"  # the claim's parameters, or the claim itself
    FAILED = "failed"  # the node or the API server
    CANCELLED = "cancelled"  # kubelet unprepared the claim meanwhile, or the agent stopped: rolled back


class ClaimHandled(Struct, frozen=True):
    """One claim of a prepare or unprepare call was answered. ``error`` is what kubelet was told."""

    method: str  # "prepare" or "unprepare"
    claim: ClaimRef
    outcome: ClaimOutcome
    seconds: float
    devices: tuple[str, ...] = ()
    error: str = ""


class Requested(Struct, frozen=True):
    """One gRPC call was answered. ``code`` is the name of the gRPC status."""

    method: str
    code: str
    seconds: float


class RegistrationChanged(Struct, frozen=True):
    """Kubelet said whether it accepts the plugin."""

    registered: bool
    error: str = ""


class SlicesPublished(Struct, frozen=True):
    """The API server has the slices that it should have, after writes."""


class PublishFailed(Struct, frozen=True):
    """Writing slices failed; it is tried again."""

    error: str


class StatusWritten(Struct, frozen=True):
    """A claim's ``status.devices`` was written, or writing it was given up: ``error`` says why."""

    claim: str  # its UID
    error: str = ""


class LeaseOutcome(StrEnum):
    """How a claim's wait for its lease ended; a bounded label."""

    GRANTED = "granted"
    HELD = "held"  # a device was held, or not there
    TIMEOUT = "timeout"  # kubelet did not give a device up in time
    UNSUPPORTED = "unsupported"  # the API server, or the pod's scheduler, does not support binding conditions


class LeaseEnded(Struct, frozen=True):
    """A claim was told that it has its lease, or does not get it. ``seconds``: since its allocation was seen."""

    claim: ClaimRef
    devices: tuple[str, ...]
    outcome: LeaseOutcome
    seconds: float
    reason: str = ""


Fact = ClaimHandled | LeaseEnded | Requested | RegistrationChanged | SlicesPublished | PublishFailed | StatusWritten
Observer = Callable[[Fact], None]
