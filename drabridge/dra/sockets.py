"""Name the plugin's two sockets, and remove dead ones that others left there.

Kubelet finds a plugin by the registration socket in plugins_registry/ and then dials the service socket that it names.
Only the agent that has the ledger's lock serves, so the names are always the same; a standby's names have a token.
"""

from __future__ import annotations

import errno
import re
import socket
import stat
from pathlib import Path

from msgspec import Struct

from drabridge.errors import HostError, host_errors
from drabridge.system.paths import SUN_PATH_BYTES


class PluginSockets(Struct, frozen=True):
    """The absolute paths of both sockets."""

    registration: Path
    service: Path

    @classmethod
    def of(cls, kubelet: Path, driver: str, token: str = "") -> PluginSockets:
        """Name the sockets. ``token``: four hexadecimal digits for a standby. Raises HostError for a long path."""
        end = f"-{token}" if token else ""
        return cls(
            _fit(kubelet / "plugins_registry" / f"{driver}{end}-reg.sock"),
            _fit(kubelet / "plugins" / driver / f"dra{end}.sock"),
        )

    def prepare(self, driver: str) -> tuple[Path, ...]:
        """Create our directory and remove dead sockets of this driver's name; return what was removed.

        Another program may have used this driver name before: Go's kubeletplugin library puts a pod's UID into the
        names. Kubelet does not create plugins/<driver>/ (seen on 1.36.2), and dials a dead registration socket for
        ever. Raises HostError when a directory is missing or something other than a socket is in the way.
        """
        registry, plugin = self.registration.parent, self.service.parent
        with host_errors(f"cannot create {plugin}", hint=_MOUNT):
            plugin.mkdir(mode=0o750, parents=True, exist_ok=True)
        if not registry.is_dir():
            raise HostError(f"{registry} is not there", hint=f"Kubelet creates it when it starts. {_MOUNT}")
        for path in (self.registration, self.service):
            if path.exists() and not stat.S_ISSOCK(path.lstat().st_mode):
                raise HostError(f"{path} is in the way: a socket belongs there", hint="Move it away")
        ours = re.compile(
            rf"{re.escape(driver)}(-[0-9a-f]{{4}}|-[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})?-reg\.sock"
        )
        found = [path for path in registry.glob("*-reg.sock") if ours.fullmatch(path.name)]
        found += plugin.glob("dra*.sock")
        dead = tuple(path for path in found if is_dead(path))
        for path in dead:
            path.unlink(missing_ok=True)
        return dead


_MOUNT = "In a pod, kubelet's directories must be mounted read-write at the same path as on the host"


def _fit(path: Path) -> Path:
    if (length := len(str(path).encode())) <= SUN_PATH_BYTES:
        return path
    raise HostError(
        f"{path} has {length} bytes, and a socket's path {SUN_PATH_BYTES} at most",
        hint="Choose a shorter driver name, or a shorter kubelet root directory",
    )


def is_dead(path: Path) -> bool:
    """Whether nobody listens on the socket: connect(2) is refused. A busy one is alive."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            probe.connect(str(path))
    except OSError as error:
        return error.errno == errno.ECONNREFUSED
    return False


def identity(path: Path) -> tuple[int, int, int] | None:
    """Return what distinguishes a socket file from a later one of the same name; None if there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
