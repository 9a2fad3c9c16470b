"""The node under another driver's name: what that still holds, a changed name would give out again."""

from __future__ import annotations

from drabridge.config.schema import Config
from drabridge.errors import ConfigError, HostError
from drabridge.ledger.model import Owner
from drabridge.ledger.refusals import holder
from drabridge.ledger.store import read_completely
from drabridge.system.paths import Paths


def refuse_another_name(paths: Paths, config: Config, node: str) -> None:
    """Raises ConfigError where another name's ledger on this node has holders of a resource of this configuration, or
    cannot be read. Hardware that it calls otherwise is withheld, device by device
    (:mod:`drabridge.coexistence.other_agents`).

    The driver's name is in everything that a running pod and kubelet refer to, the ledger's place included: under a new
    name nothing would be known of who holds what. A reload refuses such a change for the same reason.
    """
    served = {resource.name for resource in config.resources}
    for directory in sorted((paths.kubelet / "plugins").glob("*/")):
        if directory == paths.state:
            continue
        try:
            ledger = read_completely(directory, node=node)
        except HostError as error:
            raise ConfigError(
                f"on this node the driver {directory.name} may hold configured devices: {error.message}",
                hint=f"Start the agent as {directory.name} again until the node is drained. If nothing of it runs any "
                f"more, remove {directory}",
            ) from error
        if ledger is None:
            continue
        held = [
            entry
            for entry in ledger.entries.values()
            if entry.device.resource in served and entry.owner is not Owner.NONE
        ]
        if held:
            raise ConfigError(
                f"on this node the driver {directory.name} holds {len(held)} of the configured devices: "
                f"{held[0].name} is held by {holder(held[0])}",
                hint=f"Start the agent as {directory.name} again until the node is drained. If nothing of it runs any "
                f"more, remove {directory}",
            )
