"""Define the paths on a node: kubelet's directories, the CDI directory, our own state."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from drabridge.errors import ConfigError

KUBELET_ROOT = Path("/var/lib/kubelet")
CDI_DIRECTORY = Path("/var/run/cdi")
CDI_SPECS = (Path("/etc/cdi"), CDI_DIRECTORY)  # container-device-interface, pkg/cdi/spec-dirs.go
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # a new id at each boot (random(4))
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # in a pod: token, certificate, namespace
SUN_PATH_BYTES = 107  # sizeof(sockaddr_un.sun_path) less the NUL, linux/un.h


class Paths(Struct, frozen=True):
    """Every path of one agent.

    Kubelet opens our sockets in the host's mount namespace: mount them at the same path.
    """

    kubelet: Path  # kubelet's --root-dir
    device_plugins: Path  # independent of --root-dir: a constant in kubelet (devicemanager/manager.go)
    state: Path  # ours: ledger, claim records, control socket
    cdi: Path
    cdi_specs: tuple[Path, ...] = CDI_SPECS  # where the runtime looks for files, lowest priority first

    @classmethod
    def of(
        cls,
        driver: str,
        *,
        kubelet: Path = KUBELET_ROOT,
        device_plugins: Path | None = None,
        state: Path | None = None,
        cdi: Path = CDI_DIRECTORY,
        cdi_specs: tuple[Path, ...] = CDI_SPECS,
    ) -> Paths:
        """Return the paths of ``driver``'s agent; the defaults are kubelet's own.

        Raises ConfigError for a relative path, or for one that is too long for a socket.
        """
        paths = cls(
            kubelet=kubelet,
            device_plugins=device_plugins or kubelet / "device-plugins",
            state=state or kubelet / "plugins" / driver,
            cdi=cdi,
            cdi_specs=cdi_specs if cdi in cdi_specs else (*cdi_specs, cdi),
        )
        for path in (paths.kubelet, paths.device_plugins, paths.state, *paths.cdi_specs):
            if not path.is_absolute():
                raise ConfigError(f"{path} is a relative path", hint="Kubelet and the runtime need absolute ones")
        for socket in (paths.control_socket, paths.podresources_socket, paths.kubelet_socket):
            if len(str(socket).encode()) > SUN_PATH_BYTES:
                raise ConfigError(
                    f"{socket} has {len(str(socket).encode())} bytes, a unix socket's path may have {SUN_PATH_BYTES}",
                    hint="Choose a shorter directory or driver name",
                )
        return paths

    @property
    def kubelet_socket(self) -> Path:
        return self.device_plugins / "kubelet.sock"

    @property
    def podresources_socket(self) -> Path:
        return self.kubelet / "pod-resources" / "kubelet.sock"

    @property
    def plugins_registry(self) -> Path:
        return self.kubelet / "plugins_registry"

    @property
    def control_socket(self) -> Path:
        """The socket that ``drabridge status`` and ``drabridge lanes`` use; for root only."""
        return self.state / "control.sock"

    @property
    def claim_records(self) -> Path:
        """The directory of the records of prepared claims (dra/records.py)."""
        return claim_records(self.state)


def claim_records(state: Path) -> Path:
    """Return the directory of the records of prepared claims, below the agent's ``state`` directory."""
    return state / "claims"
