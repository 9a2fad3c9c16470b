"""Resources whose name has a template: one resource for each value that an attribute of the devices has.

``name: nvidia.com/mig-{attr:profile}`` stands for ``nvidia.com/mig-1g.10gb``, ``nvidia.com/mig-2g.20gb`` and so on, if
there are, or were, such devices. A template is replaced by what a person could have written instead: the same
resource once for each value, with the value in its match rules. So nothing else needs to know of templates.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping

from msgspec.structs import replace

from drabridge.config.matcher import Matcher
from drabridge.config.pattern import Patterns
from drabridge.config.resource_names import field_of, name_for
from drabridge.config.schema import Config, Resource

VALUES_MAX = 64
"""At most so many values of one template become resources: hardware chooses values, and each resource has a server."""

_MAGIC = re.compile(r"[*?\[\\]")


def expanded(config: Config, values: Mapping[str, Collection[str]]) -> Config:
    """Return the configuration with plain names only. ``values``: template -> its values.

    A template without values stands for nothing. The same object if no name has a template.
    """
    if not any("{" in resource.name for resource in config.resources):
        return config
    taken = {resource.name for resource in config.resources}
    resources: list[Resource] = []
    for resource in config.resources:
        field = field_of(resource.name)
        if field is None:
            resources.append(resource)
            continue
        by_name: dict[str, list[str]] = defaultdict(list)
        for value in sorted(values.get(resource.name, ())):
            if (name := name_for(resource.name, value)) and name not in taken:
                by_name[name].append(value)
        for name, wanted in by_name.items():
            match = tuple(filter(None, (_only(matcher, field.key, wanted) for matcher in resource.match)))
            resources.append(replace(resource, name=name, match=match))
        taken.update(by_name)
    return replace(config, resources=tuple(resources))


def _only(matcher: Matcher, attribute: str, values: Collection[str]) -> Matcher | None:
    """Return the matcher for devices with one of these values; None if it matches none of them."""
    before = matcher.attrs.get(attribute)
    accepted = [value for value in values if before is None or before.matches(value)]
    if not accepted:
        return None
    exact = Patterns.of(*(_MAGIC.sub(r"\\\g<0>", value).replace("|", "?") for value in accepted))
    return replace(matcher, attrs={**matcher.attrs, attribute: exact})
