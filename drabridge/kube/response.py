"""Read the answers of an API server: a whole answer of bounded size, or a watch line by line in a thread."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from drabridge.errors import ClusterError, ConfigError, DrabridgeError
from drabridge.kube.api import UnreachableError, WatchEvent, error_of
from drabridge.kube.json_reader import Json, ObjectView, decode, event_of, identity_of
from drabridge.kube.transport import HttpStatusError
from drabridge.system.untrusted import Unreadable, reading

MOST_BYTES = 16 << 20  # of one object: etcd stores 1.5 MB (--max-request-bytes), as JSON that is several times larger
"""A page of a LIST has its own limit, in ``client.py``."""
CHUNK_BYTES = 1 << 16
ANSWER_SECONDS = 60.0  # for a whole answer, 16 MiB at most: it also ends answers that trickle in byte by byte


class TooLargeError(UnreachableError):
    """The answer is larger than the agent reads."""


@contextlib.contextmanager
def cluster_errors(method: str, path: str) -> Iterator[None]:
    """Translate everything that the client, HTTP or the network raises into a ClusterError."""
    from urllib3.exceptions import HTTPError

    try:
        yield
    except HttpStatusError as error:
        status = _status(error.body)  # its message says more than the HTTP reason
        message = status.get("message") or str(error)
        raise error_of(error.status, f"{method.upper()} {path}: {message}", status) from error
    except (HTTPError, OSError) as error:
        raise UnreachableError(
            f"{method.upper()} {path}: no answer from the API server ({type(error).__name__}: {error})"
        ) from error
    except ConfigError as error:  # in the kubeconfig or the token: both may be corrected while we run
        raise UnreachableError(error.message, hint=error.hint) from error
    except ValueError as error:
        raise UnreachableError(f"{method.upper()} {path}: the answer is not JSON ({error})") from error


def _status(body: bytes) -> Json:
    """Return the Status that the server sent; empty if it sent something else."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        status = json.loads(body)
        if isinstance(status, dict):
            return status
    return {}


def body_of(response: Any, what: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a whole answer.

    Raises TooLargeError after ``most_bytes``, UnreachableError after ``ANSWER_SECONDS``, and what urllib3 raises.
    """
    data, over = bytearray(), time.monotonic() + ANSWER_SECONDS
    while chunk := response.read1(CHUNK_BYTES):  # returns what has arrived, without waiting for the full size
        data += chunk
        if time.monotonic() > over:
            _abort(response)
            raise UnreachableError(f"{what} was not answered completely within {ANSWER_SECONDS:.0f} s")
        if len(data) > most_bytes:
            _abort(response)
            raise TooLargeError(f"{what} answered more than {most_bytes} bytes")
    return bytes(data)


class WatchStream:
    """One watch, read in a thread of its own.

    A busy server may take long even to begin the answer; in its own thread, the watch delays no other request.
    """

    def __init__(
        self,
        request: Callable[[], Any],
        path: str,
        read: Callable[[bytes], WatchEvent[Any]],
        deliver: Callable[[WatchEvent[Any] | ClusterError | None], None],
    ) -> None:
        self._request = request
        self._path = path
        self._read = read
        self._deliver = deliver
        self._lock = threading.Lock()
        self._response: Any = None
        self._ended = False

    def run(self) -> None:
        """Open the watch and read it to its end; runs in the thread."""
        try:
            with cluster_errors("watch", self._path):
                response = self._request()
                with self._lock:
                    self._response, late = response, self._ended
                if late:
                    _abort(response)
                    return
                for line in _until_over(response):
                    self._deliver(self._read(line))
            self._deliver(None)
        except ClusterError as error:
            self._deliver(error)
        except Exception as error:  # whatever a server sends, the watch ends and is begun again
            self._deliver(UnreachableError(f"watch {self._path}: {type(error).__name__}: {error}"))

    def end(self) -> None:
        """End the watch, from another thread. If it is not open yet, it ends as soon as it is."""
        with self._lock:
            self._ended, response = True, self._response
        if response is not None:
            _abort(response)


def read_event(path: str, view: ObjectView[Any], unreadable: Unreadable, line: bytes) -> WatchEvent[Any]:
    """Read one line of the watch of ``path``.

    Raises the ClusterError that the line reports; malformed data raises any exception.
    """
    event = event_of(line)
    if event.type == "ERROR":
        status = decode(bytes(event.object))
        raise error_of(int(status.get("code") or 500), f"watch {path}: {status.get('message', '')}", status)
    identity = identity_of(event.object)
    if event.type == "BOOKMARK":
        return WatchEvent(event.type, None, identity)
    try:
        with reading(str(identity)):
            return WatchEvent(event.type, view(event.object), identity)
    except DrabridgeError as error:
        if not identity.uid:  # without a UID nobody could say when it is gone
            raise
        unreadable.tell(str(identity), error)
        return WatchEvent(event.type, None, identity)


def _until_over(response: Any) -> Iterator[bytes]:
    """Yield the lines of a watch until it ends, is cut off, or its reads time out.

    The next watch continues from the last version, so nothing is missed; it fails if the server is gone.
    """
    from urllib3.exceptions import HTTPError

    with contextlib.suppress(HTTPError, OSError):
        yield from _lines(response)


def _lines(response: Any) -> Iterator[bytes]:
    rest = bytearray()
    for chunk in response.stream(amt=None, decode_content=False):
        *whole, last = chunk.split(b"\n")
        for piece in whole:
            line, rest = bytes(rest + piece), bytearray()
            if line.strip():
                yield line
        rest += last
        if len(rest) > MOST_BYTES:
            raise UnreachableError(f"a watch event has more than {MOST_BYTES} bytes")
    if rest.strip():
        yield bytes(rest)


def _abort(response: Any) -> None:
    """Wake a thread that is blocked in a read of this response: shut the socket down, then close it."""
    with contextlib.suppress(Exception):
        response.shutdown()
    with contextlib.suppress(Exception):
        response.close()
