"""Read which Kubernetes release a simulated part imitates."""

from __future__ import annotations

RECORDED = "1.36"
"""The release whose recordings the simulation reproduces: what is imitated unless something else is asked for."""


def minor_of(release: str) -> int:
    """Return 36 for ``1.36``, ``v1.36`` or ``1.36.2``. Raises ValueError for anything else."""
    major, _, rest = release.removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    if major != "1" or not minor.isdigit():
        raise ValueError(f"Kubernetes version {release!r}: expected a text like '1.36' or '1.36.2'")
    return int(minor)
