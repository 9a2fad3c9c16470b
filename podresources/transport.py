"""Dial kubelet's socket by gRPC, and turn gRPC's failures into typed errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from msgspec import Struct

from podresources.errors import (
    KubeletFailed,
    KubeletTimeout,
    KubeletUnavailable,
    NotSupported,
    PodNotFound,
    PodResourcesError,
    ProtocolViolation,
    RateLimited,
    TooLarge,
)
from podresources.socket_path import mount_hint, permission_denied

DEFAULT_TIMEOUT_SECONDS = 10.0
"""The time limit of one call, with its tries and waits. Kubelet answers a List of a full node well within a second."""

DEFAULT_RECEIVE_LIMIT_BYTES = 64 * 1024 * 1024
"""gRPC's default of 4 MiB fails on large nodes; a production node answered 17.8 MB (kubernetes #141335)."""

M = TypeVar("M", bound=Message)


class Rpc(StrEnum):
    """The methods of v1 PodResourcesLister."""

    LIST = "List"
    ALLOCATABLE = "GetAllocatableResources"
    GET = "Get"

    @property
    def path(self) -> str:
        """gRPC's name of the method."""
        return f"/v1.PodResourcesLister/{self}"


class Attempt(Struct, frozen=True):
    """One request that reached the socket, or failed to: what an observer is told.

    ``code`` is a gRPC status name.
    """

    rpc: Rpc
    code: str
    seconds: float


Observer = Callable[[Attempt], None]

_TOO_LARGE = re.compile(r"larger than max(?: \((?P<size>\d+) vs\.? (?P<limit>\d+)\))?")


_NO_HTTP2 = ("Failed parsing HTTP/2", "Trying to connect an http1.x server")
"""gRPC's words (1.85, 1.80) for a peer whose first bytes are no HTTP/2 settings: so it is not kubelet."""


class KubeletSocket(Struct, frozen=True):
    """Kubelet's socket as gRPC dials it, with the largest answer that is accepted."""

    path: Path
    receive_limit_bytes: int = DEFAULT_RECEIVE_LIMIT_BYTES

    @property
    def target(self) -> str:
        """gRPC's name for the socket."""
        return f"unix:{self.path}"

    @property
    def options(self) -> list[tuple[str, int | str]]:
        """Channel arguments."""
        return [
            ("grpc.max_receive_message_length", self.receive_limit_bytes),
            # grpcio would send the escaped path as :authority, which Rust and .NET servers reset (grpc #34305).
            ("grpc.default_authority", "localhost"),
            # Channels to one address share connections and reconnect timers; a re-dial must really dial.
            ("grpc.use_local_subchannel_pool", 1),
            # Tries are counted here: they need the socket's identity and the limiter's text.
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
        ]

    def error(self, rpc: Rpc, code: grpc.StatusCode, details: str) -> PodResourcesError:
        """Return the typed error for a failed call."""
        match code:
            case grpc.StatusCode.UNAVAILABLE:
                return self._unavailable(details)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return self.timeout(rpc)
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                return self._exhausted(rpc, details)
            case grpc.StatusCode.UNIMPLEMENTED:
                return not_supported(rpc, details)
            case grpc.StatusCode.UNKNOWN | grpc.StatusCode.NOT_FOUND if rpc is Rpc.GET:
                return self._get_failed(code, details)
            case grpc.StatusCode.INTERNAL:
                return ProtocolViolation(f"Kubelet's answer to {rpc} is not valid gRPC: {details}", hint=_WHO_SERVES)
            case _:
                return KubeletFailed(f"Kubelet answered {rpc} with {code.name}: {details}", code=code.name)

    def timeout(self, rpc: Rpc) -> KubeletTimeout:
        """Return the error for a call that ran out of time."""
        return KubeletTimeout(
            f"Kubelet did not answer {rpc} on {self.path} within the deadline",
            hint="It accepts connections but is stuck or overloaded; look at kubelet's log, or allow more time",
        )

    def _unavailable(self, details: str) -> PodResourcesError:
        if "Permission denied" in details:  # SELinux and the like refuse connect(2) where access(2) allows
            return permission_denied(self.path)
        if "Connection refused" in details:
            return KubeletUnavailable(
                f"{self.path} is there, but nobody serves it",
                hint="kubelet is down or restarting. If that lasts while kubelet runs, this socket is an earlier "
                "kubelet's. " + mount_hint(self.path),
            )
        if any(text in details for text in _NO_HTTP2):
            return ProtocolViolation(f"What serves {self.path} does not speak gRPC: {details}", hint=_WHO_SERVES)
        return KubeletUnavailable(
            f"The connection to {self.path} broke: {details}", hint="This is normal for seconds while kubelet restarts"
        )

    def _exhausted(self, rpc: Rpc, details: str) -> PodResourcesError:
        """RESOURCE_EXHAUSTED has two meanings; only the text tells them apart."""
        if found := _TOO_LARGE.search(details):
            size = int(found["size"]) if found["size"] else None
            return TooLarge(
                f"Kubelet's answer to {rpc} is larger than this client accepts "
                f"({'unknown size' if size is None else f'{size:,} bytes'}, limit {self.receive_limit_bytes:,})",
                limit=self.receive_limit_bytes,
                size=size,
                hint="Raise the receive limit (receive_limit_bytes=, --receive-limit-mib). Above some 20 MB kubelet "
                "itself is likely at fault: before 1.37 it repeats DRA devices without bound (kubernetes #141335)",
            )
        if "rate limit" in details:
            return RateLimited(
                f"Kubelet's limiter refused {rpc}: {details}",
                hint="All clients of this node share 100 requests a second in bursts of 10; ask less often",
            )
        return KubeletFailed(f"Kubelet answered {rpc} with RESOURCE_EXHAUSTED: {details}", code="RESOURCE_EXHAUSTED")

    def _get_failed(self, code: grpc.StatusCode, details: str) -> PodResourcesError:
        """kubelet has no codes for these two; the texts are in pkg/kubelet/apis/podresources/server_v1.go."""
        if "method disabled" in details:
            return not_supported(Rpc.GET, details)
        if "not found" in details:
            return PodNotFound(
                f"Kubelet has no such active pod: {details}", hint="`podresources list` shows which it has"
            )
        return KubeletFailed(f"Kubelet answered Get with {code.name}: {details}", code=code.name)


SEE_LIST = "`podresources list` shows which pods it has"
_WHO_SERVES = "Something other than kubelet may serve this socket; check the path"

_SINCE = {
    Rpc.LIST: "every kubelet since 1.20 serves it (v1), so this is no kubelet, or a very old one",
    Rpc.ALLOCATABLE: "it is on by default since 1.23: devices that nobody holds are unknown on this node",
    Rpc.GET: "it is on by default since 1.34 (KubeletPodResourcesGet): List tells the same, perhaps with ended pods",
}


def not_supported(rpc: Rpc, details: str) -> NotSupported:
    """Return the error for a method that kubelet lacks, or has switched off."""
    return NotSupported(f"This kubelet does not serve {rpc} ({details})", rpc=rpc, hint=_SINCE[rpc])


def decode(rpc: Rpc, message: type[M], data: bytes) -> M:
    """Parse an answer. Raises ProtocolViolation, so that nonsense is never mistaken for an empty node."""
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise ProtocolViolation(
            f"Kubelet's answer to {rpc} ({len(data)} bytes) does not decode as {message.DESCRIPTOR.name}",
            hint=_WHO_SERVES,
        ) from error
