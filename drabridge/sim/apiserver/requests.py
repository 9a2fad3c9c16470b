"""The log of what clients asked, for counting writes and for comparing with a role's rules."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    """One request as the server saw it; ``status`` and the outgoing bytes are filled in when it ends."""

    verb: str
    """RBAC verb: get, list, watch, create, update, patch, delete, deletecollection; ``nonresource`` for discovery."""
    path: str
    query: dict[str, str]
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str
    user_agent: str
    user: str
    content_type: str
    at_seconds: float
    """Clock of the event loop at arrival."""
    received_bytes: int
    sent_bytes: int = 0
    status: int = 0
    """0 while it is in progress, or when it was never answered."""
    events: int = field(default=0)
    """Watch events sent, bookmarks included."""

    @property
    def is_write(self) -> bool:
        return self.verb in ("create", "update", "patch", "delete", "deletecollection")

    @property
    def rule(self) -> tuple[str, str, str]:
        """(group, resource[/subresource], verb): what RBAC must allow."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return self.group, resource, self.verb
