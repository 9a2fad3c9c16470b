"""Both clients behind one shape, so that every behaviour is tested on each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import podresources
from podresources import Client
from tests.podresources.clients import AnyClient, InThread, MakeClient


@pytest.fixture(params=[Client, InThread], ids=["async", "sync"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[MakeClient]:
    """Makes clients of one kind, and closes them. Their waits are short: a test must not take kubelet's time."""
    made: list[AnyClient] = []

    def make(path: Path, **options: Any) -> AnyClient:
        options.setdefault("backoff", podresources.Backoff(initial_seconds=0.02, maximum_seconds=0.1))
        client: AnyClient = request.param(path, **options)
        made.append(client)
        return client

    yield make
    for client in made:
        await client.close()
