"""Every recorded exchange with a real 1.36.2 API server, replayed in order against the simulated one."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from drabridge.sim.apiserver.server import SimApiServer
from tests.sim.compare import Correspondence
from tests.support.api_client import Client, Response

FIXTURES = Path(__file__).parents[1] / "fixtures" / "kubernetes-1.36.2"
EXCHANGES = json.loads((FIXTURES / "http-exchanges.json").read_text())

# The recorder kept the answer's dict and edited it for its next request before it was written to the file: in these two
# answers pool.generation shows the *next* request's value. The `get` that follows, and the watch, show what was stored.
EDITED_AFTERWARDS = {"create": 1, "create (seen by the watch)": 1}
CONCURRENT_WATCH = "watch: initial events, bookmark, then add, modify, delete"
BEFORE_WATCHED_WRITES = "create (seen by the watch)"


def recorded(exchange: Any) -> Any:
    body = copy.deepcopy(exchange["response"]["body"])
    if exchange["name"] in EDITED_AFTERWARDS:
        assert body["spec"]["pool"]["generation"] == 2, "the recording was repaired: delete its entry here"
        body["spec"]["pool"]["generation"] = EDITED_AFTERWARDS[exchange["name"]]
    return body


async def send(client: Client, exchange: Any, known: Correspondence) -> Response:
    request = exchange["request"]
    return await client(request["method"], request["path"], known.request(request["body"]), request["contentType"])


def check(exchange: Any, response: Response, known: Correspondence) -> list[str]:
    body = recorded(exchange)
    if "generateName" in str(exchange["request"]["body"]):
        known.names[body["metadata"]["name"]] = response.body["metadata"]["name"]
    ours = response.body[0] if isinstance(response.body, list) and isinstance(body, dict) else response.body
    found = known.differences(body, ours)
    if response.status != exchange["response"]["status"]:
        found.append(f"status: recorded {exchange['response']['status']}, got {response.status}")
    if response.headers["content-type"] != exchange["response"]["contentType"]:
        found.append(f"content type: {response.headers['content-type']}")
    return found


async def replay() -> dict[str, list[str]]:
    """Differences by the exchange's name, in the order of the recording."""
    known = Correspondence()
    out: dict[str, list[str]] = {}
    async with SimApiServer(versions=("v1", "v1beta2", "v1beta1", "v1alpha3")) as api:
        client = Client(api)
        watching: asyncio.Task[Response] | None = None
        for exchange in EXCHANGES:
            if exchange["name"] == BEFORE_WATCHED_WRITES:
                concurrent = next(one for one in EXCHANGES if one["name"] == CONCURRENT_WATCH)
                watching = asyncio.create_task(send(client, concurrent, known))
                while not (api.requests[-1].verb == "watch" and api.requests[-1].events == 4):
                    await asyncio.sleep(0.01)
            if exchange["name"] == CONCURRENT_WATCH:
                assert watching is not None
                response = await watching
            else:
                response = await send(client, exchange, known)
            out[exchange["name"]] = check(exchange, response, known)
    return out


@pytest.fixture(scope="module")
def differences() -> dict[str, list[str]]:
    return asyncio.run(replay())


def test_all_29_were_replayed(differences: dict[str, list[str]]) -> None:
    assert len(differences) == len(EXCHANGES) == 29


@pytest.mark.parametrize("name", [exchange["name"] for exchange in EXCHANGES])
def test_answers_as_recorded(name: str, differences: dict[str, list[str]]) -> None:
    assert differences[name] == []
