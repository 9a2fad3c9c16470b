"""Both clients behind one shape, so that every behaviour is tested on each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from podresources import Allocatable, KubeletFeatures, NodeSnapshot, SyncClient, errors
from tests.support.waiting import PATIENCE


class AnyClient(Protocol):
    """What the two clients have in common, as seen from a test."""

    @property
    def features(self) -> KubeletFeatures: ...
    async def list(self, *, timeout_seconds: float | None = None) -> NodeSnapshot: ...
    async def allocatable(self, *, timeout_seconds: float | None = None) -> Allocatable: ...
    async def get(self, namespace: str, pod: str, *, timeout_seconds: float | None = None) -> NodeSnapshot: ...
    async def probe(self, *, timeout_seconds: float | None = None) -> KubeletFeatures: ...
    async def close(self) -> None: ...


E = TypeVar("E", bound=errors.PodResourcesError)


async def refused(client: AnyClient, kind: type[E], seconds: float) -> E:
    """The error of a list that has so long. It is asked again where time ran out before kubelet had said a word."""
    for _ in range(PATIENCE):
        with pytest.raises((kind, errors.KubeletTimeout)) as caught:
            await client.list(timeout_seconds=seconds)
        if isinstance(caught.value, kind):
            return caught.value
    raise caught.value


class InThread:
    """The synchronous client, called from threads so that the test's servers go on serving."""

    def __init__(self, path: Path, **options: Any) -> None:
        self._client = SyncClient(path, **options)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        return partial(asyncio.to_thread, found) if callable(found) else found


MakeClient = Callable[..., AnyClient]
