"""Serve liveness, readiness and metrics on the port; on the control socket also status and the operator's requests.

The page for people is on the control socket. On the port it is served to loopback addresses only, unless the operator
says otherwise: it names pods.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from msgspec import Struct

from drabridge.errors import ConfigError, DrabridgeError
from drabridge.status.document import Document
from drabridge.status.readiness import AgentState, not_ready
from drabridge.system.http import Handler, HttpServer, Request, Response
from drabridge.system.port import Port

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0  # after ten times ``TICK_SECONDS`` of maintenance, the loop is stuck

Answer = Callable[[bytes], Awaitable[dict[str, Any]]]
"""Take a request's body, return the document of the answer. Raises DrabridgeError."""


class Views(Struct, frozen=True):
    """What is shown. Each view is computed for each request."""

    state: Callable[[], AgentState]
    document: Callable[[], Document]
    metrics: Callable[[], bytes]


class Endpoints:
    """Routes of the port and of the control socket. Only the operator's requests on the socket change anything."""

    def __init__(
        self, views: Views, requests: Mapping[tuple[str, str], Answer], port: Port, control_socket: Path, page_for: str
    ) -> None:
        """Answer what the operator asks on the control socket by ``requests``: method and path -> answer.

        ``port`` is already bound if this agent was a standby that could bind it. Otherwise another agent may have it
        until that agent ends. ``page_for`` says who gets the page for people on the port: ``local``, ``all`` or
        ``off``.
        """
        self._views = views
        self._requests = requests
        self._port = port
        self._control_socket = control_socket
        self._page_for = page_for
        self._control = HttpServer({})
        self._open = False
        self._beat_at = asyncio.get_running_loop().time()

    async def open(self) -> None:
        """Bind the control socket in the locked state directory; serve on it and, if bound, on the port."""
        asked = {route: partial(_answer, answer) for route, answer in self._requests.items()}
        status = {("GET", "/"): self._page, ("GET", "/status"): lambda _: Response.json(self._views.document())}
        self._control.routes = {**self._public(), **status, **asked}
        await self._control.listen_unix(self._control_socket)
        self._open = True
        self._serve_port()

    async def wait_for_port(self) -> None:
        """Bind the port as soon as the former agent closes it, and serve on it."""
        await self._port.bind_when_free()
        self._serve_port()

    async def renew_control_socket(self) -> None:
        """Create the control socket again if somebody removed it: without it the operator cannot reach the agent."""
        path = self._control_socket
        try:
            if self._open and await self._control.renew_unix(path):
                log.warning("control socket removed by somebody else; it is there again", extra={"path": path})
        except OSError as error:
            log.error("no control socket", extra={"path": path, "reason": str(error)})

    async def beat(self) -> None:
        """Record that the event loop runs; ``/healthz`` fails ``HEARTBEAT_SECONDS`` after the last call."""
        self._beat_at = asyncio.get_running_loop().time()

    async def close(self) -> None:
        """Close all connections; on return the port is free and our control socket is removed."""
        await self._port.close()
        await self._control.close()

    def _public(self) -> dict[tuple[str, str], Handler]:
        return {
            ("GET", "/healthz"): self._healthz,
            ("GET", "/readyz"): self._readyz,
            ("GET", "/metrics"): self._metrics,
        }

    def _serve_port(self) -> None:
        if not self._port.address:
            return
        pages: dict[str, Handler] = {"all": self._page, "local": self._local_page}
        page_handler = pages.get(self._page_for)
        routes = self._public()
        self._port.serve(routes if page_handler is None else {**routes, ("GET", "/"): page_handler})
        log.info("listening", extra={"address": self._port.address, "control": str(self._control_socket)})

    # --- handlers ---------------------------------------------------------------------------------------------------

    def _healthz(self, _: Request) -> Response:
        late = asyncio.get_running_loop().time() - self._beat_at
        if late > HEARTBEAT_SECONDS:
            return Response(f"stuck: no heartbeat for {late:.0f} s\n", HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")

    def _readyz(self, _: Request) -> Response:
        if reasons := not_ready(self._views.state()):
            return Response("".join(f"not ready: {reason}\n" for reason in reasons), HTTPStatus.SERVICE_UNAVAILABLE)
        return Response("ok\n")

    def _metrics(self, _: Request) -> Response:
        return Response(self._views.metrics(), content_type="text/plain; version=0.0.4; charset=utf-8")

    def _page(self, request: Request) -> Response:
        from drabridge.status import page  # few agents are ever asked for it: it takes memory

        body = page.render(self._views.document(), refresh=request.query.get("refresh") != "off")
        return Response(body, content_type="text/html; charset=utf-8", headers=page.HEADERS)

    def _local_page(self, request: Request) -> Response:
        """Serve the page only over a loopback address: from this machine, or by ``kubectl port-forward`` into the pod.

        The Host header must name this machine, too: a web site whose name resolves to 127.0.0.1 (DNS rebinding) must
        not read the page through the operator's browser.
        """
        if not request.loopback:
            listed = " ".join(sorted(path for _, path in self._public()))
            return Response(f"not found; here are: {listed}\n", HTTPStatus.NOT_FOUND)
        if not is_local_name(request.headers.get("host", "")):
            return Response(
                "this page is served to localhost only; --page serves it under any name\n",
                HTTPStatus.MISDIRECTED_REQUEST,
            )
        return self._page(request)


async def _answer(answer: Answer, request: Request) -> Response:
    """Answer a control request: 400 if the request is wrong (ConfigError), 409 if it cannot be done now."""
    try:
        return Response.json(await answer(request.body))
    except ConfigError as error:
        return Response.json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
    except DrabridgeError as error:
        return Response.json({"error": str(error)}, HTTPStatus.CONFLICT)


def is_local_name(host: str) -> bool:
    """Whether the value of a Host header means this machine: ``localhost:9400``, ``127.0.0.1``, ``[::1]:9400``."""
    name = re.sub(r":\d*$", "", host).strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
