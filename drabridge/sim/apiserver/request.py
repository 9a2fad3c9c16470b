"""Read one request to the simulated API server: who asks for what, and how it was answered."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import yaml

from drabridge.sim.apiserver import selectors
from drabridge.sim.apiserver.auth import User
from drabridge.sim.apiserver.convert import to_version
from drabridge.sim.apiserver.kinds import BY_PLURAL, Resource, Served
from drabridge.sim.apiserver.objects import Writer
from drabridge.sim.apiserver.selectors import Predicate
from drabridge.sim.apiserver.status import JSON, bad_request

_NAMED_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_LIST_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_TRUE = ("1", "true", "True", "t", "T")
MERGE_TYPE = "application/merge-patch+json"
APPLY_TYPES = ("application/apply-patch+yaml", "application/apply-patch+json")


@dataclass(slots=True, eq=False)
class Request:
    """One request. Requests that have ended are the server's log: tests count writes, and compare with a role's rules.

    ``status``, ``events`` and ``sent_bytes``, of the answer's body, are filled in while it is answered.
    """

    method: str
    path: str
    query: dict[str, str]
    """First value of each parameter."""
    user_agent: str
    content_type: str
    authorization: str = field(repr=False)
    body: bytes = field(repr=False)
    at_seconds: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """Clock of the event loop at arrival."""
    received_bytes: int = 0
    sent_bytes: int = 0
    status: int = 0
    """0 while it is in progress, or when it was never answered."""
    events: int = 0
    """Watch events sent, bookmarks included."""
    by: User | None = None
    kind: Resource | None = field(default=None, repr=False)
    """None for paths without stored objects: health and discovery."""
    shows_empty_devices: bool = False
    version: str = ""
    namespace: str = ""
    """Empty for cluster-scoped objects and for lists over all namespaces."""
    name: str = ""
    subresource: str = ""

    def __post_init__(self) -> None:
        self.received_bytes = len(self.body)

    def find_target(self, served: Served) -> None:
        """Set what the path addresses; nothing is set if that is not served."""
        match [part for part in self.path.split("/") if part]:
            case ["api", "v1", *rest]:
                group, version = "", "v1"
            case ["apis", group, version, *rest]:
                pass
            case _:
                return
        namespace = ""
        match rest:
            case ["namespaces", namespace, plural, *after] if plural not in ("status", "finalize"):
                pass
            case [plural, *after]:
                namespace = ""
            case _:
                return
        kind = BY_PLURAL.get(plural)
        if kind is None or kind.group != group or version not in served.versions(kind) or len(after) > 2:
            return
        name, subresource = (*after, "", "")[:2]
        if (namespace and not kind.namespaced) or (name and kind.namespaced and not namespace):
            return
        if not subresource or subresource in kind.subresources:
            self.kind, self.version = kind, version
            self.namespace, self.name, self.subresource = namespace, name, subresource
            self.shows_empty_devices = served.release.shows_empty_devices and kind.plural == "resourceslices"

    # -- what it asks for

    @property
    def resource(self) -> str:
        return self.kind.plural if self.kind else ""

    @property
    def verb(self) -> str:
        """Return the verb that RBAC is asked about: get, list, watch, create, update, patch, delete, deletecollection.

        ``nonresource`` for discovery; empty when the method does not exist here.
        """
        if self.kind is None:
            return "nonresource"
        verb = (_NAMED_VERBS if self.name else _LIST_VERBS).get(self.method, "")
        return "watch" if verb == "list" and self.flag("watch") else verb

    @property
    def is_write(self) -> bool:
        return self.verb in ("create", "update", "patch", "delete", "deletecollection")

    @property
    def rule(self) -> tuple[str, str, str]:
        """(group, resource[/subresource], verb): what RBAC must allow."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return self.kind.group if self.kind else "", resource, self.verb

    @property
    def user(self) -> str:
        return self.by.name if self.by else "system:anonymous"

    @property
    def target(self) -> Resource:
        """The kind of a request for stored objects."""
        assert self.kind is not None
        return self.kind

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in _TRUE

    def number(self, name: str) -> int:
        """Return a parameter that is a number, 0 if it is absent. Raises ApiError 400."""
        text = self.query.get(name, "") or "0"
        if not text.isdecimal():
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
        return int(text)

    @property
    def writer(self) -> Writer:
        assert self.by is not None
        return Writer(
            self.by,
            self.query.get("fieldManager") or self.user_agent.split("/")[0] or "unknown",
            self.version,
            strict=self.query.get("fieldValidation", "") == "Strict",
            force=self.flag("force"),
            dry_run=self.query.get("dryRun", "") == "All",
        )

    @property
    def wanted(self) -> Predicate:
        """Return the request's namespace and selectors. Raises ApiError 400."""
        fields, labels = self.query.get("fieldSelector", ""), self.query.get("labelSelector", "")
        return selectors.predicate(self.target, self.namespace or None, fields, labels)

    # -- bodies

    def json(self) -> Any:
        """Return the body as JSON (YAML for apply). Raises ApiError 400."""
        try:
            if self.content_type in ("application/yaml", *APPLY_TYPES):
                return yaml.safe_load(self.body)
            return json.loads(self.body or b"{}")
        except (ValueError, yaml.YAMLError) as error:
            raise bad_request(f"the object provided is unrecognized: {error}") from error

    def object(self) -> JSON:
        """Return the body as an object of the addressed kind and version."""
        body, wanted = self.json(), self.target.group_version(self.version)
        if not isinstance(body, dict):
            raise bad_request("the body of the request must be an object")
        given, kind = body.setdefault("apiVersion", wanted), body.setdefault("kind", self.target.kind)
        if kind != self.target.kind:
            version = str(given).rpartition("/")[2]
            target = f"{self.target.group.partition('.')[0] or 'core'}.{self.target.kind}"
            why = f"converting ({version}.{kind}) to ({target}): unknown conversion"
            raise bad_request(f'{kind} in version "{version}" cannot be handled as a {self.target.kind}: {why}')
        if given != wanted:
            raise bad_request(
                f"the API version in the data ({given}) does not match the expected API version ({wanted})"
            )
        name = body.setdefault("metadata", {}).get("name", self.name)
        if self.name and name != self.name:
            raise bad_request(f"the name of the object ({name}) does not match the name on the URL ({self.name})")
        return body

    def shown(self, obj: JSON) -> JSON:
        """Return a stored object as the request's version has it."""
        shown = to_version(self.target, obj, self.version)
        if self.shows_empty_devices:
            shown["spec"] = {"devices": None, **shown.get("spec", {})}
        return shown
