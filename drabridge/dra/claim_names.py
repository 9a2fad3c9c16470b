"""Define who names the claims that wait for a lease here: nominated pods, or a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from drabridge.kube.json_reader import Json

ClaimKey = tuple[str, str]  # namespace and name


class WaitingPod(Struct, frozen=True):
    """A pod that waits to be bound with a claim."""

    namespace: str
    name: str
    scheduler: str
    claims: frozenset[str] = frozenset()  # names of all of its claims

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ClaimNames(Protocol):
    """Names claims. What it says is looked at, never believed."""

    @property
    def claims(self) -> Mapping[ClaimKey, frozenset[str]]:
        """The claims, each with the reasons to look at it; one that was settled for them all is left alone."""
        ...

    @property
    def lost_because(self) -> str:
        """Why what is named may be old; "" if it is not."""
        ...

    @property
    def comes_after_allocation(self) -> bool:
        """Whether a claim is named after its allocation only: one that is not allocated needs no further look."""
        ...

    @property
    def most_seconds(self) -> float:
        """The longest pause between two looks at one claim."""
        ...

    async def pods(self, key: ClaimKey, claim: Json) -> tuple[WaitingPod, ...]:
        """Return pods that wait with this claim, as it was read; none if none does. Raises ClusterError."""
        ...

    async def run(self) -> None:
        """Follow what names the claims, until cancelled."""
