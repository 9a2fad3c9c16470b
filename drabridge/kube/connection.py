"""Connect the agent to its API server: at the start, and when a reload switches DRA on or off."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from drabridge.config.schema import Config
from drabridge.kube.api import Cluster
from drabridge.system.paths import SERVICE_ACCOUNT

log = logging.getLogger(__name__)


class ClaimsOff(Struct, frozen=True):
    """Why claims cannot be served on this node, and what would change that."""

    why: str
    remedy: str


class ApiServer:
    """The connection of one agent.

    ``cluster`` is None while DRA is switched off, or where there is no API server.
    """

    def __init__(self, config: Callable[[], Config], kubeconfig: Path | None, cluster: Cluster | None = None) -> None:
        """Connect, unless ``cluster`` is given. ``config`` returns the configuration in use."""
        self._config = config
        self._kubeconfig = kubeconfig
        self.cluster = cluster or connect(config(), kubeconfig)

    @property
    def claims_off(self) -> ClaimsOff | None:
        """Why claims cannot be served. None: this agent's own settings allow it."""
        if self._config().dra.enabled is False:
            return ClaimsOff("dra.enabled is false", "set dra.enabled: auto, or leave it out")
        if self.cluster is None:
            return ClaimsOff(
                "there is no API server", "give --kubeconfig, or run the agent in a pod with a service account"
            )
        return None

    def connect(self) -> bool:
        """Connect if the configuration allows it now; return whether there is a new connection."""
        if self.cluster is None:
            self.cluster = connect(self._config(), self._kubeconfig)
            return self.cluster is not None
        return False

    def disconnect(self) -> None:
        """Talk to no API server from now on."""
        self.cluster = None


def connect(config: Config, kubeconfig: Path | None) -> Cluster | None:
    """Return the API server to talk to; None where DRA is off or no API server is known.

    Imports the client only where there is a server.
    """
    if config.dra.enabled is False:
        return None
    expected = config.wants_dra or config.node_labels is not None
    # Every pod has the variable. Without a token it matters only if the configuration expects an API server.
    in_pod = SERVICE_ACCOUNT.exists() or (expected and "KUBERNETES_SERVICE_HOST" in os.environ)
    if kubeconfig is None and not in_pod:
        if expected:
            log.warning(
                "no API server: not in a pod and no --kubeconfig; the DevicePlugin side works, claims are not served, "
                "no labels are written",
                extra={"driver": config.driver},
            )
        return None
    from drabridge.kube.client import KubernetesCluster

    if kubeconfig is None:
        return KubernetesCluster.in_cluster()
    return KubernetesCluster.from_kubeconfig(kubeconfig, small=True)
