"""What a step decided: the answer, the replaced entries, and the effects that the caller must carry out."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from drabridge.ledger.entries import Entry, Lane, Ledger, NodeState


class RefusalCode(StrEnum):
    """Why a device was refused; the ``reason`` label of the refusal counter."""

    LEGACY_HELD = "legacy-held"
    CLAIM_HELD = "claim-held"
    CONFLICT = "conflict"
    QUARANTINE = "quarantine"
    OTHER_LANE = "other-lane"  # free, but not for this side (now)
    PENDING = "pending"  # its lease is not confirmed yet
    DENIED = "denied"  # the claim was denied the lease of it
    OVERCOMMITTED = "overcommitted"  # the shares of a shareable device exceed its capacity
    NOT_PRESENT = "not-present"  # gone or faulty
    UNKNOWN = "unknown"  # no such device
    STARTING = "starting"  # the agent has not merged its ledger yet
    NOT_DURABLE = "not-durable"  # the ledger could not be written
    STALE = "stale"  # an answer about an earlier state
    IN_USE = "in-use"  # the operator's request contradicts evidence
    CORDONED = "cordoned"  # it is out of service
    NO_LEASE = "no-lease"  # free for both sides; a claim gets it by a lease only


class Refusal(Struct, frozen=True):
    """One device that was refused, in words that reach a person through ``kubectl describe pod``."""

    device: str
    code: RefusalCode
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class Decision(Struct, frozen=True):
    """The answer to an event. A refused event has changed no owner."""

    accepted: bool
    refusals: tuple[Refusal, ...] = ()

    def __str__(self) -> str:
        return "; ".join(str(refusal) for refusal in self.refusals) or "accepted"


ACCEPTED = Decision(True)


class Side(StrEnum):
    """Which API a request came through."""

    LEGACY = "legacy"
    DRA = "dra"


class Readvertise(Struct, frozen=True):
    """A side was refused devices that it believes free: send it the current offers again, at once."""

    devices: tuple[str, ...]
    side: Side


class Refused(Struct, frozen=True):
    """Count one refusal of ``device``."""

    side: Side
    code: RefusalCode
    device: str


class Released(Struct, frozen=True):
    """A holder no longer holds the device. For a claim, ``held_seconds`` count from when it was prepared."""

    device: str
    holder: str
    because: str
    held_seconds: float


class LaneMoved(Struct, frozen=True):
    """A move has ended. ``seconds`` counts from when it was asked for."""

    device: str
    source: Lane
    target: Lane
    seconds: float


class LaneMoveAborted(Struct, frozen=True):
    """A device was taken during its move. It moves when it is released."""

    device: str
    target: Lane
    because: str


class Subject(StrEnum):
    """What a Kubernetes Event is about."""

    NODE = "Node"
    POD = "Pod"
    CLAIM = "ResourceClaim"


class Notify(Struct, frozen=True):
    """A Kubernetes Event that a person should see. ``namespace`` and ``name`` are empty for the node."""

    subject: Subject
    reason: str  # CamelCase, as Events have it
    message: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    warning: bool = True


Effect = Readvertise | Refused | Released | LaneMoved | LaneMoveAborted | Notify


class Step(Struct, frozen=True):
    """The result of one event. If ``durable``, the result must be on disk before anybody is told of it."""

    decision: Decision
    changes: tuple[Entry, ...] = ()
    removed: tuple[str, ...] = ()
    node: NodeState | None = None
    effects: tuple[Effect, ...] = ()
    durable: bool = False

    def __bool__(self) -> bool:
        """Whether the ledger changed."""
        return bool(self.changes or self.removed or self.node is not None)

    def applied_to(self, ledger: Ledger) -> Ledger:
        """Return the ledger after this step."""
        if not self:
            return ledger
        return ledger.replace(self.changes, self.removed, self.node)
