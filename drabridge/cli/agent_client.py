"""Ask the running agent over its control socket, a unix socket for root."""

from __future__ import annotations

import argparse
import http.client
import json
import socket
from http import HTTPStatus
from pathlib import Path
from typing import Any

from drabridge.errors import ConfigError, HostError
from drabridge.system.paths import KUBELET_ROOT

PLUGINS = KUBELET_ROOT / "plugins"
ASK_SECONDS = 10.0


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--socket``, which every such command has."""
    parser.add_argument(
        "--socket", type=Path, metavar="FILE", help=f"the agent's control.sock; default: the only one below {PLUGINS}"
    )


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def find_socket(given: Path | None) -> Path:
    """Return the socket to ask: the given one, or the only one of this node.

    Raises HostError for none or several.
    """
    if given is not None:
        return given
    try:
        found = sorted(PLUGINS.glob("*/control.sock"))
    except OSError as error:
        raise HostError(f"cannot look into {PLUGINS}: {error.strerror}", hint="Run this as root on the node") from error
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(str, found))
        raise HostError(f"several agents have sockets here: {names}", hint="Say which with --socket")
    raise HostError(
        f"no agent has a socket below {PLUGINS}",
        hint="Run this as root on the node, or inside the agent's pod; with another kubelet directory, give --socket",
    )


def ask(path: Path, page: str, body: Any = None, *, seconds: float = ASK_SECONDS) -> Any:
    """Ask one path of the agent (POST if there is a ``body``) and return its JSON.

    Raises HostError if the agent does not answer or cannot do it, ConfigError if it says that the request is wrong.
    """
    connection = _Connection(path, seconds)
    try:
        if body is None:
            connection.request("GET", page)
        else:
            connection.request("POST", page, json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
    except PermissionError as error:
        raise HostError(f"{path} may be opened by root only", hint="Run this as root") from error
    except FileNotFoundError as error:
        raise HostError(f"there is no socket {path}", hint="Is the agent running? Its log says where it is") from error
    except ConnectionRefusedError as error:
        raise HostError(
            f"nobody answers on {path}", hint="The agent was killed; see its log, start it again"
        ) from error
    except (OSError, http.client.HTTPException, ArithmeticError, ValueError, RecursionError) as error:
        raise HostError(f"the agent behind {path} does not answer: {error}", hint="See its log") from error
    finally:
        connection.close()
    if response.status != HTTPStatus.OK:
        said = str(answer.get("error", answer)) if isinstance(answer, dict) else str(answer)
        raise ConfigError(said) if response.status == HTTPStatus.BAD_REQUEST else HostError(said)
    return answer
