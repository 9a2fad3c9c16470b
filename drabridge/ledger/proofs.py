"""The table of proofs: which facts prove that a pod's hold has ended.

A proof ends a hold at once. Without a proof the hold waits (:mod:`drabridge.ledger.release_rule`).

A hold belongs to the pods that kubelet's checkpoint names with the device, by UID, after the last Allocate. No other
pod can have got the device since, because kubelet gives it to nobody without another Allocate. But a pod that had it
before may still run, if it was deleted by force. So the hold has ended if kubelet has reported the end of every one of
these pods, by UID, and shows no pod on the device.

Kubelet's List proves nothing by itself: it has neither UIDs nor states, leaves out plain init containers, and forgets
pods that were deleted by force and still run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class End(StrEnum):
    """How a pod ended, as far as the API server and kubelet have shown. Only the last one proves anything.

    The weakest comes first. People are told the value.
    """

    # Kubelet's checkpoint was deleted while a pod runs: nobody knows the UID of the pod that had the device before.
    FORGOTTEN = "kubelet gave its device out again without having shown it"
    # The checkpoint was deleted or cannot be read; or only the pod's name is known, which another pod may have now.
    UNIDENTIFIED = "kubelet's checkpoint did not name it"
    # A force-deleted pod, also if kubelet gave its device to another pod at once; a pod that was deleted while the
    # watch was lost; a static pod, whose UID is used again; a node without access to the API server. The object may be
    # gone before the processes.
    NOT_SEEN = "nobody saw it end"
    # A pod that was rejected after Allocate, evicted, or never started; or a phase that was written by pod garbage
    # collection or somebody else. Containers that have no status, or may be started again, may run.
    PHASE_ONLY = "its phase is terminal, and not every container is known to have terminated for good"
    # A pod that succeeded or failed, or was deleted as usual. It counts even if the object is gone by now, kubelet or
    # the agent restarted, or the API server is away: no container of that UID runs or will run again.
    REPORTED = "kubelet reported that every container has terminated"

    @property
    def proves(self) -> bool:
        """Whether a pod with this end certainly holds nothing."""
        return self is End.REPORTED


_WEAKEST_FIRST = tuple(End)


def end_of(recorded: Iterable[str], ends: Mapping[str, End], *, retaken: bool = False) -> End:
    """Return how the pods of a hold ended: of several ends, the one that proves least.

    ``recorded``: their UIDs in kubelet's checkpoint. ``ends``: what the API server showed, by UID. ``retaken``: a
    kubelet that had not shown the hold gave the device out again.
    """
    found = {ends.get(uid, End.NOT_SEEN) for uid in recorded} or {End.UNIDENTIFIED}
    if retaken:
        found.add(End.FORGOTTEN)
    return min(found, key=_WEAKEST_FIRST.index)
