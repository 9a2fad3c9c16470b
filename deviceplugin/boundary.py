"""The border of the gRPC methods: exceptions become status codes here, and only here."""

from __future__ import annotations

import asyncio
import logging

import grpc
from msgspec import Struct

from deviceplugin.errors import AllocationError

log = logging.getLogger("deviceplugin")


class Outcome(Struct, frozen=True):
    """How a call ended. ``message`` goes to the peer when ``code`` is not OK."""

    code: grpc.StatusCode = grpc.StatusCode.OK
    message: str = ""


def translate(error: BaseException, what: str) -> Outcome:
    """The status for an exception of a plugin's method; ``what`` names the call in logs and texts.

    Only the text of an ``AllocationError`` is meant for people elsewhere; anything else is a defect of the plugin and
    its text stays in the log.
    """
    if isinstance(error, AllocationError):
        return Outcome(_code(error.code), str(error))
    if isinstance(error, TimeoutError):
        return Outcome(grpc.StatusCode.DEADLINE_EXCEEDED, f"{what} took too long on the node; look at the plugin's log")
    if isinstance(error, asyncio.CancelledError):
        return Outcome(grpc.StatusCode.CANCELLED, f"{what} was cancelled: the plugin is stopping")
    log.error("%s failed", what, exc_info=error)
    return Outcome(grpc.StatusCode.INTERNAL, f"{what} failed inside the plugin ({type(error).__name__}); see its log")


def _code(name: str) -> grpc.StatusCode:
    try:
        code = grpc.StatusCode[name]
    except KeyError:
        log.error("%r is not the name of a gRPC status", name)
        return grpc.StatusCode.UNKNOWN
    return grpc.StatusCode.UNKNOWN if code is grpc.StatusCode.OK else code  # an error must not read as success
