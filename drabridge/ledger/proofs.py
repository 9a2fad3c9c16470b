"""The table of proofs: which facts prove that a pod's hold has ended.

What is proven acts at once. What is not proven is doubt, and waits (:mod:`drabridge.ledger.release_rule`).

A hold is of the pods that kubelet recorded with the device after the last Allocate, by UID: its checkpoint names them.
Nobody else can have got the device since, because kubelet gives it to nobody without another Allocate; but who had it
before may still run, if it was deleted by force. So the hold has ended if every one of these pods has, by kubelet's own
word about that UID, and kubelet shows nobody on the device.

Kubelet's List proves nothing by itself: it has neither UIDs nor states, leaves out plain init containers, and forgets
what was deleted by force and runs on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class End(StrEnum):
    """How a pod ended, as far as the API server and kubelet have shown. Only the last one proves anything.

    The weakest comes first. The value is what people are told.
    """

    # A pod that runs on although kubelet's checkpoint was deleted: nobody knows the UID of who had the device before.
    FORGOTTEN = "kubelet gave its device out again without having shown it"
    # A checkpoint that is deleted or cannot be read; a pod known by its name alone: another one may have the name now.
    UNIDENTIFIED = "kubelet's checkpoint did not name it"
    # A force-deleted pod, also if kubelet gave its device to another one at once; one that was deleted while the watch
    # was lost; a static pod, whose UID is used again; a node without access to the API server. The object may be gone
    # before the processes.
    NOT_SEEN = "nobody saw it end"
    # A pod that was rejected after Allocate, evicted, or never started; a phase that pod garbage collection or somebody
    # else wrote. Containers that have no status, or may be started again, may run.
    PHASE_ONLY = "its phase is terminal, and not every container is known to have terminated for good"
    # A pod that succeeded or failed, or was deleted as usual; also if the object is gone since, kubelet or the agent
    # restarted, or the API server is away. No container of that UID runs or will run again, whatever becomes of the
    # object or the name.
    REPORTED = "kubelet reported that every container has terminated"

    @property
    def proves(self) -> bool:
        """Whether what ended so holds nothing any more."""
        return self is End.REPORTED


_WEAKEST_FIRST = tuple(End)


def end_of(recorded: Iterable[str], ends: Mapping[str, End], *, retaken: bool = False) -> End:
    """Return how the pods of a hold ended, all together: of several ends, the one that proves least.

    ``recorded``: their UIDs in kubelet's checkpoint. ``ends``: what the API server showed, by UID. ``retaken``: a
    kubelet that had not shown the hold gave the device out again.
    """
    found = {ends.get(uid, End.NOT_SEEN) for uid in recorded} or {End.UNIDENTIFIED}
    if retaken:
        found.add(End.FORGOTTEN)
    return min(found, key=_WEAKEST_FIRST.index)
