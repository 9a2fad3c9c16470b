"""Names of resources with a template in them: ``nvidia.com/mig-{attr:profile}``, and the names that it stands for."""

from __future__ import annotations

import re

from drabridge.config import names
from drabridge.config.problems import Problems
from drabridge.config.template import Field
from drabridge.config.template import parse as parse_template

_NOT_IN_NAMES = re.compile(r"[^-A-Za-z0-9_.]")


def field_of(name: str) -> Field | None:
    """Return the field in a resource's name, an attribute of the device; None for a plain name."""
    return parse_template(name).fields[0] if "{" in name else None


def name_for(template: str, value: str) -> str | None:
    """Return the resource name for one value; None if kubelet would refuse it.

    A character that cannot be in a name becomes a dot, as in NVIDIA's plugin: profile 1g.10gb+me, resource
    mig-1g.10gb.me.
    """
    text = parse_template(template).render(lambda _: _NOT_IN_NAMES.sub(".", value))
    try:
        return names.extended_resource_name(text) if text else None
    except Problems:
        return None


def stands_for(template: str, name: str) -> bool:
    """Whether ``name`` is the name ``template``, or one that the template can make."""
    if field_of(template) is None:
        return template == name
    parts = (part if isinstance(part, str) else None for part in parse_template(template).parts)
    pattern = "".join(".+" if part is None else re.escape(part) for part in parts)
    return re.fullmatch(pattern, name) is not None
