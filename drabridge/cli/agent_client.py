"""Ask the running agent over its control socket, a unix socket for root."""

from __future__ import annotations

import json
from http import HTTPStatus
from pathlib import Path
from typing import Any

from drabridge.cli.options import PLUGINS
from drabridge.errors import ConfigError, HostError
from podresources.resolve.http_request import FAILURES, request_unix

ASK_SECONDS = 10.0
MOST_BYTES = 64 << 20  # of an answer; the largest is the history of 12,000 holds


def find_socket(given: Path | None) -> Path:
    """Return the socket to ask: the given one, or the only one of this node.

    Raises HostError if there is none, or more than one.
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
    asked = None if body is None else json.dumps(body)
    try:
        status, said = request_unix(path, page, asked, seconds=seconds, most_bytes=MOST_BYTES)
        answer = json.loads(said)
    except PermissionError as error:
        raise HostError(f"{path} may be opened by root only", hint="Run this as root") from error
    except FileNotFoundError as error:
        raise HostError(f"there is no socket {path}", hint="Is the agent running? Its log says where it is") from error
    except ConnectionRefusedError as error:
        hint = "The agent was killed; see its log, start it again"
        raise HostError(f"nobody answers on {path}", hint=hint) from error
    except FAILURES as error:
        raise HostError(f"the agent behind {path} does not answer: {error}", hint="See its log") from error
    if status != HTTPStatus.OK:
        why = str(answer.get("error", answer)) if isinstance(answer, dict) else str(answer)
        raise ConfigError(why) if status == HTTPStatus.BAD_REQUEST else HostError(why)
    return answer
