"""Read JSON of an API server: pages of a LIST, watch events, objects, however large or deeply nested.

Users write most of an object: up to 1.5 MB (etcd's limit) in ten thousand levels (Go's limit). So for lists and watches
the wanted fields are named beforehand, and the rest is skipped without building objects. JSON that is nested deeper
than any wanted field becomes null before it is parsed.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from types import GenericAlias
from typing import Any, Generic, TypedDict, TypeVar

import msgspec
from msgspec import Raw, Struct, field

T = TypeVar("T")
Json = dict[str, Any]

MOST_DEPTH = 64  # levels; the deepest field that is read, a capacity in a LIST of claims, is in the tenth
_BRACKET = re.compile(
    rb'(?>[^"\[\]{}]++|"(?>[^"\\]++|\\.)*+"|[\[{][^"\[\]{}]*+[\]}])*+([\[\]{}])', re.DOTALL
)  # the next bracket; pairs with neither text nor pairs inside are skipped, as they may go on for megabytes


_HALF = re.compile(
    rb"(?>[^\\]++|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(?!u[dD][89a-fA-F]).)*+"
    rb"(\\u[dD][89a-fA-F][0-9a-fA-F]{2})",
    re.DOTALL,
)  # the next half of a surrogate pair; whole pairs and other escapes are skipped
_REPLACEMENT = rb"\ufffd"  # as long as what it replaces


class AmbiguousObject(dict[str, Any]):
    """A JSON object with duplicate keys.

    The last value of a key counts, as usual; ``duplicates`` names the keys.
    """

    duplicates: tuple[str, ...] = ()


def decode(data: bytes | str) -> Any:
    """Parse JSON as an API server sends it. Raises ValueError.

    Servers accept duplicate keys in opaque parameters. An object that has some becomes an AmbiguousObject.
    """
    try:
        return json.loads(data, object_pairs_hook=_object)
    except (RecursionError, ValueError):
        return json.loads(tidy(data.encode() if isinstance(data, str) else data), object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> Json:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    ambiguous = AmbiguousObject(plain)
    ambiguous.duplicates = tuple(sorted(key for key, n in Counter(key for key, _ in pairs).items() if n > 1))
    return ambiguous


def shallow(data: bytes) -> bytes:
    """Return the JSON with null in place of everything deeper than ``MOST_DEPTH``.

    Raises ValueError if the JSON is cut off below that depth.
    """
    kept, begin, depth, at = bytearray(), 0, 0, 0  # not a list of pieces: an object may have a million
    while found := _BRACKET.match(data, at):
        at = found.end()
        if found[1] in b"[{":
            depth += 1
            if depth == MOST_DEPTH + 1:
                kept += data[begin : at - 1]
        else:
            if depth == MOST_DEPTH + 1:
                kept += b"null"
                begin = at
            depth -= 1
    if depth > MOST_DEPTH:
        raise ValueError("JSON that ends too early")
    kept += data[begin:]
    return bytes(kept)


def tidy(data: bytes) -> bytes:
    """Return the JSON in a form that parsers accept.

    Too deep nesting becomes null; half surrogate pairs and invalid UTF-8 become U+FFFD. An API server passes these on
    in opaque parameters. Raises ValueError if the JSON is cut off.
    """
    text = shallow(data.decode("utf-8", "replace").encode())
    mended, at = bytearray(text), 0
    while found := _HALF.match(text, at):
        at = found.end()
        mended[found.start(1) : at] = _REPLACEMENT
    return bytes(mended)


class ObjectView(Generic[T]):
    """How the objects of a LIST or a watch are read, in the thread that receives them.

    ``fields``: the fields to parse, made by :func:`fields`; all others are skipped. None: the whole object is parsed.
    ``read`` returns what to keep. It must use no mutable state; an exception of it is an error of that object only.
    """

    def __init__(self, read: Callable[[Json], T], fields: Any = None) -> None:
        self._read = read
        self._decoder = None if fields is None else msgspec.json.Decoder(fields)

    def __call__(self, data: bytes | Raw) -> T:
        """Read one object. Malformed data raises any exception: see :mod:`drabridge.system.untrusted`."""
        if self._decoder is None:
            found = decode(bytes(data))
        else:
            try:
                found = self._decoder.decode(data)
            except (RecursionError, msgspec.DecodeError):
                found = self._decoder.decode(tidy(bytes(data)))
        if not isinstance(found, dict):
            raise TypeError(f"an object was expected, found {type(found).__name__}")
        return self._read(found)


class _ListMeta(Struct):
    following: str | None = field(default=None, name="continue")
    version: str | None = field(default=None, name="resourceVersion")


class _Page(Struct):
    metadata: _ListMeta | None = None
    items: list[Raw] | None = None


class Page(Struct, frozen=True):
    """One answer to a LIST. ``following``: where the next one begins; "" for the last."""

    items: list[Raw]
    following: str
    resource_version: str


def page_of(data: bytes) -> Page:
    """Split one answer to a LIST into its objects, which are not parsed yet. Raises ValueError."""
    try:
        page = _PAGE.decode(data)
    except (RecursionError, msgspec.DecodeError):
        page = _PAGE.decode(tidy(data))
    metadata = page.metadata or _ListMeta()
    return Page(page.items or [], metadata.following or "", metadata.version or "")


class WatchLine(Struct, frozen=True):
    """One line of a watch, its object not parsed yet."""

    type: str
    object: Raw


def event_of(line: bytes) -> WatchLine:
    """Split one line of a watch. Raises ValueError."""
    try:
        return _EVENT.decode(line)
    except (RecursionError, msgspec.DecodeError):
        return _EVENT.decode(tidy(line))


class ObjectIdentity(Struct, frozen=True):
    """The identity of an object, from its metadata."""

    uid: str | None = None
    namespace: str | None = None
    name: str | None = None
    resource_version: str | None = field(default=None, name="resourceVersion")

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name or "an object without a name"


class _Identified(Struct):
    metadata: ObjectIdentity | None = None


def identity_of(data: bytes | Raw) -> ObjectIdentity:
    """Read an object's identity; empty where it has none."""
    try:
        return _IDENTIFIED.decode(data).metadata or ObjectIdentity()
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ObjectIdentity()


_PAGE = msgspec.json.Decoder(_Page)
_EVENT = msgspec.json.Decoder(WatchLine)
_IDENTIFIED = msgspec.json.Decoder(_Identified)


def fields(**types: Any) -> Any:
    """Return the type for the fields to read of an object: each may be missing or null; all others are skipped."""
    make: Any = TypedDict
    return make("fields", {name: kind | None for name, kind in types.items()}, total=False)


def list_of(kind: Any) -> Any:
    """Return the type of a list whose elements are read as ``kind``."""
    return GenericAlias(list, (kind,))


_AMOUNTS = dict[str, str | int | float | None]
_PRESENCE = fields()  # only its presence counts
_CONTAINER = fields(resources=fields(limits=_AMOUNTS), restartPolicy=str)
_CONTAINER_STATUS = fields(
    name=str,
    containerID=str,
    state=fields(running=_PRESENCE, terminated=fields(exitCode=int, finishedAt=str)),
)

# What a pod uses, and which pod it is.
PodFields = fields(
    metadata=fields(
        name=str,
        namespace=str,
        uid=str,
        annotations=fields(**{"kubernetes.io/config.mirror": str}),
        ownerReferences=list_of(fields(apiVersion=str, kind=str, name=str, uid=str, controller=bool)),
        creationTimestamp=str,
        deletionTimestamp=str,
        deletionGracePeriodSeconds=int,
    ),
    spec=fields(
        containers=list_of(_CONTAINER),
        initContainers=list_of(_CONTAINER),
        ephemeralContainers=list_of(_PRESENCE),
        restartPolicy=str,
        resourceClaims=list_of(fields(resourceClaimName=str)),
        terminationGracePeriodSeconds=int,
        schedulerName=str,
    ),
    status=fields(
        phase=str,
        extendedResourceClaimStatus=fields(resourceClaimName=str, requestMappings=list_of(fields(resourceName=str))),
        resourceClaimStatuses=list_of(fields(resourceClaimName=str)),
        conditions=list_of(fields(type=str, reason=str)),
        initContainerStatuses=list_of(_CONTAINER_STATUS),
        containerStatuses=list_of(_CONTAINER_STATUS),
        ephemeralContainerStatuses=list_of(_CONTAINER_STATUS),
    ),
)

# Which devices a claim is allocated, on which nodes and for whom, and what drivers say of them; not what it asks for.
ClaimFields = fields(
    metadata=fields(name=str, namespace=str, uid=str, resourceVersion=str),
    status=fields(
        allocation=fields(
            allocationTimestamp=str,
            nodeSelector=Any,
            devices=fields(
                results=list_of(
                    fields(
                        request=str,
                        driver=str,
                        pool=str,
                        device=str,
                        shareID=str,
                        adminAccess=bool,
                        consumedCapacity=_AMOUNTS,
                        bindingConditions=list[str],
                    )
                )
            ),
        ),
        reservedFor=list_of(fields(resource=str, name=str)),
        devices=list_of(
            fields(
                driver=str,
                pool=str,
                device=str,
                shareID=str,
                conditions=list_of(fields(type=str, status=str)),
            )
        ),
    ),
)
