"""Errors that say whose fault they are: the node's, kubelet's, or the caller's."""

from __future__ import annotations

from enum import StrEnum


class FaultParty(StrEnum):
    """Who has to act."""

    NODE = "node"
    """Whoever runs this process on this node: a mount, a permission, a path."""
    KUBELET = "kubelet"
    """Kubelet: it is down, too busy, too old, or broke the contract."""
    CALLER = "caller"
    """The caller: it asked for something that is not there, or set a limit too low."""


class PodResourcesError(Exception):
    """Root of the tree. ``fault``: who has to act; ``code``: a gRPC status name; ``hint``: what to do."""

    fault = FaultParty.KUBELET
    code = "UNKNOWN"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class NodeError(PodResourcesError):
    """The node's fault: this process cannot reach the socket at all."""

    fault = FaultParty.NODE
    code = "UNAVAILABLE"


class SocketMissing(NodeError):
    """There is no socket at the path.

    After a kubelet restart the socket comes back. Without kubelet, or without a mount, it never comes.
    """


class SocketPermissionDenied(NodeError):
    """The path is there, but this user may not search the directory or connect to the socket."""

    code = "PERMISSION_DENIED"


class KubeletError(PodResourcesError):
    """Kubelet's fault: the socket is there, but no usable answer comes."""


class KubeletUnavailable(KubeletError):
    """Nobody serves the socket, or the connection broke: normal for seconds while kubelet restarts."""

    code = "UNAVAILABLE"


class KubeletTimeout(KubeletError):
    """Kubelet did not answer within the deadline."""

    code = "DEADLINE_EXCEEDED"


class RateLimited(KubeletError):
    """Kubelet's limiter refused: 100 requests a second, bursts of 10, for all clients of the node."""

    code = "RESOURCE_EXHAUSTED"


class NotSupported(KubeletError):
    """This kubelet does not serve the method; ``rpc`` names it.

    It depends on kubelet's version and feature gates.
    """

    code = "UNIMPLEMENTED"

    def __init__(self, message: str, *, rpc: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.rpc = rpc


class ProtocolViolation(KubeletError):
    """The answer is not what the contract says: bytes that do not decode, or records without their names."""

    code = "INTERNAL"


class KubeletFailed(KubeletError):
    """Kubelet answered with an error that has no better class here; ``code`` is kubelet's."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class CallerError(PodResourcesError):
    """The caller's fault."""

    fault = FaultParty.CALLER


class PodNotFound(CallerError):
    """Kubelet has no *active* pod of that name: it never ran here, or has ended."""

    code = "NOT_FOUND"


class TooLarge(CallerError):
    """The answer exceeds this client's receive limit.

    Sizes in bytes; ``size`` is None when the text did not tell.
    """

    code = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, *, limit: int, size: int | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.limit = limit
        self.size = size


class ClientClosed(CallerError):
    """The client was closed before, or during, the call."""

    code = "CANCELLED"
