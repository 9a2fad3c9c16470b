"""Name and write ResourceClaimTemplates: one for each namespace, resource, count and selection of devices.

JSON has neither comments nor document marks. So a List gets the templates as items; a single object becomes an item of
a new List with them; after several objects, templates follow as objects.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from drabridge.migrate.convert.splice import Edit, block_lines, newline_of
from drabridge.migrate.convert.yaml_nodes import Leaf, Value, same, text_at, value
from drabridge.yaml_reader import MappingNode, Node, SequenceNode, key_text

API_VERSION = "resource.k8s.io/v1"
MOST_DEVICES = 32  # of one claim: AllocationResultsMaxSize, staging/src/k8s.io/api/resource/v1/types.go
KIND = "ResourceClaimTemplate"
TEMPLATES_FILE = "resourceclaimtemplates.yaml"  # for templates that are not in the file of their pods
_NAME_MAX = 63  # a template may have 253 characters; its name is also the start of the claims' names
_HASH = 6
_OWN_NAME = re.compile(r"([-a-z0-9]+?)-[1-9][0-9]?(?:-[0-9a-f]{6})?")


class Template(Struct, frozen=True):
    """What a container needs, as a template says it."""

    namespace: str
    resource: str
    device_class: str
    count: int
    selectors: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``nvidia-gpu-2``; with a short hash of the selectors where there are some."""
        domain, _, word = self.resource.partition("/")
        name = slug(f"{domain.partition('.')[0]}-{word}", _NAME_MAX - _HASH - 5)
        return "-".join([name, str(self.count), *([_digest(self.selectors)] if self.selectors else [])])

    @property
    def key(self) -> tuple[str, str]:
        """Return its namespace and its name."""
        return self.namespace, self.name

    def manifest(self) -> dict[str, Any]:
        """Return the whole object."""
        exactly: dict[str, Any] = {"deviceClassName": self.device_class}
        if self.count != 1:
            exactly["count"] = self.count
        if self.selectors:
            exactly["selectors"] = [{"cel": {"expression": one}} for one in self.selectors]
        requests = [{"name": request_name(self.resource), "exactly": exactly}]
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.name, **({"namespace": self.namespace} if self.namespace else {})},
            "spec": {"spec": {"devices": {"requests": requests}}},
        }

    def document(self) -> dict[str, Value]:
        """Return the whole object as parsed YAML would be."""
        found = _as_value(self.manifest())
        assert isinstance(found, dict)
        return found


def _as_value(said: Any) -> Value:
    if isinstance(said, dict):
        return {key: _as_value(one) for key, one in said.items()}
    if isinstance(said, list):
        return [_as_value(one) for one in said]
    return said if isinstance(said, str) else Leaf(str(said), plain=True)


Existing = dict[tuple[str, str], Value]
"""(namespace, name) of each template that some file has already -> its ``spec``."""


def request_name(resource: str) -> str:
    """Return the name of the one request, and of the pod's claim: ``gpu`` for ``nvidia.com/gpu``."""
    return slug(resource.rpartition("/")[2], 40)


def is_template_of(template: str, claim: str) -> bool:
    """Return whether a template and a claim have the names that a conversion would give: nvidia-gpu-2 and gpu.

    ``claim``: "" where it has no name.
    """
    found = _OWN_NAME.fullmatch(template)
    return found is not None and (not claim or any(claim.startswith(word) for word in _beginnings(found[1])))


def _beginnings(name: str) -> Iterator[str]:
    """Yield the possible prefixes of a claim's name: the resource's own name, cut if too long, or its domain."""
    yield name.partition("-")[0] + "-"
    while name:
        yield name[:16]
        name = name.partition("-")[2]


def missing(wanted: Iterable[Template], there: Container[tuple[str, str]] = ()) -> list[Template]:
    """Return the missing templates, each once, in order."""
    found = {template.key: template for template in wanted if template.key not in there}
    return list(found.values())


def foreign(wanted: Iterable[Template], there: Existing) -> Template | None:
    """Return the first template whose name an existing, different template has; None if there is none."""
    taken = (one for one in wanted if one.key in there and not same(one.document()["spec"], there[one.key]))
    return next(taken, None)


def templates_file(templates: Iterable[Template]) -> str:
    """Return the templates as one file."""
    return "---\n".join("\n".join(block_lines(template.document())) + "\n" for template in templates)


def slug(text: str, limit: int) -> str:
    """Return a DNS label made from the text; with a hash of the text if characters were lost."""
    word = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "device"
    if len(word) <= limit:
        return word
    return f"{word[: limit - _HASH - 1].rstrip('-')}-{_digest([text])}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_HASH]


# --- templates in JSON ----------------------------------------------------------------------------------------------

_HEAD = '{"apiVersion": "v1", "kind": "List", "items": ['


def takes_templates(roots: Sequence[Node]) -> bool:
    """Return whether templates have a place in these documents: a list of one kind, as DeploymentList, has none."""
    kind = text_at(value(roots[0]), "kind")
    return len(roots) > 1 or not kind.endswith("List") or _items(roots[0]) is not None


def placed(text: str, roots: Sequence[Node], templates: Iterable[Template]) -> list[Edit]:
    """Return the edits that put templates into a text of these documents."""
    written = [template.manifest() for template in templates]
    if not written:
        return []
    last, items = roots[-1], _items(roots[0])
    newline = newline_of(text)
    step = _step(text, last)
    if len(roots) > 1:
        added = "".join(newline + _text(one, step, "", newline) for one in written)
        return [Edit(last.end, last.end, added)]
    if items is not None:
        before = text[text.rfind("\n", 0, items[-1].start) + 1 : items[-1].start]
        own_line = not before.strip() and step
        joint = f",{newline}{before}" if own_line else ", "
        added = "".join(joint + _text(one, step if own_line else 0, before, newline) for one in written)
        return [Edit(items[-1].end, items[-1].end, added)]
    added = "".join(f",{newline}{_text(one, step, '', newline)}" for one in written)
    return [Edit(last.start, last.start, _HEAD + newline), Edit(last.end, last.end, f"{added}{newline}]}}")]


def with_templates_said(
    documents: Sequence[Value], roots: Sequence[Node], templates: Iterable[Template]
) -> list[Value]:
    """Return the documents' values with the templates that :func:`placed` adds."""
    added: list[Value] = [template.document() for template in templates]
    (first, *others) = documents
    if not added or others:
        return [*documents, *added]
    if _items(roots[0]) is not None and isinstance(first, dict) and isinstance(items := first["items"], list):
        return [{**first, "items": [*items, *added]}]
    return [{"apiVersion": "v1", "kind": "List", "items": [first, *added]}]


def _items(root: Node) -> list[Node] | None:
    """Return the items of a List of any kinds; None where it is none."""
    if isinstance(root, MappingNode) and text_at(value(root), "kind") == "List":
        for key, child in root.entries:
            if key_text(key) == "items" and isinstance(child, SequenceNode) and child.items:
                return child.items
    return None


def _step(text: str, root: Node) -> int:
    """Return how far an object's keys are indented; 0 where they have no lines of their own."""
    if not isinstance(root, MappingNode) or not root.entries:
        return 0
    start = root.entries[0][0].start
    before = text[text.rfind("\n", 0, start) + 1 : start]
    return len(before) if not before.strip() else 0


def _text(manifest: object, step: int, indent: str, newline: str) -> str:
    return json.dumps(manifest, indent=step or None).replace("\n", newline + indent)
