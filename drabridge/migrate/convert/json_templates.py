"""Put ResourceClaimTemplates into JSON, which has neither comments nor document marks.

A List takes them as items. One object becomes an item of a List with them. After several objects they come as objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import yaml

from drabridge.migrate.convert.kinds import text_at
from drabridge.migrate.convert.splice import Edit
from drabridge.migrate.convert.templates import Template
from drabridge.migrate.convert.yaml_nodes import Value, key_text, value
from drabridge.yaml_reader import Mapping, Node
from drabridge.yaml_reader import Sequence as Items

_HEAD = '{"apiVersion": "v1", "kind": "List", "items": ['


def takes_templates(roots: Sequence[Node]) -> bool:
    """Return whether templates have a place in these documents: a list of one kind, as DeploymentList, has none."""
    kind = text_at(value(roots[0]), "kind")
    return len(roots) > 1 or not kind.endswith("List") or _items(roots[0]) is not None


def placed(text: str, roots: Sequence[Node], templates: Iterable[Template]) -> list[Edit]:
    """Return the edits that put templates into a text of these documents."""
    written = [yaml.safe_load("\n".join(template.lines())) for template in templates]
    if not written:
        return []
    last, items = roots[-1], _items(roots[0])
    newline = "\r\n" if text[: text.find("\n") + 1].endswith("\r\n") else "\n"
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
    """Return what the documents say with the templates that :func:`placed` put there."""
    added: list[Value] = [template.document() for template in templates]
    (first, *others) = documents
    if not added or others:
        return [*documents, *added]
    if _items(roots[0]) is not None and isinstance(first, dict) and isinstance(items := first["items"], list):
        return [{**first, "items": [*items, *added]}]
    return [{"apiVersion": "v1", "kind": "List", "items": [first, *added]}]


def _items(root: Node) -> list[Node] | None:
    """Return the items of a List of any kinds; None where it is none."""
    if isinstance(root, Mapping) and text_at(value(root), "kind") == "List":
        for key, child in root.entries:
            if key_text(key) == "items" and isinstance(child, Items) and child.items:
                return child.items
    return None


def _step(text: str, root: Node) -> int:
    """Return how far an object's keys are indented; 0 where they have no lines of their own."""
    if not isinstance(root, Mapping) or not root.entries:
        return 0
    start = root.entries[0][0].start
    before = text[text.rfind("\n", 0, start) + 1 : start]
    return len(before) if not before.strip() else 0


def _text(manifest: object, step: int, indent: str, newline: str) -> str:
    return json.dumps(manifest, indent=step or None).replace("\n", newline + indent)
