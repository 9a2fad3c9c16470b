"""Make the JSON Schema of the configuration, for editors and for the chart's values.

It is stricter than the loader in one way: ids under ``match`` must be quoted. The loader reads the file itself and
keeps ``0403`` as it is; an editor or Helm has turned it into the number 259 before a schema sees it.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from pydantic import BaseModel

from drabridge.config.schema import Config

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the configuration file."""
    return {"$schema": SCHEMA_DIALECT, **_without_notes(annotated_schema()), "title": "drabridge configuration"}


def annotated_schema() -> dict[str, Any]:
    """The schema with notes for the reference (``x-type``: a type in words)."""
    schema = Config.model_json_schema(by_alias=True)
    models = {model.__name__: model for model in all_models(Config)}
    for name, definition in {**schema["$defs"], "Config": schema}.items():
        _describe(definition, models[name])
    cleaned = _cleaned(schema)
    assert isinstance(cleaned, dict)
    return cleaned


def all_models(model: type[BaseModel], seen: list[type[BaseModel]] | None = None) -> list[type[BaseModel]]:
    """The model and every model that its fields mention, each once, in reading order."""
    found = [] if seen is None else seen
    if model not in found:
        found.append(model)
        for field in model.model_fields.values():
            for mentioned in models_in(field.annotation):
                all_models(mentioned, found)
    return found


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation mentions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in models_in(argument)]


def field_docs(model: type[BaseModel]) -> dict[str, str]:
    """The docstring under each field, by Python name.

    The source is read only when documentation is made. pydantic's own way reads it at every import, which costs the
    agent 0.1 s at each start (measured).
    """
    docs: dict[str, str] = {}
    for part in reversed([cls for cls in model.__mro__ if issubclass(cls, BaseModel) and cls is not BaseModel]):
        docs.update(_own_docs(part))
    return docs


def _own_docs(model: type[BaseModel]) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


def defaults(model: type[BaseModel]) -> dict[str, Any]:
    """The default of each optional field as the file would have it, by the file's name for it.

    None and empty defaults are left out, and so are mappings: their keys have defaults of their own.
    """
    blank = model.model_construct()
    plain = blank.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name, field in model.model_fields.items():
        value, key = getattr(blank, name, None), field.alias or name
        if isinstance(value, BaseModel) or value in ((), {}):
            plain.pop(key, None)
        elif isinstance(value, tuple) and isinstance(value[0], BaseModel):
            plain[key] = [item.model_dump(mode="json", by_alias=True, exclude_defaults=True) for item in value]
    return plain


def _describe(definition: dict[str, Any], model: type[BaseModel]) -> None:
    definition["description"] = inspect.cleandoc(model.__doc__ or "")
    docs, preset = field_docs(model), defaults(model)
    for name, field in model.model_fields.items():
        key = field.alias or name
        described = definition["properties"][key]
        described["description"] = docs[name]
        described.pop("default", None)
        if key in preset:
            described["default"] = preset[key]


def _cleaned(value: Any) -> Any:
    """The schema without titles, which repeat the names, and without null where the key is optional."""
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if not isinstance(value, dict):
        return value
    members = [item for item in value.get("anyOf", ()) if item != {"type": "null"}]
    if "anyOf" in value and len(members) < len(value["anyOf"]):
        rest = {key: item for key, item in value.items() if key not in {"anyOf", "default"}}
        value = {**rest, **(members[0] if len(members) == 1 else {"anyOf": members})}
    if "patternProperties" in value:
        value = {key: item for key, item in value.items() if key != "propertyNames"} | {"additionalProperties": False}
    return {
        key: {name: _cleaned(item) for name, item in inner.items()}
        if key in {"properties", "$defs"}
        else _cleaned(inner)
        for key, inner in value.items()
        if not (key == "title" and isinstance(inner, str))
    }


def _without_notes(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_notes(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_notes(item) for key, item in value.items() if not key.startswith("x-")}
    return value
