"""Answers of peers that the agent and ``podresources`` ask: kubelet's PodResources, and agents' status."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from drabridge.evidence.kubelet import claim_users_of, claims_of, pods_of, users_of
from drabridge.ledger.entries import ClaimRef
from podresources.errors import PodResourcesError
from podresources.model import SocketIdentity
from podresources.normalise import allocatable, snapshot
from podresources.resolve.agent import Agents
from podresources.transport import Rpc, decode
from podresources.wire import v1_pb2 as wire
from tests.fuzz.reader import Form, Read, Reader
from tests.support.dra_node import DRIVER

SOCKET = SocketIdentity(1, 2, 3)


@contextmanager
def pod_resources(root: Path) -> Iterator[Read]:
    """An answer to List or GetAllocatableResources: understood as a whole, or no answer at all."""

    def read(data: bytes) -> None:
        method, _, body = data.partition(b"\n")
        with suppress(PodResourcesError):
            if method == b"GetAllocatableResources":
                allocatable(decode(Rpc.ALLOCATABLE, wire.AllocatableResourcesResponse, body), SOCKET)
                return
            answer = decode(Rpc.LIST, wire.ListPodResourcesResponse, body)
            found = snapshot(answer, SOCKET)
            pods = pods_of(found)
            claims_of(found, DRIVER)
            claim_users_of(found, DRIVER)
            users_of(found, ClaimRef("u", "default", "c"), DRIVER, "gpu-0")
            list(found.allocations)
            for pod in answer.pod_resources:
                for container in pod.containers:
                    for entry in container.devices:
                        assert all((entry.resource_name, unit) in pods for unit in entry.device_ids)

    yield read


@contextmanager
def agents(root: Path) -> Iterator[Read]:
    """What a program sends that listens where an agent should: a problem in words, or facts."""
    path = root / "s"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen()
    answer = [b""]

    def serve() -> None:
        while True:
            try:
                peer, _ = server.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.recv(1 << 16)
                peer.sendall(answer[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    known = Agents()

    def read(data: bytes) -> None:
        answer[0] = data
        known.ask([path], 30.0)

    try:
        yield read
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


READERS = (
    Reader("podresources", Form.MESSAGE, "kubelet's answers to PodResources", pod_resources),
    Reader("agent-status", Form.HTTP, "what an agent answers to podresources", agents),
)
