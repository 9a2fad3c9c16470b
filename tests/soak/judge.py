"""The judge of a soak run: whoever starts a container takes its devices' locks, and opens their nodes.

It reads neither the ledger nor kubelet's records. Every refused start is a device that was given to two at once:

* *double hold*: the agent's fault, whatever led to it. At least one of the two uses a claim, or both have limits
  without anything below having happened. The soak fails.
* *kubelet's double booking*, counted and printed apart. Mostly the first pod was force-deleted while its container
  goes on. Kubelet forgets such a pod at once (kubernetes/kubernetes#104824), with two consequences:

  - Both pods have limits: kubelet gives the device to the next one. The agent cannot tell that Allocate from a
    re-admission after a restart, or from an app container that takes over its init container's device, which must
    succeed (observed on 1.36.2), so it answers. What it promises is that such a device never goes to a *claim*.
  - The first pod has a claim: kubelet's reconcile loop unprepares claims of pods that it does not know (every 60 s,
    pkg/kubelet/cm/dra/manager.go), though the container still runs. For a driver that call means that none does.
    Where the resource is probed, the agent sees the open node and refuses until it is closed: there it is judged.

  And once in thousands of pods a List (anybody's) arrives while an Allocate is open: kubelet then counts anew what is
  allocated, without what is being allocated, and gives it to the next pod with limits. The agent does not ask at such
  moments, as far as it can know; the judge believes it only if kubelet's log of calls shows the overlap.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.runtime import Conflict, ContainerStartError, LockingRuntime, RunOptions, names_of_devices

OPENS = "open-"  # pods with this in their names keep the node of their device open, as a driver's library does


@dataclass(slots=True)
class Span:
    """One container's life, on the monotonic clock."""

    pod: str  # namespace/name
    options: RunOptions
    began: float
    ended: float = math.inf

    @property
    def limits(self) -> list[str]:
        """Devices that it has through resource limits."""
        return [device for _, device in self.options.device_ids]


class Judge(LockingRuntime):
    """One for the node, across restarts of everything else."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.force_deleted: set[str] = set()  # "namespace/pod"
        self.started_pods: set[str] = set()
        self.unprepared: Callable[[str], bool] = lambda pod: False  # whether kubelet unprepared a claim of this pod
        self.raced: Callable[[str], bool] = lambda device: False  # whether a List overlapped an Allocate of it
        self.spans: dict[tuple[str, str], Span] = {}
        self._nodes: dict[tuple[str, str], list[int]] = {}
        self._excused: dict[Conflict, bool] = {}

    async def start_container(self, pod: PodSpec, container: Container, options: RunOptions) -> None:
        known = len(self.conflicts)
        try:
            await super().start_container(pod, container, options)
        except ContainerStartError:
            for conflict in self.conflicts[known:]:
                self._excused.setdefault(conflict, self._kubelets_own(conflict))
            raise
        self.started_pods.add(pod.uid)
        self.spans[pod.uid, container.name] = Span(f"{pod.namespace}/{pod.name}", options, time.monotonic())
        if OPENS in pod.name:
            self._nodes[pod.uid, container.name] = list(_open_nodes(options))

    async def stop_container(self, pod_uid: str, container: str) -> None:
        for descriptor in self._nodes.pop((pod_uid, container), ()):
            os.close(descriptor)
        if span := self.spans.get((pod_uid, container)):
            span.ended = min(span.ended, time.monotonic())
        await super().stop_container(pod_uid, container)

    def double_holds(self) -> set[Conflict]:
        """What the agent must answer for. A start is tried again and again: each pair counts once, and what had
        happened when it was tried first decides. What happens later, an Unprepare say, excuses nobody.
        """
        return {one for one, excused in self._excused.items() if not excused}

    def kubelet_double_bookings(self) -> set[Conflict]:
        """What kubelet does by itself."""
        return {one for one, excused in self._excused.items() if excused}

    def _kubelets_own(self, conflict: Conflict) -> bool:
        holder, refused = _pod(conflict.holder), _pod(conflict.refused)
        if "limits-" in holder and "limits-" in refused and self.raced(conflict.device):
            return True
        if holder not in self.force_deleted:
            return False
        if "claim-" in holder:
            return OPENS not in holder and self.unprepared(holder)
        return "limits-" in refused


def _pod(holder: str) -> str:
    """``namespace/pod`` of ``namespace/pod/container``."""
    return holder.rpartition("/")[0]


def _open_nodes(options: RunOptions) -> list[int]:
    found = []
    for name in names_of_devices(options):
        with contextlib.suppress(OSError):  # unplugged a moment ago: a container's start would fail as well
            found.append(os.open(f"/dev/{name}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    return found
