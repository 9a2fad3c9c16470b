"""Lists, with ``limit`` and ``continue``. The pages of a list are of one revision."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass

from drabridge.sim.apiserver.kinds import Resource
from drabridge.sim.apiserver.selectors import Predicate, everything
from drabridge.sim.apiserver.status import JSON, bad_request, expired
from drabridge.sim.apiserver.store import Store, key_of

_TOKEN_VERSION = "meta.k8s.io/v1"
PAGE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list "
    "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
    "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
    "modified, or deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True, slots=True)
class Page:
    """Items and the metadata that goes with them."""

    items: Sequence[JSON]
    metadata: JSON


def list_page(
    store: Store,
    resource: Resource,
    namespace: str,
    wanted: Predicate,
    *,
    limit: int = 0,
    token: str = "",
) -> Page:
    """Return one page, consistent at one revision.

    Raises ApiError 410 when that revision is compacted, 400 for a bad token.
    """
    at, start = _position(token) if token else (store.revision, "")
    if at < store.compacted and at < store.revision:
        raise expired(PAGE_EXPIRED)
    found = [
        obj
        for obj in store.listed(resource, revision=at)
        if (not namespace or obj["metadata"].get("namespace", "") == namespace) and wanted(obj)
    ]
    rest = [obj for obj in found if _path(obj, namespace) >= start]
    page = rest[:limit] if limit else rest
    metadata: JSON = {"resourceVersion": str(at)}
    if len(page) < len(rest):
        metadata["continue"] = _token(at, _path(page[-1], namespace) + "\0")
        if wanted is everything:  # with a selector the real server does not know how many match
            metadata["remainingItemCount"] = len(rest) - len(page)
    return Page(page, metadata)


def _path(obj: JSON, namespace: str) -> str:
    """Place of an object in a list, relative to the listed prefix."""
    inside, name = key_of(obj)
    return f"/{name}" if namespace or not inside else f"/{inside}/{name}"


def _token(revision: int, start: str) -> str:
    text = json.dumps({"v": _TOKEN_VERSION, "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _position(token: str) -> tuple[int, str]:
    try:
        data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        if data["v"] != _TOKEN_VERSION:
            raise ValueError(data["v"])
        return int(data["rv"]), str(data["start"])
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise bad_request(f"invalid continue token: continue key is not valid: {error}") from error
