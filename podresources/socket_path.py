"""Identify the socket's file, and explain why it cannot be used.

The file is checked before every try; the directory is not watched. A stat costs microseconds, needs no thread, and
cannot miss the rename by which a new kubelet's socket appears. A call that is under way when kubelet dies ends by
itself, because the kernel closes the connection.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from podresources.errors import NodeError, SocketMissing, SocketPermissionDenied
from podresources.model import SocketIdentity

DEFAULT_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
"""kubelet's --root-dir joined with pod-resources/kubelet.sock (pkg/kubelet/apis/podresources/constants.go)."""

MAX_PATH_BYTES = 107
"""sun_path of unix(7) has 108 bytes with the final NUL."""

MOUNT_HINT = (
    "In a pod, mount the directory, not the socket (kubelet replaces the socket at every start): "
    "a hostPath volume of {directory} with type: Directory, mounted read-only at {directory}"
)


def identify(path: Path) -> SocketIdentity:
    """Tell which socket is at ``path`` now. Raises SocketMissing, SocketPermissionDenied or NodeError."""
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise NodeError(
            f"The socket path {path} has {len(os.fsencode(path))} bytes; a unix socket takes at most {MAX_PATH_BYTES}",
            hint="Reach it by a shorter path, for example a symbolic link to its directory",
        )
    try:
        status = path.stat()
    except PermissionError as error:
        raise permission_denied(path) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _missing(path) from error
    if not stat.S_ISSOCK(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
        raise SocketMissing(
            f"{path} is a {kind}, not a socket",
            hint="Mounting a socket that does not exist yet leaves a directory in its place. " + mount_hint(path),
        )
    # connect(2) needs write permission on the socket; a read-only mount does not matter to sockets.
    if not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise permission_denied(path)
    return SocketIdentity(status.st_dev, status.st_ino, status.st_ctime_ns)


def mount_hint(path: Path) -> str:
    """Say how a pod can reach the socket."""
    return MOUNT_HINT.format(directory=path.parent)


def permission_denied(path: Path) -> SocketPermissionDenied:
    """Return the error for a socket that is there but refuses this user, naming what stands in the way."""
    return SocketPermissionDenied(
        f"User {os.geteuid()} may not connect to {path}: it takes search permission on every directory above it and "
        "write permission on the socket, which kubelet gives to root only",
        hint="Run as root (in a pod: securityContext.runAsUser: 0; with SELinux also seLinuxOptions.type: spc_t)",
    )


def _missing(path: Path) -> SocketMissing:
    """Say which part of the path is missing: different people must repair different parts."""
    if path.parent.is_dir():
        return SocketMissing(
            f"There is no {path.name} in {path.parent}",
            hint="kubelet is not running, or is starting; `systemctl status kubelet` on the node tells",
        )
    existing = next(parent for parent in path.parents if parent.is_dir())
    return SocketMissing(
        f"There is no {path}: nothing below {existing} exists",
        hint="This is not a Kubernetes node, kubelet has another --root-dir (name it with --socket or path=), "
        "or the directory is not mounted. " + mount_hint(path),
    )
