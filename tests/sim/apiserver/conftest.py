"""A simulated API server for each test, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from drabridge.sim.apiserver.server import SimApiServer
from tests.support.api_client import Client


@pytest.fixture
async def api() -> AsyncIterator[SimApiServer]:
    async with SimApiServer() as server:
        yield server


@pytest.fixture
def client(api: SimApiServer) -> Client:
    return Client(api)
