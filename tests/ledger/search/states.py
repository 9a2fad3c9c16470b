"""The parts of a small world: what a pod, a claim, kubelet and the scheduler can be, and which worlds there are."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

from drabridge.ledger import eligibility
from drabridge.ledger import events as ev
from drabridge.ledger.apply_event import step
from drabridge.ledger.effects import Step
from drabridge.ledger.entries import Entry, Lane, Ledger, LedgerDevice, PodRef
from drabridge.ledger.policy import LedgerPolicy
from tests.ledger.search import invariants

NOW = 1.0  # the time of every event; what happened "long ago" happened at 0
POLICY = LedgerPolicy(
    min_hold_seconds=1,
    unconfirmed_seconds=1,
    absent_lists=2,
    absent_seconds=1,
    settle_seconds=1,
    quiesce_seconds=1,
    tombstone_seconds=1,
    grace_seconds=0,
)


class P(IntEnum):
    """A legacy pod's life."""

    IDLE = 0  # bound to the node
    CHOSEN = 1  # kubelet has chosen a device; its Allocate is on the way
    REPLIED = 2  # Allocate was answered with yes; kubelet has not recorded it yet
    INIT = 3  # runs a plain init container: in kubelet's checkpoint, not in PodResources
    RUN = 4
    ZOMBIE = 5  # force-deleted: kubelet and the API have forgotten it, its processes run
    DONE = 6
    ENDED = 8  # kubelet reported its end; it may still be named in kubelet's checkpoint until that is written again
    SKIPPED = 7  # it runs, and a kubelet that lost its checkpoint skips it: it is in neither of kubelet's answers


class K(IntEnum):
    """What kubelet has done with a claim."""

    NEW = 0
    TRIED = 1  # Prepare failed, or its answer was lost
    RUNNING = 2
    STOPPED = 3  # no container; Unprepare is due
    DONE = 4
    ZOMBIE = 5  # force-deleted and unprepared; its processes run


class L(IntEnum):
    """How far the agent is with the lease of a claim."""

    NONE = 0  # it does not look at the claim
    READ = 1  # it has read which devices the claim was allocated
    WAITS = 2  # for kubelet: the ledger knows of the allocation
    LEASED = 3  # the ledger granted the lease; the condition is on its way
    DENIED = 4  # the ledger denied it; the failure condition waits for the slices


class Keeper(NamedTuple):
    """The agent's work on a claim's lease: what it read of it, and whether the claim is still as it was read."""

    step: int = L.NONE
    devices: int = 0
    fresh: bool = False


class Claim(NamedTuple):
    """A claim: its life in the API (0 new, 1 allocated, 2 deallocated), what the agent's watch has shown, kubelet."""

    api: int = 0
    seen: int = 0
    devices: int = 0  # bit mask
    kubelet: int = K.NEW
    cdi: bool = False  # its CDI file is on the node
    told: int = 0  # its condition in the API: 1 leased, 2 denied
    keeper: Keeper = Keeper()

    @property
    def waits(self) -> bool:
        """Whether the scheduler waits for a condition of it."""
        return self.api == 1 and not self.told and self.kubelet == K.NEW


Pod = tuple[int, int]  # phase, device (-1: none)


class Gathered(NamedTuple):
    """One round of evidence as it was when the gathering began; bit masks over the devices."""

    listed: int
    checkpoint: int
    opened: int
    healthy: int
    api: int
    shown: int  # kubelet shows a container that has it by a claim
    allocated: tuple[int, ...] | None  # by claim, in the API; None: not asked
    unaccounted: bool
    recorded: tuple[int, ...]  # by device: the pods that kubelet's checkpoint named before List
    reported: int  # the pods whose end the API server has shown
    cluster: bool  # whether the API server answered


class State(NamedTuple):
    """Everything. ``ledger`` is the number of an interned ledger."""

    ledger: int
    healthy: int  # what kubelet believes Healthy
    api: int  # what the slices in the API offer
    scheduler: int  # what a scheduler may still choose: never less than ``api``
    up: bool  # the agent runs
    known: bool  # kubelet has re-synced all of its pods since its start
    noticed: bool  # kubelet's stream to the agent is open
    gathered: Gathered | None
    pods: tuple[Pod, ...]
    claims: tuple[Claim, ...]
    faults: int  # how many more may happen
    moves: int  # how many more changes of lane the operator asks for


Stepper = Callable[[Ledger, ev.Event, LedgerPolicy], Step]


class Config(Struct, frozen=True):
    """Which world.

    ``kinds`` are the faults that may happen, ``faults`` of them altogether in any order: ``crash`` (the agent is
    killed, between requests and inside them), ``kubelet`` (restarts), ``force`` (a pod is force-deleted), ``reboot``,
    ``lost`` (the agent's record), ``unplug``, ``forget`` (kubelet restarts without its checkpoint). A partition from
    the API server, and a watch that was lost, are not counted: slices, watch and start, and evidence that is applied at
    once, can always do without the API server, for any time and any number of times.
    """

    devices: int = 2
    pods: int = 2
    claims: int = 2
    faults: int = 1
    kinds: frozenset[str] = frozenset({"crash", "kubelet", "force", "reboot", "lost"})
    whole_claims: bool = True  # a claim may want both devices
    late_evidence: bool = True  # evidence may be applied long after it was gathered
    checkpoint: bool = True  # kubelet's checkpoint can be read; otherwise the API server is the second source
    files_lost: bool = False  # the CDI files of claims may be lost with the record
    claims_shown: bool = False  # kubelet shows claims with their containers (1.34 and later)
    probe: bool = False  # open file descriptors are looked at, so force-deleted pods may live for any time
    proofs: bool = False  # pods are known by their UIDs, and the API server shows how they ended
    grace: bool = False  # processes of force-deleted pods outlive the usual absence, for their grace period at most
    lanes: tuple[Lane, Lane] = (Lane.LEGACY, Lane.DRA)  # of the devices at the start
    one_place: bool = False  # both are the same hardware: a GPU for containers, and bound to vfio-pci
    leases: bool = False  # both APIs share all devices of ``lanes`` but those of the DRA lane; the operator moves none
    prompt: bool = False  # with leases: slices, scheduler and what the agent reads of claims are never late
    bound_early: bool = False  # with leases: pods are bound whatever their claims' conditions say
    moves: int = 1  # changes of lane that the operator asks for
    cordons: bool = False  # these are no changes of lane: the operator takes a device out of service, and back
    policy: LedgerPolicy = POLICY
    """What follows breaks the agent around the ledger, or the ledger itself: for the mutants."""
    step: Stepper = step
    reply_before_durable: bool = False
    restart_as_free: bool = False
    drop_ids: bool = False
    told_blindly: bool = False  # a condition is set whatever the claim has become
    told_early: bool = False  # a denial is told before the slices show it
    offer: Callable[[Ledger, Entry], bool] = eligibility.legacy_healthy


def hardware(config: Config) -> list[LedgerDevice]:
    """The devices of a world, free of holders."""
    place = "/sys/gpu" if config.one_place else ""
    return [LedgerDevice(name, "r", (name,), syspath=place) for name in DEVICES[: config.devices]]


class Broken(Exception):
    """An invariant does not hold."""

    def __init__(self, violations: tuple[invariants.Violation, ...]) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations


DEVICES = ("d0", "d1")
UIDS = ("c0", "c1")
USING = frozenset({P.INIT, P.RUN, P.ZOMBIE, P.SKIPPED})  # a process of the pod has the device
SWAPPED = (0b00, 0b10, 0b01, 0b11)  # a mask with the two devices exchanged
POD = (PodRef("ns", "pod", uid="pod-uid"),)
PODS = (PodRef(uid="p0"), PodRef(uid="p1"))
GRACE = {"pod-uid": 2.0}  # more than the policy's absence


def bits(mask: int) -> tuple[int, ...]:
    """The devices of a mask."""
    return ((), (0,), (1,), (0, 1))[mask]


def names(mask: int) -> str:
    """The devices of a mask, for people."""
    return ",".join(DEVICES[device] for device in bits(mask)) or "nothing"


def with_pod(state: State, index: int, phase: P, device: int = -1) -> State:
    """The state with another life of one pod."""
    return state._replace(pods=(*state.pods[:index], (phase, device), *state.pods[index + 1 :]))


def with_claim(state: State, index: int, claim: Claim) -> State:
    """The state with another life of one claim."""
    return state._replace(claims=(*state.claims[:index], claim, *state.claims[index + 1 :]))
