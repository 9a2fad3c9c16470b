"""Name our socket files, remove stale ones, and identify the socket or directory at a path."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import socket
import stat
from pathlib import Path

from msgspec import Struct

from deviceplugin.errors import SocketError

PATH_MAX_BYTES = 107
"""``sun_path`` of struct sockaddr_un holds 108 bytes with the final NUL (unix(7))."""

KUBELET_SOCKET = "kubelet.sock"
"""The registration server's file in the plugin directory (``KubeletSocket``, deviceplugin/v1beta1/constants.go)."""

_TOKEN = "[0-9a-f]{8}"
_SLUG_MAX = 40


class SocketFileIdentity(Struct, frozen=True):
    """Which socket file a path leads to.

    ``ctime_ns`` is needed for kubelet.sock: a restarted kubelet's socket had the same inode number (observed on
    1.36.2).
    """

    device: int
    inode: int
    ctime_ns: int

    def same_file(self, other: SocketFileIdentity | None) -> bool:
        """Tell whether both are one file, whatever happened to its attributes in between."""
        return other is not None and (self.device, self.inode) == (other.device, other.inode)


def identify_socket(path: Path) -> SocketFileIdentity | None:
    """Return the identity of the unix socket at ``path``; None if there is no socket."""
    try:
        found = path.stat()
    except OSError:
        return None
    return SocketFileIdentity(found.st_dev, found.st_ino, found.st_ctime_ns) if stat.S_ISSOCK(found.st_mode) else None


def identify_directory(path: Path) -> tuple[int, int] | None:
    """Return (device, inode) of the directory at ``path``; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def probe(path: Path) -> int:
    """Connect to the unix socket at ``path`` and hang up. Return 0 if somebody listens, else the errno."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as client:
        client.setblocking(False)  # a full backlog answers EAGAIN instead of holding up the loop
        return client.connect_ex(os.fsencode(path))


def kubelet_process(directory: Path) -> str:
    """Name the kubelet process that listens in the plugin directory; "" if none answers there.

    Only the process that made a socket's file answers there: another process has to make a file of its own. So two
    equal names, asked for at any two times, mean one process that has run between them.
    """
    path = directory / KUBELET_SOCKET
    found = identify_socket(path)
    if found is None or probe(path) or identify_socket(path) != found:
        return ""
    return f"{found.device}:{found.inode}:{found.ctime_ns}"


def slug(resource: str) -> str:
    """Turn a resource name into a part of a file name: ``/`` becomes ``_``, which a domain cannot hold.

    It is deterministic, and different for different valid names: a name that had to be changed or cut gets a hash.
    """
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "-", resource.replace("/", "_", 1))
    if cleaned == resource.replace("/", "_", 1) and len(cleaned) <= _SLUG_MAX:
        return cleaned
    digest = hashlib.sha256(resource.encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{cleaned[: _SLUG_MAX - 9]}.{digest}"


def fresh_path(directory: Path, name: str, resource: str) -> Path:
    """Return a path that nobody used before. Raises SocketError if it is too long for a unix socket.

    Names are fresh because grpc's server removes its path when it stops, even if another server owns it by then.
    """
    path = directory / f"{name}-{slug(resource)}-{secrets.token_hex(4)}.sock"
    length = len(os.fsencode(path))
    if length > PATH_MAX_BYTES:
        raise SocketError(
            f"the socket path {path} has {length} bytes, a unix socket takes at most {PATH_MAX_BYTES}",
            hint="choose a shorter plugin directory or socket name",
        )
    return path


def check_directory(directory: Path) -> None:
    """Raise SocketError, with what to do, unless a socket can be made in ``directory``."""
    try:
        mode = directory.stat().st_mode
    except FileNotFoundError:
        raise SocketError(
            f"the plugin directory {directory} does not exist",
            hint="kubelet creates it when it starts; check the path if kubelet runs",
        ) from None
    except OSError as error:
        raise SocketError(
            f"the plugin directory {directory} cannot be read: {error.strerror}",
            hint="check the path and its parents",
        ) from error
    if not stat.S_ISDIR(mode):
        raise SocketError(f"{directory} is not a directory", hint="kubelet's plugin directory is expected there")
    try:
        read_only = bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
    except OSError as error:
        raise SocketError(f"the plugin directory {directory} vanished: {error.strerror}") from error
    if read_only:
        raise SocketError(f"{directory} is on a read-only file system", hint="mount it read-write")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise SocketError(f"no permission to create a socket in {directory}", hint="run as root")


def remove_stale(directory: Path, name: str, resource: str | None = None) -> list[Path]:
    """Remove the sockets that earlier runs of ours left behind; returns them.

    Ours means: the name is one that ``fresh_path`` makes for ``name`` (and ``resource``, if given), the file is a
    socket, and connecting to it is refused. Anything else stays, and so does what cannot be removed.
    """
    middle = re.escape(slug(resource)) if resource is not None else "[A-Za-z0-9._-]+"
    ours = re.compile(f"{re.escape(name)}-{middle}-{_TOKEN}\\.sock")
    removed = []
    with contextlib.suppress(OSError):
        for path in sorted(directory.iterdir()):
            if ours.fullmatch(path.name) and _is_dead_socket(path):
                with contextlib.suppress(OSError):
                    path.unlink()
                    removed.append(path)
    return removed


def _is_dead_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode) and probe(path) == errno.ECONNREFUSED
    except OSError:
        return False
