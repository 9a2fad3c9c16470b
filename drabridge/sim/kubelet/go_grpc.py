"""gRPC as a Go program sees it: its texts for errors, and channels that behave like its connections."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import grpc.aio

DEFAULT_MAX_RECEIVE_BYTES = 4 * 1024 * 1024  # google.golang.org/grpc/clientconn.go, defaultClientMaxReceiveMessageSize

# google.golang.org/grpc/codes/code_string.go; only this one is not the plain camel case.
_ODD_NAMES = {grpc.StatusCode.CANCELLED: "Canceled", grpc.StatusCode.OK: "OK"}


CLOSING = "rpc error: code = Canceled desc = grpc: the client connection is closing"


class PluginCallError(Exception):
    """A failed call to a plugin; the text is what Go's error would print."""


def cancelled_from_outside() -> bool:
    """Whether somebody asked the task to end.

    grpc.aio raises CancelledError also when our own channel was closed; only a real request to cancel is passed on.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def code_name(code: grpc.StatusCode) -> str:
    """``FAILED_PRECONDITION`` -> ``FailedPrecondition``."""
    return _ODD_NAMES.get(code) or code.name.title().replace("_", "")


def error_text(error: grpc.aio.AioRpcError) -> str:
    """Return an error as Go prints it: ``rpc error: code = FailedPrecondition desc = ...``.

    Source: google.golang.org/grpc/internal/status/status.go.
    """
    late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    text = "context deadline exceeded" if late else error.details() or ""
    return f"rpc error: code = {code_name(error.code())} desc = {text}"


def unix_channel(path: Path) -> grpc.aio.Channel:
    """Return a channel to a socket that shares its connection with no other channel, as in Go.

    C-core would share one connection among channels to the same path.
    """
    return grpc.aio.insecure_channel(
        f"unix:{path}",
        options=(
            ("grpc.default_authority", "localhost"),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", DEFAULT_MAX_RECEIVE_BYTES),
            ("grpc.max_send_message_length", -1),
        ),
    )


async def dial(path: Path, timeout: float) -> grpc.aio.Channel:
    """Return a connected channel.

    Raises PluginCallError ``context deadline exceeded`` after ``timeout`` seconds.
    """
    channel = unix_channel(path)
    try:
        async with asyncio.timeout(timeout):
            await channel.channel_ready()
    except TimeoutError:
        await channel.close()
        raise PluginCallError("context deadline exceeded") from None
    except BaseException:
        await channel.close()
        raise
    return channel
