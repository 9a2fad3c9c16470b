"""Call Register on kubelet.sock: the one call that a plugin makes to kubelet.

When to call is decided in registration.py. How a kubelet restart is seen: kubelet_restart.py.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import grpc
import grpc.aio

from deviceplugin.codec import VERSION
from deviceplugin.errors import KubeletDownError, RegistrationError
from deviceplugin.sockets import probe
from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc

_CHANNEL_OPTIONS = [
    # Channels to one address share a connection and its reconnect back-off (1 s at least) unless told otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]

_HINTS = {
    "UNKNOWN": "kubelet dials our socket back from its own view of the directory: it must be the same on both sides, "
    "and the resource name must be valid (domain/name, not *.kubernetes.io)",
    "DEADLINE_EXCEEDED": "kubelet accepts connections but does not answer; look at its log",
    "UNAVAILABLE": "kubelet went away during the call",
    "UNIMPLEMENTED": "something that is not kubelet listens there",
}


async def register(
    kubelet_socket: Path, endpoint: str, resource: str, options: pb.DevicePluginOptions, timeout_seconds: float
) -> None:
    """Register ``endpoint`` (a file name next to ``kubelet_socket``) for ``resource``.

    Our server must be able to answer meanwhile: kubelet dials back before it returns. Raises KubeletDownError if nobody
    listens (kubelet got nothing), another RegistrationError for any other failure.
    """
    code = probe(kubelet_socket)  # tells a kubelet that is down from one that refuses us, at once and with the errno
    if code != 0:
        raise KubeletDownError(
            f"cannot connect to {kubelet_socket}: {os.strerror(code)}",
            code=errno.errorcode.get(code, str(code)),
            hint="kubelet is not running, or starting",
        )
    request = pb.RegisterRequest(version=VERSION, endpoint=endpoint, resource_name=resource, options=options)
    async with grpc.aio.insecure_channel(f"unix:{kubelet_socket}", options=_CHANNEL_OPTIONS) as channel:
        stub: pb_grpc.RegistrationAsyncStub = pb_grpc.RegistrationStub(channel)
        try:
            await stub.Register(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            name = error.code().name
            raise RegistrationError(
                f"kubelet did not register {resource}: {error.details() or name}", code=name, hint=_HINTS.get(name, "")
            ) from error
