"""Errors of the library. Each says whose fault it is, and what to do next."""

from __future__ import annotations


class DevicePluginError(Exception):
    """Root of the tree. ``hint`` says what to do; both parts are for a person."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class SocketError(DevicePluginError):
    """The node's fault: our socket cannot be made (directory missing, read-only, path too long)."""


class RegistrationError(DevicePluginError):
    """Kubelet's fault: it did not take our registration. ``code`` is the gRPC status name."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class KubeletDownError(RegistrationError):
    """Nobody listens on kubelet.sock: it is missing, refuses connections, or is not a socket."""


class AllocationError(DevicePluginError):
    """An allocator's refusal. ``code`` is a gRPC status name such as ``FAILED_PRECONDITION``.

    The text ends up in the pod's status ("Pod was rejected: Allocate failed due to rpc error: ... desc = <text>"):
    make it say who holds the device, or what is wrong with it, and what to do.
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code
