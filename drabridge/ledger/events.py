"""What can happen to the ledger. Every event carries ``at``, wall-clock seconds; the ledger itself has no clock.

``since_seq`` in an answer that somebody gathered is ``Ledger.seq`` when the gathering *began*: what it says about a
device that changed hands after that is out of date, and is not believed.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from drabridge.ledger.model import ClaimRef, ClaimShare, Lane, LedgerDevice, PodRef

Unit = tuple[str, str]  # the resource that kubelet counts it under, and kubelet's id: both, for ids alone are no names
Pods = Mapping[Unit, tuple[PodRef, ...]]  # the containers that kubelet shows with a unit


class Discovered(Struct, frozen=True):
    """The inventory's present devices. A known device that is missing here is treated as gone.

    ``lanes`` says where a device starts that the ledger has never seen (the planner's choice; legacy by default). After
    the first merge claims get it only once kubelet has confirmed that it is free, and ``prepared`` are the claims that
    may be in use on this node: the merge could not know of those on a device that was not there.
    """

    devices: tuple[LedgerDevice, ...]
    at: float
    lanes: Mapping[str, Lane] = field(default_factory=dict)
    prepared: tuple[ClaimDevices, ...] = ()


class Forgotten(Struct, frozen=True):
    """The inventory will not see these devices again: drop them, if nobody holds them and their ids are quiescent."""

    devices: tuple[str, ...]
    at: float


class Allocate(Struct, frozen=True):
    """Kubelet's Allocate: device name -> the units of it that kubelet chose. All or nothing."""

    units: Mapping[str, tuple[str, ...]]
    at: float
    resource: str = ""  # whose server was asked; empty: the devices' own


class DeviceUse(Struct, frozen=True):
    """One device of a claim's allocation."""

    device: str
    share: ClaimShare | None = None
    admin: bool = False


class ClaimDevices(Struct, frozen=True):
    """A claim with its devices of ours, as the API server, kubelet or a CDI file shows it."""

    claim: ClaimRef
    uses: tuple[DeviceUse, ...]


class CheckpointRead(Struct, frozen=True):
    """Kubelet's checkpoint file. ``barrier``: it was read after List and a re-sent ListAndWatch, so it is fresh."""

    pods: Pods
    barrier: bool = True


class Observed(Struct, frozen=True):
    """One round of evidence. ``None`` means that the evidence could not be asked, which is not the same as silence."""

    at: float
    since_seq: int
    listed: Pods | None = None  # PodResources List
    checkpoint: CheckpointRead | None = None
    unaccounted: Mapping[str, tuple[str, ...]] | None = None
    """From the API server: resource -> pods bound here, not terminal, that ask for more of it than kubelet shows."""
    opened: Mapping[str, bool] | None = None  # physical probe: device name -> a process has its node open
    claimed: Mapping[str, tuple[ClaimRef, ...]] = field(default_factory=dict)
    """From PodResources: device name -> claims that a container has it by."""
    allocated: tuple[ClaimDevices, ...] | None = ()
    """LIST of claims, asked for while a device is in quarantine; None: the API server did not answer."""
    ended: frozenset[str] = frozenset()
    """From the API server: UIDs of pods that were seen to have ended, all of their containers included."""
    grace: Mapping[str, float] = field(default_factory=dict)
    """From the API server: the UIDs of pods -> seconds that they have to end when they are deleted."""
    alone: bool = False  # no API server is followed: no claim gets a device, and kubelet's word is enough


class KubeletStarted(Struct, frozen=True):
    """Kubelet's socket is there, or kubelet opened ListAndWatch. Another process than the one known so far, or one of
    which nobody can tell, does not know all of its pods yet.
    """

    at: float
    kubelet: str = ""  # the process (deviceplugin.kubelet_process); "": not known


class ClaimAllocated(Struct, frozen=True):
    """The API server shows ``claim`` allocated with these devices of ours. May be repeated; ``uses`` is complete."""

    claim: ClaimRef
    uses: tuple[DeviceUse, ...]
    at: float
    guarded: bool = False  # every result carries our binding condition (G2)


class ClaimDeallocated(Struct, frozen=True):
    """The API server shows the claim without allocation, not at all (or replaced: another UID), or allocated anew:
    ``kept`` are the devices that it has now.
    """

    uid: str
    at: float
    kept: frozenset[str] = frozenset()


class Prepare(Struct, frozen=True):
    """NodePrepareResources for one claim that the API server, asked just now, shows allocated. All or nothing.

    ``grace``: seconds that the pods of the claim have to end when they are deleted; 0: not known.
    """

    claim: ClaimRef
    uses: tuple[DeviceUse, ...]
    at: float
    grace: float = 0.0


class Unprepare(Struct, frozen=True):
    """No container uses the claim, its CDI file is gone: NodeUnprepareResources, or a Prepare that was undone.

    ``lingers``: kubelet says so, and processes of a pod that is gone may go on for so many seconds. The event comes
    again when the time is over; or earlier, with ``ended``, when the pods were seen to end all the same.
    """

    uid: str
    at: float
    lingers: float = 0.0
    ended: bool = False


class SetLane(Struct, frozen=True):
    """Move a device to a lane: LEGACY, DRA, or SHARED. A held device is moved when it is let go."""

    device: str
    lane: Lane
    at: float
    reason: str = ""


class WithdrawnFromKubelet(Struct, frozen=True):
    """Kubelet's acknowledgement: GetAllocatableResources no longer has the device, and no Allocate or
    GetPreferredAllocation of ours was open. ``since_seq``: the ledger when that question was asked."""

    device: str
    since_seq: int
    at: float


class WithdrawnFromSlices(Struct, frozen=True):
    """The API server has accepted a slice without the device (or with it tainted, read back)."""

    device: str
    since_seq: int
    at: float


class NoClaimListed(Struct, frozen=True):
    """A LIST of claims with quorum, asked after the slice was withdrawn, shows none with the device."""

    device: str
    since_seq: int
    at: float


class NodeBooted(Struct, frozen=True):
    """The node's boot id. Another than the ledger's means: no container of the ledger's time is running."""

    boot_id: str
    at: float


class AgentStarted(Struct, frozen=True):
    """An agent began: what it found, to be merged with the ledger. In doubt the holder stays.

    ``prepared`` are the claims that have records or CDI files on this node, or that kubelet shows with a container.
    """

    at: float
    prepared: tuple[ClaimDevices, ...] = ()
    listed: Pods | None = None
    checkpoint: CheckpointRead | None = None
    kubelet: str = ""  # the process that answers at kubelet's socket; "": none does


class RecordLost(Struct, frozen=True):
    """The durable state cannot be read: nobody knows who holds what, and it takes a merge to go on.

    With ``devices`` all else is known, and these may have holders that are not on record.
    """

    at: float
    devices: tuple[str, ...] = ()
    reason: str = ""


class ManualRelease(Struct, frozen=True):
    """The operator says that nobody uses a device in CONFLICT, QUARANTINE, or left prepared.

    Refused while kubelet or the API server says otherwise: stop the pod first. Of a CONFLICT one side may be left.
    """

    device: str
    at: float
    ended: frozenset[str] = frozenset()  # UIDs of its claims that no container uses, as far as kubelet was asked


class LeaseGranted(Struct, frozen=True):
    """G2: every condition for the claim's lease is met; its binding condition may be set."""

    uid: str
    at: float


class LeaseDenied(Struct, frozen=True):
    """G2: the lease is refused (timeout, contention); the failure condition is to be set."""

    uid: str
    at: float
    reason: str = ""


Event = (
    Discovered
    | Forgotten
    | Allocate
    | Observed
    | KubeletStarted
    | ClaimAllocated
    | ClaimDeallocated
    | Prepare
    | Unprepare
    | SetLane
    | WithdrawnFromKubelet
    | WithdrawnFromSlices
    | NoClaimListed
    | NodeBooted
    | AgentStarted
    | RecordLost
    | ManualRelease
    | LeaseGranted
    | LeaseDenied
)
