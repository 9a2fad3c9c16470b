"""Ask every source about what is held, and put their answers together."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from podresources.model import AllocationKey, Api, PodAllocation
from podresources.resolve import cdi
from podresources.resolve.agent import ASK_SECONDS, Agents, sockets
from podresources.resolve.cdi import FOLDERS, CdiFiles, ClaimDeviceKey, claim_device_key
from podresources.resolve.checkpoints import Checkpoints
from podresources.resolve.facts import NOTHING, DeviceFacts, Resolution, merge
from podresources.resolve.hardware import Hardware
from podresources.resolve.metadata import MetadataFiles
from podresources.resolve.pod_uids import PodUids

if TYPE_CHECKING:
    from podresources.resolve.slices import Slices

KUBELET = "var/lib/kubelet"
FRESH_SECONDS = 60.0
"""For so long nothing is read again, unless somebody takes or releases a device."""

RETRY_SECONDS = 10.0
"""The same for an uncertain result: something is unknown, a pod's UID is only from logs' folders, or a source
failed."""

RESOLVE_SECONDS = 1.5
"""The time limit for reading all sources, agents included. With both requests to kubelet it fits into a scrape of 10
s."""

_REPLICA = re.compile(r"(.*)::(\d+)")  # NVIDIA/k8s-device-plugin, internal/rm/devices.go: AnnotatedID

UNKNOWN = Resolution()


def _is_instance(held: PodAllocation) -> bool:
    """Whether a MIG instance is held by limits."""
    return held.api is Api.DEVICE_PLUGIN and held.device_ids[0].startswith("MIG-")


class NodePaths(Struct, frozen=True):
    """Where the node's files are.

    ``agents``: sockets of drabridge; None for every one in kubelet's ``plugins``. ``kubelet``: its --root-dir; None for
    the usual one below ``root``. ``cdi``: the folders of CDI files, as the node has them.
    """

    root: Path = Path("/")
    agents: tuple[Path, ...] | None = None
    kubelet: Path | None = None
    cdi: tuple[Path, ...] = FOLDERS

    @property
    def of_kubelet(self) -> Path:
        """Kubelet's directory."""
        return self.kubelet or self.root / KUBELET

    @property
    def pods(self) -> Path:
        """A directory for each pod that is on the node, named by its UID."""
        return self.of_kubelet / "pods"

    @property
    def plugins(self) -> Path:
        """The directories of DRA drivers."""
        return self.of_kubelet / "plugins"


class Resolved(Struct, frozen=True):
    """What was found about every allocation.

    ``problems``: source -> sentences on what could not be read, of the sources in ``asked``.
    """

    by_key: Mapping[AllocationKey, Resolution] = {}
    problems: Mapping[str, Sequence[str]] = {}
    asked: tuple[str, ...] = ()

    @property
    def good_for_seconds(self) -> float:
        """For how long nothing needs to be read again, unless something else is held."""
        sure = not self.problems and all(
            found.source and found.pod_uid_source in ("checkpoint", "agent") for found in self.by_key.values()
        )
        return FRESH_SECONDS if sure else RETRY_SECONDS

    def of(self, held: PodAllocation) -> Resolution:
        """Return what is known of a held device; all fields are empty if nothing is known."""
        return self.by_key.get(held.key, UNKNOWN)


class Resolver:
    """Resolves a snapshot's allocations. Threads may share one: they take turns."""

    def __init__(
        self, paths: NodePaths | None = None, *, slices: Slices | None = None, agent_seconds: float = ASK_SECONDS
    ) -> None:
        self._paths = paths or NodePaths()
        self._slices = slices
        self._agent_seconds = agent_seconds
        self._agents = Agents()
        self._cdi = CdiFiles(self._paths.root, self._paths.cdi)
        self._metadata = MetadataFiles(self._paths.plugins)
        self._hardware = Hardware(self._paths.root)
        self._checkpoints = Checkpoints(self._paths.of_kubelet)
        self._pod_uids = PodUids(self._paths.root, self._paths.pods)
        self._last = Resolved()
        self._read_at = float("-inf")
        self._thread: Thread | None = None
        self._lock = Lock()

    def resolve(self, allocations: Sequence[PodAllocation], seconds: float = RESOLVE_SECONDS) -> Resolved:
        """Return what is known of each allocation. Never raises: a source that fails is a problem of the result.

        A thread reads, because a disk that hangs cannot be given a time limit: after ``seconds`` what was known before
        is returned, and the next caller waits for the same thread.
        """
        with self._lock:
            keys = {held.key for held in allocations}
            known = keys == self._last.by_key.keys()
            if known and time.monotonic() - self._read_at < self._last.good_for_seconds:
                return self._last
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._read, args=(tuple(allocations),), name="resolve", daemon=True)
                self._thread.start()
            self._thread.join(seconds)
            last = self._last
            if not self._thread.is_alive():
                return last
            late = f"the node's files, which did not answer within {seconds:g} s: a disk hangs"
            return Resolved(last.by_key, {**last.problems, "host": (late,)}, last.asked or ("host",))

    def close(self) -> None:
        """End the thread that reads slices."""
        if self._slices is not None:
            self._slices.close()

    def _read(self, allocations: Sequence[PodAllocation]) -> None:
        """Resolve, in the thread."""
        found = self._resolve(allocations)
        self._last, self._read_at = found, time.monotonic()

    def _resolve(self, allocations: Sequence[PodAllocation]) -> Resolved:
        claims = {claim_device_key(held): held for held in allocations if held.claim is not None}
        self._hardware.refresh()
        self._pod_uids.refresh()
        found = self._paths.agents
        problems = {
            "agent": self._agents.ask(sockets(self._paths.plugins) if found is None else found, self._agent_seconds),
            "cdi": self._cdi.refresh() if claims or any(map(_is_instance, allocations)) else [],
            "metadata": self._metadata.refresh(claims),
            "checkpoint": self._checkpoints.refresh(),
        }
        if self._slices is not None:
            problems["slices"] = self._slices.problems()
        problems["host"] = []  # a missing file is no problem; only `resolve` notices that a disk hangs
        own = cdi.own_names(claims.values())
        by_key = {held.key: self._one(held, own) for held in allocations}
        return Resolved(by_key, {source: said for source, said in problems.items() if said}, tuple(problems))

    def _one(self, held: PodAllocation, own: Mapping[ClaimDeviceKey, Sequence[str]]) -> Resolution:
        device_id, share = "", held.share_id or ""
        if held.api is Api.DEVICE_PLUGIN:
            device_id = held.device_ids[0]
            if replica := _REPLICA.fullmatch(device_id):
                device_id, share = replica[1], replica[2]
        said = [(source, facts) for source, facts in self._said(held, device_id, own) if facts]
        known = merge(said)
        completed = merge([*said, ("host", self._hardware.complete(known.facts))])
        uid, by = self._pod_uid(held, device_id)
        return replace(completed, pod_uid=uid, pod_uid_source=by, share=share)

    def _said(
        self, held: PodAllocation, device_id: str, own: Mapping[ClaimDeviceKey, Sequence[str]]
    ) -> Iterator[tuple[str, DeviceFacts]]:
        yield "agent", self._agents.facts(held, device_id)
        if held.api is Api.DEVICE_PLUGIN:
            yield "id", self._hardware.of_id(device_id)
            if _is_instance(held):  # its id does not say which GPU it is a part of
                yield "cdi", cdi.facts([self._cdi.of_vendor(device_id)], self._hardware)
            return
        edits = [self._cdi.edits(name) for name in own.get(claim_device_key(held), ())]
        yield "cdi", cdi.facts(edits, self._hardware)
        yield "metadata", self._metadata.facts(held)
        yield "slices", self._slices.facts(held) if self._slices is not None else NOTHING

    def _pod_uid(self, held: PodAllocation, device_id: str) -> tuple[str, str]:
        """Return the pod's UID and who said so.

        The folders of logs are asked last: for a moment after a pod's start, only an earlier pod's of that name may be
        there.
        """
        if uid := self._checkpoints.pod_uid(held):
            return uid, "checkpoint"
        if held.resource is not None and (uid := self._agents.pod_uid(held, device_id)):
            return uid, "agent"
        uid = self._pod_uids.of(held.namespace, held.pod)
        return uid, "logs" if uid else ""
