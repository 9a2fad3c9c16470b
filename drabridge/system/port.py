"""Serve the one TCP port of an agent, for metrics, probes and the page: first a standby's pages, then the agent's."""

from __future__ import annotations

import asyncio
import errno
import logging

from drabridge.errors import ConfigError
from drabridge.system.http import Handler, HttpServer

log = logging.getLogger(__name__)

FREE_SECONDS = 0.05  # between looks at a port that another agent has: the kernel frees it when that one ends


class Port:
    """A TCP listener whose pages may be replaced while it serves.

    ``listen`` is ``HOST:PORT``, or empty for none.
    """

    def __init__(self, listen: str) -> None:
        self.listen = listen
        self.address = ""  # host:port in use
        self._server = HttpServer({})

    @property
    def bound(self) -> bool:
        """Whether the port is bound, or none is wanted."""
        return bool(self.address) or not self.listen

    def serve(self, routes: dict[tuple[str, str], Handler]) -> None:
        """Serve these pages and no others."""
        self._server.routes = dict(routes)

    async def bind(self) -> None:
        """Listen. Raises ConfigError: a port that is taken is the operator's error."""
        try:
            await self._bind()
        except OSError as error:
            raise self._fault(error) from error

    async def bind_unless_taken(self) -> bool:
        """Listen; return False if the port is taken. Raises ConfigError for any other failure."""
        try:
            await self._bind()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise self._fault(error) from error
            return False
        return True

    async def bind_when_free(self) -> None:
        """Wait until the port is free, then listen: the former agent has it until it ends."""
        said = False
        while not await self.bind_unless_taken():
            if not said:
                log.info("waiting for the port", extra={"address": self.listen})
            said = True
            await asyncio.sleep(FREE_SECONDS)

    async def close(self) -> None:
        """Close all connections; the port is free on return."""
        await self._server.close()

    async def _bind(self) -> None:
        if self.bound:
            return
        host, port = await self._server.listen_tcp(*parse_listen(self.listen))
        self.address = f"{host}:{port}"

    def _fault(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"cannot listen on {self.listen}: {error.strerror or error}",
            hint='Choose another --listen address, or --listen "" for none',
        )


def parse_listen(text: str) -> tuple[str, int]:
    """Parse ``127.0.0.1:9400``, ``:9400`` (every address) or ``[::1]:9400``. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ConfigError(f"--listen {text!r} is not HOST:PORT", hint='For example 127.0.0.1:9400, or ":9400" for all')
    return host.strip("[]"), int(port)
