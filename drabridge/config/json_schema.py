"""Make the JSON Schema of the configuration, for editors and for the chart's values.

It is stricter than the loader in one way: ids under ``match`` must be quoted. The loader reads the file itself and
keeps ``0403`` as it is; an editor or Helm has turned it into the number 259 before a schema sees it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import NODEFAULT, Meta
from msgspec.structs import fields

from drabridge.config.checker import unwrapped
from drabridge.config.declaration import Check, Model, OneOrMany, Parse, to_data
from drabridge.config.schema import Config

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LIMITS: Mapping[str, Mapping[str, str]] = {  # attribute of Meta -> the schema's word, by the type that is limited
    "ge": {"": "minimum"},
    "le": {"": "maximum"},
    "min_length": {"array": "minItems", "object": "minProperties", "string": "minLength"},
    "max_length": {"array": "maxItems", "object": "maxProperties", "string": "maxLength"},
    "pattern": {"": "pattern"},
}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configuration file."""
    return {"$schema": SCHEMA_DIALECT, **_without_notes(annotated_schema()), "title": "drabridge configuration"}


def annotated_schema() -> dict[str, Any]:
    """Return the schema with notes for the reference (``x-type``: a type in words)."""
    models = sorted(all_models(Config), key=lambda model: model.__name__)
    return {"$defs": {model.__name__: _definition(model) for model in models if model is not Config}} | _definition(
        Config
    )


def all_models(model: type[Model], seen: list[type[Model]] | None = None) -> list[type[Model]]:
    """Return the model and every model that its fields mention, each once, in reading order."""
    found = [] if seen is None else seen
    if model not in found:
        found.append(model)
        for field in fields(model):
            for mentioned in models_in(field.type):
                all_models(mentioned, found)
    return found


def models_in(annotation: Any) -> list[type[Model]]:
    """Return the models that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for argument in typing.get_args(annotation) for model in models_in(argument)]


def field_docs(model: type[Model]) -> dict[str, str]:
    """Return the docstring under each field, by Python name. The source is read only when documentation is made."""
    docs: dict[str, str] = {}
    for part in reversed([cls for cls in model.__mro__ if issubclass(cls, Model) and cls is not Model]):
        docs.update(_own_docs(part))
    return docs


def _own_docs(model: type[Model]) -> dict[str, str]:
    docs: dict[str, str] = {}
    for statement, following in itertools.pairwise(_source_of(model).body):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


@functools.cache
def _source_of(model: type[Model]) -> ast.ClassDef:
    """Parse a model's source: the image's bytecode has no docstrings."""
    source = textwrap.dedent(inspect.getsource(model))
    # Python 3.14 with -OO leaves docstrings out of what ast.parse returns.
    module = compile(source, model.__name__, "exec", ast.PyCF_ONLY_AST, optimize=0)
    assert isinstance(module, ast.Module)
    (tree,) = module.body
    assert isinstance(tree, ast.ClassDef)
    return tree


def _definition(model: type[Model]) -> dict[str, Any]:
    docs = field_docs(model)
    properties: dict[str, Any] = {}
    for field in fields(model):
        described = {**_of(field.type), "description": docs[field.name]}
        if (default := _shown_default(field.default)) is not None:
            described["default"] = default
        properties[field.encode_name] = described
    required = [field.encode_name for field in fields(model) if field.required]
    return {
        "type": "object",
        "description": ast.get_docstring(_source_of(model)) or "",
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
        **({"oneOf": [{"required": [key]} for key in model.one_of]} if model.one_of else {}),
        **model.schema_rules,
    }


def _shown_default(default: Any) -> Any:
    """Return the default as plain data; None if it is missing or empty, or a mapping, whose keys have their own."""
    if default is NODEFAULT or default is None or isinstance(default, Model) or default in ((), {}):
        return None
    return to_data(default)


def _of(annotation: Any) -> dict[str, Any]:
    """Return the schema of a value, without None: the mapping's schema says which keys may be left out."""
    kind, marks = unwrapped(annotation)
    if given := [mark.schema for mark in marks if isinstance(mark, Check | Parse) and mark.schema is not None]:
        return dict(given[-1])
    schema = _of_kind(kind)
    for mark in marks:
        if isinstance(mark, Meta):
            for limit, words in _LIMITS.items():
                if (value := getattr(mark, limit)) is not None:
                    schema[words.get(schema.get("type", ""), words.get("", ""))] = value
    if OneOrMany() in marks:
        return {"anyOf": [schema["items"], schema]}
    return schema


def _of_kind(kind: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        members = [_of(argument) for argument in arguments if argument is not types.NoneType]
        return members[0] if len(members) == 1 else {"anyOf": members}
    if origin is Literal:
        shared = {_TYPES[type(argument)] for argument in arguments}
        values = {"const": arguments[0]} if len(arguments) == 1 else {"enum": list(arguments)}
        return {**values, **({"type": shared.pop()} if len(shared) == 1 else {})}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0])}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        keys = _of(arguments[0]).get("pattern")
        values = _of(arguments[1])
        if keys is None:
            return {"type": "object", "additionalProperties": values}
        return {"type": "object", "patternProperties": {keys: values}, "additionalProperties": False}
    if isinstance(kind, type) and issubclass(kind, Model):
        return {"$ref": f"#/$defs/{kind.__name__}"}
    return {"type": _TYPES[kind]}


def _without_notes(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_notes(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_notes(item) for key, item in value.items() if not key.startswith("x-")}
    return value
