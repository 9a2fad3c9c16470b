"""The numbers behind the ledger's rules."""

from __future__ import annotations

from msgspec import Struct

from drabridge.system import safety_defaults as defaults


class LedgerPolicy(Struct, frozen=True):
    """Times in seconds, and switches. The agent sets them from the section ``safety`` of its configuration.

    Both take their defaults from ``drabridge.system.safety_defaults``, where each has its reason.
    """

    min_hold_seconds: float = defaults.MIN_HOLD_SECONDS
    unconfirmed_seconds: float = defaults.UNCONFIRMED_SECONDS
    absent_lists: int = 2  # one List can miss a pod (kubelet lists active pods only)
    absent_seconds: float = defaults.ABSENT_SECONDS
    settle_seconds: float = defaults.SETTLE_SECONDS
    quiesce_seconds: float = defaults.QUIESCE_SECONDS
    grace_seconds: float = 30.0  # where a pod's value is not known; as the API server's default (core/v1/defaults.go)
    tombstone_seconds: float = defaults.TOMBSTONE_SECONDS
