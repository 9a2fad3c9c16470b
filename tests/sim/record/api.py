"""Plain HTTP requests to an API server, real or simulated."""

from __future__ import annotations

import asyncio
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import urllib3
from kubernetes import config

Json = Any
AGENT = "recorder/1"  # the first part is the field manager's name
JSON_TYPE = "application/json"
APPLY_TYPE = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; of a watch, ``body`` is the list of its events."""

    status: int
    content_type: str
    body: Json


class Api:
    """Requests with the credentials of a kubeconfig file."""

    def __init__(self, kubeconfig: Path) -> None:
        self._client = config.new_client_from_config(str(kubeconfig))

    def close(self) -> None:
        self._client.close()

    async def request(self, method: str, path: str, body: Json = None, content_type: str | None = JSON_TYPE) -> Answer:
        return await asyncio.to_thread(self._request, method, path, body, content_type)

    def _request(self, method: str, path: str, body: Json, content_type: str | None) -> Answer:
        settings = self._client.configuration
        headers = {one["key"]: one["value"] for one in settings.auth_settings().values() if one["in"] == "header"}
        headers |= {"User-Agent": AGENT, "Accept": JSON_TYPE}
        if content_type is not None:
            headers["Content-Type"] = content_type
        response = self._client.rest_client.pool_manager.request(
            method,
            settings.host + path,
            body=None if body is None else json.dumps(body),
            headers=headers,
            retries=False,
        )
        text = response.data.decode()
        kind = response.headers.get("content-type", "")
        if "watch" in parse_qs(urlsplit(path).query):
            return Answer(response.status, kind, [json.loads(line) for line in text.splitlines()])
        return Answer(response.status, kind, json.loads(text) if kind == JSON_TYPE else text)

    async def of_kubelet(self, address: str, path: str) -> Answer:
        """Ask the kubelet at this address, whose certificate is often its own."""

        def ask() -> Answer:
            settings = self._client.configuration
            with (
                urllib3.PoolManager(
                    cert_reqs="CERT_NONE", cert_file=settings.cert_file, key_file=settings.key_file
                ) as pool,
                warnings.catch_warnings(),
            ):
                warnings.simplefilter("ignore", urllib3.exceptions.InsecureRequestWarning)
                response = pool.request("GET", f"https://{address}:10250{path}", retries=False)
            return Answer(response.status, response.headers.get("content-type", ""), response.data.decode())

        return await asyncio.to_thread(ask)

    async def get(self, path: str) -> Json:
        """Return an object or a document. Raises RuntimeError for any other answer."""
        return self._good("GET", path, await self.request("GET", path))

    async def create(self, path: str, obj: Json) -> Json:
        return self._good("POST", path, await self.request("POST", path, obj))

    async def delete(self, path: str) -> None:
        answer = await self.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1"})
        if answer.status != 404:
            self._good("DELETE", path, answer)

    @staticmethod
    def _good(method: str, path: str, answer: Answer) -> Json:
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body}")
        return answer.body
