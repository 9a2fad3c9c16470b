"""Refuse to start under another driver name while the former name's ledger still has holders."""

from __future__ import annotations

from pathlib import Path

from drabridge.config.resource_names import stands_for
from drabridge.config.schema import Config
from drabridge.errors import ConfigError, HostError
from drabridge.ledger.entries import Owner
from drabridge.ledger.refusals import holder
from drabridge.ledger.store import read_completely
from drabridge.system.paths import Paths


def refuse_another_name(paths: Paths, config: Config, node: str) -> None:
    """Raise ConfigError if another name's ledger here has holders of a configured resource, or is unreadable.

    Running pods and kubelet refer to the driver's name everywhere, and the ledger's path contains it: under a new name
    the agent would not know the holders. A reload refuses such a change for the same reason. If this configuration
    gives the resource another name, the hardware is withheld device by device
    (:mod:`drabridge.coexistence.other_agents`).
    """
    served = [resource.name for resource in config.resources]
    for directory in sorted((paths.kubelet / "plugins").glob("*/")):
        if directory == paths.state:
            continue
        try:
            ledger = read_completely(directory, node=node)
        except HostError as error:
            raise _refusal(directory, f"may hold configured devices: {error.message}") from error
        if ledger is None:
            continue
        held = [
            entry
            for entry in ledger.entries.values()
            if entry.owner is not Owner.NONE and any(stands_for(name, entry.device.resource) for name in served)
        ]
        if held:
            first = f"{held[0].name} is held by {holder(held[0])}"
            raise _refusal(directory, f"holds {len(held)} of the configured devices: {first}")


def _refusal(directory: Path, why: str) -> ConfigError:
    name = directory.name
    return ConfigError(
        f"on this node the driver {name} {why}",
        hint=f"Start the agent as {name} again until the node is drained. If nothing of it runs any more, "
        f"remove {directory}",
    )
