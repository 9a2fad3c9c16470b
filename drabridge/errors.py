"""Errors that say whose fault it is; each has a gRPC status name and a hint for the person who reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class DrabridgeError(Exception):
    """Root of the tree. ``code`` is the name of the gRPC status that a peer gets; ``hint`` says what to do next."""

    code = "INTERNAL"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class ConfigError(DrabridgeError):
    """The operator's: the configuration, or an argument, cannot be meant as it stands."""

    code = "INVALID_ARGUMENT"


class PeerError(DrabridgeError):
    """Kubelet's (or another peer's): it broke the contract, or refused us."""

    code = "FAILED_PRECONDITION"


class HostError(DrabridgeError):
    """The node's: kernel, device, disk, file system, permissions."""

    code = "UNAVAILABLE"


class ClusterError(DrabridgeError):
    """The API server's: unreachable, refused, or answered what it should not."""

    code = "UNAVAILABLE"


class RefusedError(DrabridgeError):
    """Nobody's fault: the ledger refuses because the device is held. The message names the holder."""

    code = "FAILED_PRECONDITION"


@contextlib.contextmanager
def host_errors(what: str, *, hint: str = "") -> Iterator[None]:
    """Turn an OSError into a HostError that says ``what`` cannot be done, and why."""
    try:
        yield
    except OSError as error:
        raise HostError(f"{what}: {error.strerror or error}", hint=hint) from error
