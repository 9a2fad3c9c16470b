"""The configuration reference is generated from the model and is complete."""

from __future__ import annotations

from msgspec.structs import fields

from drabridge.config.json_schema import all_models
from drabridge.config.reference import reference
from drabridge.config.schema import Config
from drabridge.config.template import IDENTITY_FIELDS, PLAIN_FIELDS


def test_every_key_and_field_is_in_it() -> None:
    text = reference()
    for model in all_models(Config):
        section = text.split(f"#### {model.__name__}\n")[1].split("####")[0]
        for field in fields(model):
            assert f"| `{field.encode_name}` |" in section
    for name in (*PLAIN_FIELDS, *IDENTITY_FIELDS):
        assert f"`{{{name}}}`" in text


def test_types_and_defaults_in_words() -> None:
    text = reference()
    assert "| `resyncSeconds` | 5 to 3600 | `60` |" in text
    assert '| `permissions` | "r", "w" or "rw" | `rw` |' in text
    assert "| `match` | list of [Matcher](#matcher) | required |" in text
    assert "| `enabled` | `true`, `false` or `auto` | `auto` |" in text
