"""Define what the agent asks of an API server: a protocol over plain dicts, errors, and kinds.

No client library is used: :mod:`drabridge.kube.client` speaks HTTP. Objects are dicts as in JSON, so fields newer than
any library are kept.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar, overload

from msgspec import Struct

from drabridge.errors import ClusterError
from drabridge.kube.json_reader import Json, ObjectIdentity, ObjectView
from drabridge.kube.versions import RESOURCE_GROUP, RESOURCE_VERSIONS, choose_version
from drabridge.system.untrusted import reading

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,253}")


class NotFoundError(ClusterError):
    """404: the object is not there."""

    code = "NOT_FOUND"


class ConflictError(ClusterError):
    """409: it exists already, or it changed since it was read."""

    code = "ABORTED"


class ExpiredError(ClusterError):
    """410: the watch asked for a version that the server no longer has. List again."""

    code = "OUT_OF_RANGE"


class DeniedError(ClusterError):
    """401 or 403: who we are, or what we may do, is not accepted."""

    code = "PERMISSION_DENIED"


class InvalidError(ClusterError):
    """400, 413, 415, 422: the request itself is wrong; the same request will be refused again."""

    code = "INVALID_ARGUMENT"


class UnreachableError(ClusterError):
    """No answer, or one that says "later" (429, 5xx): trying again may help."""

    code = "UNAVAILABLE"


class UnservedError(UnreachableError):
    """404 of a path: the server lacks the kind or its version. This says nothing about whether an object exists."""


_ERRORS: dict[int, type[ClusterError]] = {
    400: InvalidError,
    401: DeniedError,
    403: DeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: ExpiredError,
    413: InvalidError,
    415: InvalidError,
    422: InvalidError,
}


def error_of(code: int, text: str, status: Json) -> ClusterError:
    """Return the error of an HTTP status. ``status``: the Status object that the server sent.

    A 404 for a missing object names the object. A 404 for an unknown path names none: the last handler of
    k8s.io/apiserver writes plain text, and a proxy may answer anything.
    """
    details = status.get("details")
    if code == 404 and not (isinstance(details, dict) and details.get("name")):
        return UnservedError(text)
    return _ERRORS.get(code, UnreachableError)(text)


class Kind(Struct, frozen=True):
    """A resource of the API, with what its URL needs."""

    group: str  # "" for the core group
    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path. Raises InvalidError for an invalid name: names come from kubelet and from objects."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [self.plural, *filter(None, (name, subresource))]
        for part in parts[1:]:
            if not _NAME.fullmatch(part) or part in (".", ".."):
                raise InvalidError(f"{part!r} is not the name of an object")
        return "/".join(parts)

    def __str__(self) -> str:
        return self.plural


NODES = Kind("", "v1", "nodes", namespaced=False)
PODS = Kind("", "v1", "pods")


def resource_slices(version: str) -> Kind:
    return Kind(RESOURCE_GROUP, version, "resourceslices", namespaced=False)


def resource_claims(version: str) -> Kind:
    return Kind(RESOURCE_GROUP, version, "resourceclaims")


def device_classes(version: str) -> Kind:
    return Kind(RESOURCE_GROUP, version, "deviceclasses", namespaced=False)


class Listing(Struct, Generic[T], frozen=True):
    """A consistent list and the version to watch from. ``items`` lacks the ``unreadable`` objects."""

    items: tuple[T, ...]
    resource_version: str
    unreadable: tuple[ObjectIdentity, ...] = ()


class WatchEvent(Struct, Generic[T], frozen=True):
    """ADDED, MODIFIED, DELETED or BOOKMARK.

    ``object`` is None where it could not be read, and for a BOOKMARK.
    """

    type: str
    object: T | None
    identity: ObjectIdentity

    @property
    def resource_version(self) -> str:
        return self.identity.resource_version or ""


class Cluster(Protocol):
    """An API server. Every method raises a :class:`ClusterError` and has a timeout of its own."""

    async def read(self, path: str) -> Json:
        """GET a path that is no object, such as discovery or ``/version``."""
        ...

    async def get(self, kind: Kind, name: str, *, namespace: str = "") -> Json: ...

    @overload
    async def list(
        self, kind: Kind, *, namespace: str = "", field_selector: str = "", label_selector: str = ""
    ) -> Listing[Json]: ...

    @overload
    async def list(
        self,
        kind: Kind,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        view: ObjectView[T],
    ) -> Listing[T]:
        """LIST, and keep only what ``view`` returns of each object: the objects are never all in memory."""
        ...

    async def create(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Json:
        """POST; return the object as stored (in a dry run: as it would be stored).

        With ``subresource``, POST to that subresource of the object ``metadata.name``.
        """
        ...

    async def replace(self, kind: Kind, body: Mapping[str, Any], *, namespace: str = "", dry_run: bool = False) -> Json:
        """PUT the object ``metadata.name`` if its ``resourceVersion`` still holds. Returns what :meth:`create` does."""
        ...

    async def apply(
        self,
        kind: Kind,
        body: Mapping[str, Any],
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
        force: bool = True,
    ) -> Json:
        """Apply on the server: afterwards ``manager`` owns the fields of ``body``.

        Without ``force``, raises ConflictError if another manager owns a field with another value.
        """
        ...

    async def rewrite(
        self,
        kind: Kind,
        name: str,
        change: Callable[[bytes], bytes],
        *,
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> None:
        """GET an object in Kubernetes' protobuf encoding, and PUT what ``change`` makes of it to the subresource.

        ``change`` raises ValueError for what it cannot read.
        """
        ...

    async def delete(
        self, kind: Kind, name: str, *, namespace: str = "", uid: str = "", resource_version: str = ""
    ) -> None:
        """DELETE with preconditions. A missing object is no error."""
        ...

    @overload
    def watch(
        self, kind: Kind, *, namespace: str = "", field_selector: str = "", resource_version: str
    ) -> AsyncGenerator[WatchEvent[Json], None]: ...

    @overload
    def watch(
        self, kind: Kind, *, namespace: str = "", field_selector: str = "", resource_version: str, view: ObjectView[T]
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Yield events from ``resource_version`` on, with bookmarks, until the server ends the watch.

        Raises ExpiredError on 410.
        """
        ...


async def served_version(cluster: Cluster) -> str:
    """Return the newest version of resource.k8s.io that both sides know; "" where the server has no DRA.

    Raises UnreachableError if the agent knows none of the served versions, or another ClusterError.
    """
    served = await resource_versions(cluster)
    version = choose_version(served)
    if served and version is None:
        known = ", ".join(row.version for row in RESOURCE_VERSIONS)
        raise UnreachableError(f"the API server serves resource.k8s.io in {', '.join(served)}: known are {known}")
    return version or ""


async def resource_versions(cluster: Cluster) -> tuple[str, ...]:
    """Return the versions of resource.k8s.io that the server has; none if it has no DRA.

    Raises ClusterError.
    """
    try:
        group = await cluster.read(f"/apis/{RESOURCE_GROUP}")
    except UnservedError:
        return ()
    with reading("the versions of resource.k8s.io", UnreachableError):
        return tuple(str(entry["version"]) for entry in group.get("versions") or ())


def backoff(first_seconds: float, most_seconds: float) -> Iterator[float]:
    """Yield delays that double up to ``most_seconds``.

    Each delay is random between its half and its whole, so that the requests of many nodes spread out.
    """
    delay = first_seconds
    while True:
        yield random.uniform(delay / 2, delay)
        delay = min(delay * 2, most_seconds)
