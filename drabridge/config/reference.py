"""Make the configuration's reference as Markdown from the model: one table for each kind of mapping."""

from __future__ import annotations

import inspect
import json
from typing import Any

from drabridge.config.json_schema import all_models, annotated_schema
from drabridge.config.schema import Config
from drabridge.config.template import CONTAINER_FIELDS, IDENTITY_FIELDS, KEYED_FIELDS, PLAIN_FIELDS

_HEAD = "| Key | Type | Default | Meaning |\n|---|---|---|---|\n"


def reference() -> str:
    """Return every key with its type, default and meaning, then the fields of templates, as Markdown."""
    schema = annotated_schema()
    sections = [_section(model.__name__, schema) for model in all_models(Config)]
    return "\n\n".join([*sections, _fields()]) + "\n"


def _section(name: str, schema: dict[str, Any]) -> str:
    definition = schema if name == Config.__name__ else schema["$defs"][name]
    required = set(definition.get("required", ()))
    rows = [_row(key, described, key in required) for key, described in definition["properties"].items()]
    return f"#### {name}\n\n{inspect.cleandoc(definition['description'])}\n\n{_HEAD}" + "\n".join(rows)


def _row(key: str, described: dict[str, Any], required: bool) -> str:
    default = "required" if required else _code(described["default"]) if "default" in described else ""
    return f"| `{key}` | {_type(described)} | {default} | {_cell(described['description'])} |"


def _code(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _type(described: dict[str, Any]) -> str:
    """Return a type in words: ``list of Node``, ``map of template``, ``5 to 3600``, ``auto or true or false``."""
    if "x-type" in described:
        return _cell(described["x-type"])
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in described:
        kinds = [_type(item) for item in described["anyOf"]]
        if len(kinds) == 2 and kinds[1] == f"list of {kinds[0]}":
            return kinds[1]
        return " or ".join(dict.fromkeys(kinds))
    if "const" in described or "enum" in described:
        return ", ".join(map(_code, described.get("enum", [described.get("const")])))
    match described.get("type"):
        case "array":
            return f"list of {_type(described['items'])}"
        case "object":
            inner = described.get("additionalProperties") or next(iter(described.get("patternProperties", {}).values()))
            return f"map of {_type(inner)}"
        case "integer" | "number" if "minimum" in described and "maximum" in described:
            return f"{described['minimum']:.10g} to {described['maximum']:.10g}"
        case "integer":
            return "whole number"
        case "number":
            return "number"
        case "boolean":
            return "`true`, `false`"
        case _:
            return "text"


def _fields() -> str:
    lines = ["#### Fields", "", "What templates may contain in braces, and what `from` names without braces.", ""]
    lines += ["| Field | Value |", "|---|---|"]
    lines += [f"| `{{{name}}}` | {_cell(text)} |" for name, text in PLAIN_FIELDS.items()]
    lines += [f"| `{{{name}:NAME}}` | {_cell(text)} |" for name, text in KEYED_FIELDS.items()]
    lines.append(
        "| `{parent.attr:NAME}`, `{parent.property:NAME}`, `{parent.link:NAME}` | of the nearest ancestor that has it, "
        "but for the hubs above a USB device |"
    )
    lines += [f"| `{{{name}}}` | {_cell(text)}; not in `id` |" for name, text in IDENTITY_FIELDS.items()]
    where = "in `as`, `containerPath` and `env` alone"
    lines += [f"| `{{{name}}}` | {_cell(text)}; {where} |" for name, text in CONTAINER_FIELDS.items()]
    return "\n".join(lines)
