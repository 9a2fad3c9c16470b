"""Remember between calls what a client knows of its kubelet.

Shared by ``Client`` and ``SyncClient``; no I/O.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from podresources.backoff import Backoff
from podresources.errors import (
    ClientClosed,
    KubeletUnavailable,
    NotSupported,
    PodNotFound,
    PodResourcesError,
    SocketMissing,
)
from podresources.features import KubeletFeatures, Support
from podresources.model import Allocatable, NodeSnapshot, Pod, SocketIdentity
from podresources.normalise import allocatable, allocations_of, pod_from_wire, snapshot
from podresources.shrink import shrink
from podresources.transport import SEE_LIST, Attempt, KubeletSocket, Observer, Rpc, decode
from podresources.wire import v1_pb2

PROBE_POD = ("kube-system", "podresources-probe-no-such-pod")
"""Asking for a pod that does not exist tells whether Get is served, and costs kubelet one map look-up."""

T = TypeVar("T")
Reader = Callable[[bytes, SocketIdentity], T]
"""Turns the bytes of an answer into a result; raises ProtocolViolation."""


class Session:
    """The kubelet at the other end (``identity``), what it can do (``features``), and when to try again."""

    def __init__(self, socket: KubeletSocket, backoff: Backoff, observe: Observer | None) -> None:
        self.socket = socket
        self.features = KubeletFeatures()
        self.identity: SocketIdentity | None = None
        self.closed = False
        self._backoff = backoff
        self._observe = observe
        self._random = random.Random()

    def meet(self, identity: SocketIdentity) -> bool:
        """Note which socket is there now. For another one, forget what was known and return True: dial again then."""
        if self.closed:
            raise ClientClosed("This client is closed", hint="Make a new one")
        if identity == self.identity:
            return False
        self.identity = identity
        self.features = KubeletFeatures()
        return True

    def require_same(self, asked: SocketIdentity, now: SocketIdentity) -> None:
        """Raise KubeletUnavailable if the socket was replaced meanwhile: nobody knows which kubelet answered."""
        if asked != now:
            raise KubeletUnavailable(f"Kubelet replaced {self.socket.path} during the call", hint="It restarted")

    def delay_after(self, error: PodResourcesError, attempt: int, remaining_seconds: float) -> float | None:
        """Return the seconds to wait before the next try; None when ``error`` is final or time is over.

        A missing socket is worth waiting for only after this client has seen one: then kubelet is restarting.
        """
        if isinstance(error, SocketMissing) and self.identity is None:
            return None
        delay = self._backoff.delay_after(error, attempt, self._random)
        return None if delay is None or delay >= remaining_seconds else delay

    def report(self, rpc: Rpc, code: str, seconds: float) -> None:
        """Tell the observer about one request."""
        if self._observe is not None:
            self._observe(Attempt(rpc, code, seconds))

    def note_refusal(self, error: PodResourcesError) -> None:
        """Learn from a failed call."""
        match error:
            case NotSupported(rpc=Rpc.GET):
                self.features = self.features.after_get(served=False)
            case NotSupported(rpc=Rpc.ALLOCATABLE):
                self.features = self.features.after_allocatable(served=False)
            case PodNotFound():
                self.features = self.features.after_get(served=True)

    def read_list(self, data: bytes, identity: SocketIdentity) -> NodeSnapshot:
        """Read the answer of List."""
        found = snapshot(decode(Rpc.LIST, v1_pb2.ListPodResourcesResponse, shrink(data)), identity)
        self.features = self.features.after_list(found.has_dynamic_resources)
        return found

    def read_allocatable(self, data: bytes, identity: SocketIdentity) -> Allocatable:
        """Read the answer of GetAllocatableResources."""
        found = allocatable(decode(Rpc.ALLOCATABLE, v1_pb2.AllocatableResourcesResponse, data), identity)
        self.features = self.features.after_allocatable(served=True)
        return found

    def read_get(self, data: bytes, identity: SocketIdentity) -> NodeSnapshot:
        """Read the answer of Get, as a snapshot of one pod."""
        pod = pod_from_wire(decode(Rpc.GET, v1_pb2.GetPodResourcesResponse, data).pod_resources)
        found = of_pod(pod, identity)
        self.features = self.features.after_get(served=True).after_list(found.has_dynamic_resources)
        return found

    @property
    def get_unsupported(self) -> bool:
        return self.features.get is Support.NO


def of_pod(pod: Pod, identity: SocketIdentity) -> NodeSnapshot:
    """Return a snapshot of one pod."""
    return NodeSnapshot((pod,), tuple(allocations_of(pod)), identity)


def pick(listed: NodeSnapshot, namespace: str, pod: str) -> NodeSnapshot:
    """Return one pod of a List, for kubelets without Get. Raises PodNotFound."""
    for candidate in listed.pods:
        if candidate.namespace == namespace and candidate.name == pod:
            return of_pod(candidate, listed.socket)
    raise PodNotFound(f"Kubelet has no pod {pod} in namespace {namespace}", hint=SEE_LIST)


def get_request(namespace: str, pod: str) -> bytes:
    """Serialise the request of Get."""
    return v1_pb2.GetPodResourcesRequest(pod_namespace=namespace, pod_name=pod).SerializeToString()
