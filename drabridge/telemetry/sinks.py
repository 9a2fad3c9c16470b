"""Turn facts into metrics, log lines and a short list of refusals. The reporters of facts know none of these."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import asdict

import deviceplugin
from drabridge.dra.observer import (
    ClaimHandled,
    LeaseEnded,
    LeaseOutcome,
    PublishFailed,
    RegistrationChanged,
    Requested,
    SlicesPublished,
    StatusWritten,
)
from drabridge.dra.observer import Fact as DraFact
from drabridge.inventory.observer import (
    EventSeen,
    FallbackGiven,
    MonitorRestarted,
    NvmlChanged,
    Reconciled,
    ReconcileFailed,
    SourceChanged,
    XidSeen,
)
from drabridge.inventory.observer import Fact as InventoryFact
from drabridge.ledger.effects import (
    Effect,
    LaneMoveAborted,
    LaneMoved,
    Notify,
    Readvertise,
    Refused,
    Released,
)
from drabridge.ledger.entries import ClaimRef
from drabridge.status.document import RecentRefusal
from drabridge.system.supervise import REPEAT_SECONDS
from drabridge.telemetry.metrics import Metrics
from podresources.transport import Attempt, Rpc

log = logging.getLogger("drabridge")

REFUSALS_KEPT = 20
XIDS_COUNTED = 1000  # each has a series of its own; NVIDIA's are below 200
_REASONS = frozenset({"because", "error", "lacks", "message", "problem", "why"})  # fields of facts


class Sinks:
    """Receives facts of every kind. Called on the event loop; never raises, never blocks.

    ``reconciled_at``: when the last full enumeration of devices ended; ``refusals``: the last ones, oldest first.
    """

    def __init__(
        self, metrics: Metrics, resource_of: Callable[[str], str], now: Callable[[], float] = time.time
    ) -> None:
        """``resource_of`` returns the resource of a device, by its name."""
        self._metrics = metrics
        self._resource_of = resource_of
        self._now = now
        self.reconciled_at = 0.0
        self._xid: XidSeen | None = None  # the last one that was logged
        self._xid_at = 0.0
        self._refused: dict[str, str] = {}  # resource -> kubelet's last answer to a refused registration
        self._kubelets: dict[str, int] = {}  # resource -> how many kubelets it has seen
        self.refusals: deque[RecentRefusal] = deque(maxlen=REFUSALS_KEPT)

    # The DevicePlugin side.

    def observe(self, fact: deviceplugin.Fact) -> None:
        """Implement :class:`deviceplugin.Observer`."""
        match fact:
            case deviceplugin.Registered():
                self._metrics.count("registrations", "deviceplugin", fact.resource, "OK")
                self._refused.pop(fact.resource, None)
                self._answered("Register", fact.seconds)
                _log("registered with kubelet", fact)
            case deviceplugin.RegisterFailed():
                self._metrics.count("registrations", "deviceplugin", fact.resource, fact.code)
                again = self._refused.get(fact.resource) == fact.message  # retries are frequent while kubelet is away
                self._refused[fact.resource] = fact.message
                _log("kubelet did not take the registration", fact, logging.DEBUG if again else logging.WARNING)
            case deviceplugin.KubeletSeen():
                self._count_kubelet(fact.resource)
            case deviceplugin.StreamEnded():
                _log("kubelet no longer listens", fact)
            case deviceplugin.ListSent():
                _log("list sent", fact)
            case deviceplugin.BindFailed():
                _log("no socket for kubelet", fact, logging.ERROR)
            case deviceplugin.Allocated():
                self._metrics.count("allocations", "deviceplugin", fact.resource, fact.code)
                self._answered("Allocate", fact.seconds, fact.code)
                if fact.code == "OK":
                    _log("allocated", fact)
                else:
                    _log("allocation refused", fact, logging.WARNING)
            case deviceplugin.Preferred():
                self._answered("GetPreferredAllocation", fact.seconds)
            case deviceplugin.PreStarted():
                self._answered("PreStartContainer", fact.seconds, fact.code)

    def _answered(self, method: str, seconds: float, code: str = "OK") -> None:
        self._metrics.time("grpc_request_duration_seconds", seconds, "deviceplugin", method, code)

    def _count_kubelet(self, resource: str) -> None:
        """Count a restart once, though every resource sees each kubelet.

        The first kubelet is no restart, nor is the one that a new resource finds.
        """
        so_far = max(self._kubelets.values(), default=0)
        seen = self._kubelets[resource] = self._kubelets.get(resource, max(so_far - 1, 0)) + 1
        if seen > max(so_far, 1):
            self._metrics.count("kubelet_restarts")

    # The inventory.

    def inventory(self, fact: InventoryFact) -> None:
        """Take a fact of :mod:`drabridge.inventory.observer`."""
        match fact:
            case EventSeen():
                self._metrics.count("udev_events", fact.subsystem, fact.action)
            case Reconciled():
                self._metrics.time("inventory_reconcile_duration_seconds", fact.seconds)
                if fact.full:
                    self.reconciled_at = self._now()
            case MonitorRestarted():
                self._metrics.count("inventory_monitor_restarts")
                _log("device events lost, all devices are enumerated again", fact, logging.WARNING)
            case SourceChanged():
                _log("device events followed", fact)
            case FallbackGiven(why=""):
                _log("CDI devices of other programs are given again", fact)
            case FallbackGiven(lacks=""):
                _log("CDI devices of other programs are missing, cdiFallback is given instead", fact, logging.WARNING)
            case FallbackGiven():
                message = "devices not given out, neither CDI devices nor the driver's files are there"
                _log(message, fact, logging.ERROR)
            case ReconcileFailed():
                _log("devices not enumerated, the last list stays", fact, logging.ERROR)
            case NvmlChanged(problem=""):
                _log("NVML answers", fact)
            case NvmlChanged():
                self._metrics.count("nvml_failures")
                _log("NVML is not asked, or does not answer", fact, logging.WARNING)
            case XidSeen():
                self._metrics.count("nvml_xids", str(fact.xid) if 0 < fact.xid < XIDS_COUNTED else "other")
                again = self._xid == fact and time.monotonic() - self._xid_at < REPEAT_SECONDS
                if not again:  # a program that goes on after its error may cause thousands of them
                    self._xid, self._xid_at = fact, time.monotonic()
                    _log("XID", fact, logging.WARNING)
            case _:
                assert_never(fact)

    # The DRA side.

    def dra(self, fact: DraFact) -> None:
        """Take a fact of :mod:`drabridge.dra.observer`."""
        match fact:
            case ClaimHandled():
                if fact.method == "prepare":
                    for device in fact.devices or ("",):
                        self._metrics.count("allocations", "dra", self._resource_of(device), str(fact.outcome))
                if fact.error:
                    _log(f"claim not {fact.method}d", fact, logging.WARNING)
                else:
                    _log(f"claim {fact.method}d", fact)
            case LeaseEnded():
                for device in fact.devices:
                    self._metrics.count("leases", self._resource_of(device), str(fact.outcome))
                self._metrics.time("lease_duration_seconds", fact.seconds, str(fact.outcome))
                if fact.outcome is LeaseOutcome.GRANTED:
                    _log("leased", fact)
                else:
                    _log("lease denied", fact, logging.WARNING)
            case Requested():
                self._metrics.time("grpc_request_duration_seconds", fact.seconds, "dra", fact.method, fact.code)
            case SlicesPublished():
                self._metrics.count("resourceslice_publish", "OK")
            case PublishFailed():
                self._metrics.count("resourceslice_publish", "failed")
            case StatusWritten():
                self._metrics.count("claim_status_writes", "failed" if fact.error else "OK")
                if fact.error:
                    _log("claim status not written", fact, logging.WARNING)
            case RegistrationChanged():
                self._metrics.count("registrations", "dra", "", "OK" if fact.registered else "refused")
                _log("registration of the DRA plugin changed", fact)
            case _:
                assert_never(fact)

    # Our questions to kubelet.

    def asked(self, attempt: Attempt) -> None:
        """Take one attempt of the PodResources client."""
        self._metrics.time("podresources_request_duration_seconds", attempt.seconds, str(attempt.rpc))
        if attempt.code != "OK" and attempt.rpc is not Rpc.GET:  # Get is called only to learn whether kubelet has it
            self._metrics.count("podresources_errors", attempt.code)

    # The ledger.

    def effect(self, effect: Effect, message: str = "") -> None:
        """Take one effect of a ledger step. ``message``: the text that a refused caller got."""
        match effect:
            case Refused():
                side, code = str(effect.side), str(effect.code)
                self._metrics.count("arbitration_refusals", side, self._resource_of(effect.device), code)
                self.refusals.append(RecentRefusal(self._now(), side, effect.device, code, message))
            case Released():
                _log("released", effect)
            case LaneMoved():
                direction = f"{effect.source}-to-{effect.target}"
                resource = self._resource_of(effect.device)
                self._metrics.time("lane_transfer_seconds", effect.seconds, resource, direction)
                _log("device moved", effect)
            case LaneMoveAborted():
                _log("lane move put off", effect, logging.WARNING)
            case Readvertise() | Notify():
                pass  # the agent acts on these
            case _:
                assert_never(effect)


def _log(message: str, fact: Struct, level: int = logging.INFO) -> None:
    """Log a fact with all its non-empty fields. The field that says why is named ``reason``, as in all records."""
    fields: dict[str, Any] = {}
    for name, value in asdict(fact).items():
        if isinstance(value, ClaimRef):
            fields |= {"claim": str(value), "uid": value.uid}
        elif isinstance(value, Struct):
            fields[name] = str(value)
        elif value not in ("", ()):
            fields["reason" if name in _REASONS else name] = round(value, 4) if isinstance(value, float) else value
    log.log(level, message, extra=fields)
