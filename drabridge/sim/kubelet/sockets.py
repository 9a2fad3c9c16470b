"""Server sockets that outlive their server as a stale file, the way a Go process leaves them when it ends."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from itertools import count
from pathlib import Path

import grpc.aio


class LeakySockets:
    """Binds through a private symlink to the directory and removes the link before the server stops.

    grpc unlinks the path it bound when a server stops; a kubelet that ends unlinks nothing. With the link gone, grpc's
    unlink finds no file. Watchers of the directory see one plain creation and nothing at the end.
    """

    def __init__(self, root: Path) -> None:
        """Links live in ``<root>/.s``: a name short enough not to lengthen the path of any socket."""
        self._links = root / ".s"
        self._numbers = count()
        self.forget()  # what a killed process left
        self._links.mkdir(parents=True)

    def bind(self, server: grpc.aio.Server, path: Path) -> None:
        """Plain bind: one IN_CREATE of the name. Raises OSError or RuntimeError."""
        link = self._links / str(next(self._numbers))
        link.symlink_to(path.parent.resolve(), target_is_directory=True)
        if server.add_insecure_port(f"unix:{link / path.name}") == 0:
            raise OSError(f"cannot bind {path}")

    def bind_by_rename(self, server: grpc.aio.Server, path: Path) -> Path:
        """Bind to a temporary name in the directory; call :meth:`publish` with the answer once the server has started.

        ``pkg/kubelet/util/util_unix.go``, CreateListener: watchers see IN_MOVED_TO of the name, never IN_CREATE.
        """
        temporary = path.with_name(str(secrets.randbelow(10**10)))
        self.bind(server, temporary)
        return temporary

    def forget(self) -> None:
        """Cut the links; call before the servers stop."""
        shutil.rmtree(self._links, ignore_errors=True)


def remove_sockets(directory: Path) -> list[str]:
    """Delete every socket directly in ``directory`` whose name has no leading dot; returns their names.

    ``pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go``, cleanup; observed: regular files, dot-files and
    directories stay.
    """
    removed = []
    for entry in sorted(os.scandir(directory), key=lambda e: e.name):
        if not entry.name.startswith(".") and stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            os.unlink(entry.path)
            removed.append(entry.name)
    return removed
