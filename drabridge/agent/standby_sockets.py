"""Find the control sockets of standbys in the state directory, and remove those that a killed one left."""

from __future__ import annotations

from pathlib import Path

from drabridge.dra.sockets import is_dead

SOCKETS = "standby-*.sock"  # short: a socket's path has 107 bytes at most


def standbys(state: Path) -> list[str]:
    """Return the names of the sockets of standbys that wait in this state directory."""
    return sorted(path.name for path in state.glob(SOCKETS) if not is_dead(path))


def remove_dead(state: Path) -> None:
    """Remove the sockets that nobody listens on."""
    for path in state.glob(SOCKETS):
        if is_dead(path):
            path.unlink(missing_ok=True)
