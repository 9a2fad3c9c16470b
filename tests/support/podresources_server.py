"""A PodResources server that misbehaves on request, on a real socket, and builders for its answers."""

from __future__ import annotations

import asyncio
import shutil
import socket
import socketserver
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc

from podresources.wire import v1_pb2 as wire

Answer = Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]
PREFIX = "/v1.PodResourcesLister/"


@asynccontextmanager
async def socket_directory() -> AsyncIterator[Path]:
    """A directory with a name short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="pr", dir="/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def says(message: bytes | wire.ListPodResourcesResponse | wire.AllocatableResourcesResponse) -> Answer:
    """Always this answer."""
    data = message if isinstance(message, bytes) else message.SerializeToString()

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return data

    return answer


def fails(code: grpc.StatusCode, details: str) -> Answer:
    """Always this error."""

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await context.abort(code, details)
        raise AssertionError("abort returns never")

    return answer


async def hangs(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
    """Never answers."""
    await asyncio.Event().wait()
    return b""


class Kubelet(grpc.GenericRpcHandler):
    """Serves raw bytes per method at ``path``; a method without an answer is UNIMPLEMENTED. Counts its requests.

    Like kubelet it binds elsewhere and renames the socket into place.
    """

    def __init__(self, path: Path, answers: dict[str, Answer]) -> None:
        self.path = path
        self.answers = answers
        self.requests: list[str] = []
        self.authorities: set[str] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        hidden = self.path.with_name(".tmp.sock")
        self._server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{hidden}")
        await self._server.start()
        hidden.rename(self.path)

    async def stop(self, *, unlink: bool = True) -> None:
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        if unlink:
            self.path.unlink(missing_ok=True)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        method = details.method.removeprefix(PREFIX)
        self.requests.append(method)
        if method not in self.answers:
            return None
        return grpc.unary_unary_rpc_method_handler(self.answers[method])


@asynccontextmanager
async def kubelet(answers: dict[str, Answer]) -> AsyncIterator[Kubelet]:
    """A running server in a directory of its own."""
    async with socket_directory() as directory:
        server = Kubelet(directory / "kubelet.sock", answers)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


def device(resource: str, *ids: str, numa: tuple[int, ...] | None = None) -> wire.ContainerDevices:
    """One ``ContainerDevices``; ``numa=None`` leaves the topology unset, ``()`` sets an empty one."""
    entry = wire.ContainerDevices(resource_name=resource, device_ids=ids)
    if numa is not None:
        entry.topology.SetInParent()
        entry.topology.nodes.extend(wire.NUMANode(ID=node) for node in numa)
    return entry


def claim(name: str, *devices: wire.ClaimResource, namespace: str = "default") -> wire.DynamicResource:
    return wire.DynamicResource(claim_name=name, claim_namespace=namespace, claim_resources=devices)


def claim_device(
    name: str, *cdi: str, driver: str = "gpu.example.com", pool: str = "node1", share: str | None = None
) -> wire.ClaimResource:
    return wire.ClaimResource(
        driver_name=driver,
        pool_name=pool,
        device_name=name,
        share_id=share,
        cdi_devices=[wire.CDIDevice(name=item) for item in cdi],
    )


def container(
    name: str, *devices: wire.ContainerDevices, claims: tuple[wire.DynamicResource, ...] = ()
) -> wire.ContainerResources:
    return wire.ContainerResources(name=name, devices=devices, dynamic_resources=claims)


def pod(name: str, *containers: wire.ContainerResources, namespace: str = "default") -> wire.PodResources:
    return wire.PodResources(name=name, namespace=namespace, containers=containers)


def listing(*pods: wire.PodResources) -> wire.ListPodResourcesResponse:
    return wire.ListPodResourcesResponse(pod_resources=pods)


def capacity(*devices: wire.ContainerDevices) -> wire.AllocatableResourcesResponse:
    return wire.AllocatableResourcesResponse(devices=devices)


def large_listing(
    pods: int = 500, devices: int = 4096, resource: str = "example.com/gpu"
) -> wire.ListPodResourcesResponse:
    """``devices`` spread over ``pods``, one entry each with one NUMA node, as kubelet sends them."""
    response = wire.ListPodResourcesResponse()
    for number in range(pods):
        mine = [
            device("example.com/gpu", f"GPU-{index:08x}-0000-4000-8000-{index:012x}", numa=(index % 2,))
            for index in range(number, devices, pods)
        ]
        response.pod_resources.append(pod(f"train-{number}", container("main", *mine), namespace=f"team-{number % 7}"))
    return response


@asynccontextmanager
async def raw_server(path: Path, answer: bytes | None) -> AsyncIterator[bytearray]:
    """A socket that reads a first piece, says ``answer`` and hangs up; None says nothing and keeps the line open.

    Yields all bytes that clients sent. It runs in threads, so that its end can wait for every connection it took.
    """
    seen = bytearray()
    done = threading.Event()

    class Serve(socketserver.BaseRequestHandler):
        request: socket.socket

        def handle(self) -> None:
            if answer is None:
                done.wait()
                return
            self.request.settimeout(0.1)
            with suppress(OSError):  # the client hung up, or has nothing more to say
                self.request.sendall(SETTINGS if answer.startswith(SETTINGS) or not answer else answer)
                for _ in range(2):  # the preface and settings, then, once settings came, the request
                    seen.extend(self.request.recv(65536))
                self.request.sendall(answer.removeprefix(SETTINGS))

    with socketserver.ThreadingUnixStreamServer(str(path), Serve) as server:
        accepting = threading.Thread(target=server.serve_forever, args=(0.01,))
        accepting.start()
        try:
            yield seen
        finally:
            done.set()
            await asyncio.to_thread(server.shutdown)
            accepting.join()


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


SETTINGS = _frame(4, 0, 0, b"")


def truncated_answer() -> bytes:
    """Headers of a good answer, a message said to have 1,000 bytes, ten of them, then nothing."""
    content_type = b"application/grpc"
    headers = b"\x88" + b"\x0f\x10" + bytes([len(content_type)]) + content_type  # :status 200, content-type literal
    message = b"\x00" + (1000).to_bytes(4) + b"0123456789"
    return SETTINGS + _frame(1, 4, 1, headers) + _frame(0, 0, 1, message)


def get_answer(*pods: wire.PodResources) -> Answer:
    """Get as kubelet serves it: a plain UNKNOWN error for a pod it does not have."""
    by_name = {(found.namespace, found.name): found for found in pods}

    async def answer(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        asked = wire.GetPodResourcesRequest.FromString(request)
        found = by_name.get((asked.pod_namespace, asked.pod_name))
        if found is None:
            text = f"pod {asked.pod_name} in namespace {asked.pod_namespace} not found"
            await context.abort(grpc.StatusCode.UNKNOWN, text)
        return wire.GetPodResourcesResponse(pod_resources=found).SerializeToString()

    return answer
