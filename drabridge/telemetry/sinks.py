"""Turn facts into metrics, log lines and a short memory of refusals. Who reports a fact knows none of these."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

import deviceplugin
from drabridge.dra.facts import (
    ClaimHandled,
    LeaseEnded,
    LeaseOutcome,
    PublishFailed,
    RegistrationChanged,
    Requested,
    SlicesPublished,
    StatusWritten,
)
from drabridge.dra.facts import Fact as DraFact
from drabridge.inventory.facts import (
    EventSeen,
    FallbackGiven,
    MonitorRestarted,
    NvmlChanged,
    Reconciled,
    ReconcileFailed,
    SourceChanged,
    XidSeen,
)
from drabridge.inventory.facts import Fact as InventoryFact
from drabridge.ledger.effects import (
    Effect,
    LaneMoveAborted,
    LaneMoved,
    Notify,
    Readvertise,
    Refused,
    Released,
)
from drabridge.status.document import RecentRefusal
from drabridge.system.supervise import REPEAT_SECONDS
from drabridge.telemetry.metrics import Metrics
from podresources.transport import Attempt, Rpc

log = logging.getLogger("drabridge")

REFUSALS_KEPT = 20
XIDS_COUNTED = 1000  # each has a series of its own; NVIDIA's are below 200


class Sinks:
    """Receives facts of every kind. Called on the event loop; never raises, never blocks.

    ``reconciled_at``: when the last full enumeration of devices ended; ``refusals``: the newest, oldest first.
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
        self._refused: dict[str, str] = {}  # resource -> what kubelet last said to a registration that it did not take
        self._kubelets: dict[str, int] = {}  # resource -> how many kubelets it has seen
        self.refusals: deque[RecentRefusal] = deque(maxlen=REFUSALS_KEPT)

    # The DevicePlugin side.

    def observe(self, fact: deviceplugin.Fact) -> None:
        """Implement :class:`deviceplugin.Observer`."""
        metrics = self._metrics
        match fact:
            case deviceplugin.Registered():
                metrics.count("registrations", "deviceplugin", fact.resource, "OK")
                self._refused.pop(fact.resource, None)
                metrics.time("grpc_request_duration_seconds", fact.seconds, "deviceplugin", "Register", "OK")
                log.info(
                    "registered with kubelet", extra={"resource": fact.resource, "seconds": round(fact.seconds, 4)}
                )
            case deviceplugin.RegisterFailed():
                metrics.count("registrations", "deviceplugin", fact.resource, fact.code)
                again = self._refused.get(fact.resource) == fact.message  # kubelet is asked often while it is away
                self._refused[fact.resource] = fact.message
                log.log(
                    logging.DEBUG if again else logging.WARNING,
                    "kubelet did not take the registration",
                    extra={"resource": fact.resource, "code": fact.code, "reason": fact.message},
                )
            case deviceplugin.KubeletSeen():
                self._count_kubelet(fact.resource)
            case deviceplugin.StreamEnded():
                log.info("kubelet no longer listens", extra={"resource": fact.resource, "after_seconds": fact.seconds})
            case deviceplugin.ListSent():
                log.info(
                    "list sent",
                    extra={"resource": fact.resource, "devices": fact.devices, "healthy": fact.healthy},
                )
            case deviceplugin.BindFailed():
                log.error("no socket for kubelet", extra={"resource": fact.resource, "reason": fact.error})
            case deviceplugin.Allocated():
                metrics.count("allocations", "deviceplugin", fact.resource, fact.code)
                metrics.time("grpc_request_duration_seconds", fact.seconds, "deviceplugin", "Allocate", fact.code)
                log.log(
                    logging.INFO if fact.code == "OK" else logging.WARNING,
                    "allocated" if fact.code == "OK" else "allocation refused",
                    extra={"resource": fact.resource, "ids": list(fact.ids), "code": fact.code, "reason": fact.message},
                )
            case deviceplugin.Preferred():
                method = "GetPreferredAllocation"
                metrics.time("grpc_request_duration_seconds", fact.seconds, "deviceplugin", method, "OK")
            case deviceplugin.PreStarted():
                method = "PreStartContainer"
                metrics.time("grpc_request_duration_seconds", fact.seconds, "deviceplugin", method, fact.code)

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
        """Take a fact of :mod:`drabridge.inventory.facts`."""
        match fact:
            case EventSeen():
                self._metrics.count("udev_events", fact.subsystem, fact.action)
            case Reconciled():
                self._metrics.time("inventory_reconcile_duration_seconds", fact.seconds)
                if fact.full:
                    self.reconciled_at = self._now()
            case MonitorRestarted():
                self._metrics.count("inventory_monitor_restarts")
                log.warning("device events lost, all devices are enumerated again", extra={"reason": fact.why})
            case SourceChanged():
                log.info("device events followed", extra={"source": str(fact.source)})
            case FallbackGiven(why=""):
                log.info("CDI devices of other programs are given again", extra={"resource": fact.resource})
            case FallbackGiven(lacks=""):
                log.warning(
                    "CDI devices of other programs are missing, cdiFallback is given in their place",
                    extra={"resource": fact.resource, "devices": fact.devices, "reason": fact.why},
                )
            case FallbackGiven():
                log.error(
                    "devices not given out, neither CDI devices nor the driver's files are there",
                    extra={"resource": fact.resource, "devices": fact.devices, "reason": fact.lacks},
                )
            case ReconcileFailed():
                log.error("devices not enumerated, the last list stays", extra={"reason": fact.why})
            case NvmlChanged(problem=""):
                log.info("NVML answers")
            case NvmlChanged():
                self._metrics.count("nvml_failures")
                log.warning("NVML is not asked, or does not answer", extra={"reason": fact.problem})
            case XidSeen():
                self._metrics.count("nvml_xids", str(fact.xid) if 0 < fact.xid < XIDS_COUNTED else "other")
                again = self._xid == fact and time.monotonic() - self._xid_at < REPEAT_SECONDS
                if not again:  # a program that goes on after its error may cause thousands
                    self._xid, self._xid_at = fact, time.monotonic()
                    log.warning("XID", extra={"gpu": fact.gpu, "xid": fact.xid})
            case _:
                assert_never(fact)

    # The DRA side.

    def dra(self, fact: DraFact) -> None:
        """Take a fact of :mod:`drabridge.dra.facts`."""
        match fact:
            case ClaimHandled():
                self._claim(fact)
            case LeaseEnded():
                self._lease(fact)
            case Requested():
                self._metrics.time("grpc_request_duration_seconds", fact.seconds, "dra", fact.method, fact.code)
            case SlicesPublished():
                self._metrics.count("resourceslice_publish", "OK")
            case PublishFailed():
                self._metrics.count("resourceslice_publish", "failed")
            case StatusWritten():
                self._metrics.count("claim_status_writes", "failed" if fact.error else "OK")
                if fact.error:
                    log.warning("claim status not written", extra={"claim": fact.claim, "reason": fact.error})
            case RegistrationChanged():
                self._metrics.count("registrations", "dra", "", "OK" if fact.registered else "refused")
                log.info(
                    "registration of the DRA plugin changed",
                    extra={"registered": fact.registered, "reason": fact.error},
                )
            case _:
                assert_never(fact)

    def _lease(self, fact: LeaseEnded) -> None:
        granted = fact.outcome is LeaseOutcome.GRANTED
        for device in fact.devices:
            self._metrics.count("leases", self._resource_of(device), str(fact.outcome))
        self._metrics.time("lease_duration_seconds", fact.seconds, str(fact.outcome))
        log.log(
            logging.INFO if granted else logging.WARNING,
            "leased" if granted else "lease denied",
            extra={
                "claim": str(fact.claim),
                "uid": fact.claim.uid,
                "devices": list(fact.devices),
                "outcome": str(fact.outcome),
                "seconds": round(fact.seconds, 4),
                "reason": fact.reason,
            },
        )

    def _claim(self, fact: ClaimHandled) -> None:
        if fact.method == "prepare":
            for device in fact.devices or ("",):
                self._metrics.count("allocations", "dra", self._resource_of(device), str(fact.outcome))
        log.log(
            logging.WARNING if fact.error else logging.INFO,
            f"claim {fact.method}d" if not fact.error else f"claim not {fact.method}d",
            extra={
                "claim": str(fact.claim),
                "uid": fact.claim.uid,
                "outcome": str(fact.outcome),
                "devices": list(fact.devices),
                "seconds": round(fact.seconds, 4),
                "reason": fact.error,
            },
        )

    # Our questions to kubelet.

    def asked(self, attempt: Attempt) -> None:
        """Take one attempt of the PodResources client."""
        self._metrics.time("podresources_request_duration_seconds", attempt.seconds, str(attempt.rpc))
        if attempt.code != "OK" and attempt.rpc is not Rpc.GET:  # Get is only asked for whether there is one
            self._metrics.count("podresources_errors", attempt.code)

    # The ledger.

    def effect(self, effect: Effect, message: str = "") -> None:
        """Take one effect of a ledger step; ``message`` is what a refused caller was told."""
        match effect:
            case Refused():
                resource = self._resource_of(effect.device)
                self._metrics.count("arbitration_refusals", str(effect.side), resource, str(effect.code))
                self.refusals.append(
                    RecentRefusal(self._now(), str(effect.side), effect.device, str(effect.code), message)
                )
            case Released():
                log.info(
                    "released",
                    extra={
                        "device": effect.device,
                        "holder": effect.holder,
                        "reason": effect.because,
                        "held_seconds": round(effect.held_seconds, 1),
                    },
                )
            case LaneMoved():
                direction = f"{effect.source}-to-{effect.target}"
                resource = self._resource_of(effect.device)
                self._metrics.time("lane_transfer_seconds", effect.seconds, resource, direction)
                log.info("device moved", extra={"device": effect.device, "lane": direction, "seconds": effect.seconds})
            case LaneMoveAborted():
                log.warning(
                    "lane move put off",
                    extra={"device": effect.device, "lane": str(effect.target), "reason": effect.because},
                )
            case Readvertise() | Notify():
                pass  # the agent acts on these
            case _:
                assert_never(effect)
