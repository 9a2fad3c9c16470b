"""What can happen to the ledger. Every event carries ``at`` in wall-clock seconds; the ledger itself has no clock.

``since_seq`` of an answer is ``Ledger.seq`` at the moment when the gathering of the answer *began*. The answer is not
believed about a device that changed after that moment.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from drabridge.ledger.entries import ClaimRef, ClaimShare, Lane, LedgerDevice, PodRef
from drabridge.ledger.proofs import End

Unit = tuple[str, str]  # the resource that kubelet counts it under, and kubelet's id; ids alone are not unique
Pods = Mapping[Unit, tuple[PodRef, ...]]  # the containers that kubelet shows with a unit


# --- requests of kubelet and of the API server ----------------------------------------------------------------------


class Allocate(Struct, frozen=True):
    """Kubelet called Allocate. All devices are given, or none."""

    units: Mapping[str, tuple[str, ...]]  # device name -> the units of it that kubelet chose
    at: float
    resource: str = ""  # whose server was asked; empty: the devices' own


class DeviceUse(Struct, frozen=True):
    """One device of a claim's allocation."""

    device: str
    share: ClaimShare | None = None
    admin: bool = False
    lease: bool = False  # its allocation has our binding condition: the scheduler waits until we set it


class ClaimDevices(Struct, frozen=True):
    """A claim with those of its devices that are ours, as the API server, kubelet or a CDI file shows it."""

    claim: ClaimRef
    uses: tuple[DeviceUse, ...]


class ClaimAllocated(Struct, frozen=True):
    """The API server shows ``claim`` allocated with these devices of ours. May be repeated; ``uses`` is complete."""

    claim: ClaimRef
    uses: tuple[DeviceUse, ...]
    at: float


class ClaimDeallocated(Struct, frozen=True):
    """The claim lost its allocation: it has none or another one, or the claim is gone (or replaced by one with another
    UID).
    """

    uid: str
    at: float
    kept: frozenset[str] = frozenset()  # devices that the new allocation has as well


class Prepare(Struct, frozen=True):
    """Kubelet called NodePrepareResources for a claim. All devices are given, or none.

    The API server was asked just now and shows the claim allocated.
    """

    claim: ClaimRef
    uses: tuple[DeviceUse, ...]
    at: float
    grace: float = 0.0  # seconds that the claim's pods have to end when they are deleted; 0: not known


class Unprepare(Struct, frozen=True):
    """No container uses the claim and its CDI file is gone: NodeUnprepareResources, or a Prepare that was undone.

    ``lingers``: seconds for which processes of a pod that is gone may still run. The event comes again when that time
    is over, or earlier with ``ended``, once the pods were seen to end.
    """

    uid: str
    at: float
    lingers: float = 0.0
    ended: bool = False


# --- evidence -------------------------------------------------------------------------------------------------------


class CheckpointRead(Struct, frozen=True):
    """What kubelet's checkpoint file says."""

    pods: Pods
    barrier: bool = True  # read after List and a re-sent ListAndWatch, so it is fresh


class Observed(Struct, frozen=True):
    """One round of evidence. ``None`` means that this source could not be asked, which is not the same as "nobody"."""

    at: float
    since_seq: int
    listed: Pods | None = None  # PodResources List
    checkpoint: CheckpointRead | None = None
    unaccounted: Mapping[str, tuple[str, ...]] | None = None
    """From the API server: resource -> pods bound here, not terminal, that ask for more of it than kubelet shows."""
    opened: Mapping[str, bool] | None = None  # open-file probe: device name -> a process has its node open
    claimed: Mapping[str, tuple[ClaimRef, ...]] = field(default_factory=dict)
    """From PodResources: device name -> claims that give it to a container."""
    allocated: tuple[ClaimDevices, ...] | None = ()
    """LIST of claims, asked for while a device is in quarantine; None: the API server did not answer."""
    ends: Mapping[str, End] = field(default_factory=dict)
    """From the API server: UIDs of pods that have ended, and how much of the end was seen."""
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """From the API server: pod UID -> namespace and name."""
    grace: Mapping[str, float] = field(default_factory=dict)
    """From the API server: pod UID -> seconds that the pod has to end when it is deleted."""
    alone: bool = False  # no API server is followed: no claim gets a device, and kubelet's word is enough
    recorded: Pods = field(default_factory=dict)
    """The checkpoint as it was before List, which makes kubelet forget pods that have ended. It names the pod of each
    Allocate, however short its life was, unless kubelet had not written it yet."""
    lingering: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """From the API server: device name -> pods that are gone, were not seen to end, and may run on with the device."""


# --- devices --------------------------------------------------------------------------------------------------------


class Discovered(Struct, frozen=True):
    """The inventory's present devices. A known device that is missing here counts as gone."""

    devices: tuple[LedgerDevice, ...]
    at: float
    lanes: Mapping[str, Lane] = field(default_factory=dict)
    """The first lane of a device that the ledger has never seen; LEGACY if it is not named here. After the first merge,
    a device that starts in DRA is offered to claims only once kubelet has confirmed that no pod has it."""
    prepared: tuple[ClaimDevices, ...] = ()
    """Claims that may be in use on this node. The merge could not record them on a device that was not there."""
    cordoned: Mapping[str, str] = field(default_factory=dict)  # as in :class:`Cordoned`


class Cordoned(Struct, frozen=True):
    """These devices, and no others, are out of service: their holders keep them, and nobody else gets them."""

    devices: Mapping[str, str]  # device name -> why, never empty
    at: float


class Forgotten(Struct, frozen=True):
    """The inventory will not see these devices again. Each is dropped if nobody holds it and its ids are quiescent."""

    devices: tuple[str, ...]
    at: float


# --- moves between lanes --------------------------------------------------------------------------------------------


class SetLane(Struct, frozen=True):
    """Move a device to a lane: LEGACY, DRA, or SHARED. A held device moves when it is released."""

    device: str
    lane: Lane
    at: float
    reason: str = ""


class WithdrawnFromKubelet(Struct, frozen=True):
    """Kubelet no longer offers the device: GetAllocatableResources lacks it, and no call of Allocate or
    GetPreferredAllocation was open here. ``since_seq``: of the ledger when kubelet was asked.
    """

    device: str
    since_seq: int
    at: float


class WithdrawnFromSlices(Struct, frozen=True):
    """The API server accepted a slice without the device (or with the device tainted; the slice was read back)."""

    device: str
    since_seq: int
    at: float


class NoClaimListed(Struct, frozen=True):
    """A quorum LIST of claims, asked after the device left the slices, shows no claim with the device."""

    device: str
    since_seq: int
    at: float


# --- starts and losses ----------------------------------------------------------------------------------------------


class NodeBooted(Struct, frozen=True):
    """The node's boot id. If it differs from the ledger's, no container of the ledger's time is running."""

    boot_id: str
    at: float


class KubeletStarted(Struct, frozen=True):
    """Kubelet's socket is there, or kubelet opened ListAndWatch.

    A process other than the known one, or one that cannot be identified, does not know all of its pods yet.
    """

    at: float
    kubelet: str = ""  # the process (deviceplugin.kubelet_process); "": not known


class AgentStarted(Struct, frozen=True):
    """An agent started: merge what it found with the ledger. In doubt the holder stays."""

    at: float
    prepared: tuple[ClaimDevices, ...] = ()
    """Claims that have records or CDI files on this node, or that kubelet shows with a container."""
    listed: Pods | None = None
    checkpoint: CheckpointRead | None = None
    kubelet: str = ""  # the process that answers at kubelet's socket; "": none does


class RecordLost(Struct, frozen=True):
    """The durable state cannot be read: nobody knows who holds what until evidence or a person says so.

    With ``devices``, only these may have holders that are not on record; all other holders are known.
    """

    at: float
    devices: tuple[str, ...] = ()
    reason: str = ""


class ManualRelease(Struct, frozen=True):
    """The operator says that nobody uses a device in CONFLICT, in QUARANTINE, or left prepared.

    Refused while kubelet or the API server says otherwise: stop the pod first. After a CONFLICT one side may remain.
    """

    device: str
    at: float
    ended: frozenset[str] = frozenset()  # UIDs of its claims that no container uses, as far as kubelet was asked


# --- the lease ------------------------------------------------------------------------------------------------------


class LeaseGranted(Struct, frozen=True):
    """The binding conditions shall be set on the claim and on ``others``, for which the same pod waits.

    Refused unless kubelet has given up all of their devices.
    """

    claim: ClaimRef
    at: float
    others: tuple[ClaimRef, ...] = ()


class LeaseDenied(Struct, frozen=True):
    """The claim's failure condition shall be set, once the slices show its devices with a taint.

    ``uses``: the claim's devices here. Other devices that the claim has in the ledger are denied as well. The event is
    refused if the claim was granted all of its devices.
    """

    claim: ClaimRef
    uses: tuple[DeviceUse, ...]
    at: float
    reason: str


Event = (
    Allocate
    | ClaimAllocated
    | ClaimDeallocated
    | Prepare
    | Unprepare
    | Observed
    | Discovered
    | Cordoned
    | Forgotten
    | SetLane
    | WithdrawnFromKubelet
    | WithdrawnFromSlices
    | NoClaimListed
    | NodeBooted
    | KubeletStarted
    | AgentStarted
    | RecordLost
    | ManualRelease
    | LeaseGranted
    | LeaseDenied
)
