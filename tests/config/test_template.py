"""Templates: parsed once, rendered without surprises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.config.problems import Problems
from drabridge.config.template import IDENTITY_FIELDS, KEYED_FIELDS, PLAIN_FIELDS, Field, Template, parse

KEY = st.text(st.characters(codec="utf-8", exclude_characters="{}\0\n"), min_size=1, max_size=8).filter(
    lambda key: not key.startswith("/") and ".." not in key.split("/")
)
FIELDS = st.one_of(
    st.sampled_from([*PLAIN_FIELDS, *IDENTITY_FIELDS]).map(Field),
    st.builds(Field, st.sampled_from(["attr", "property", "link"]), KEY, st.booleans()),
    KEY.map(lambda key: Field("file", "/" + key.lstrip("/"))),
)
TEXT = st.text(max_size=6)
VALUES = st.text(min_size=1, max_size=6)


def _joined(parts: list[str | Field]) -> Template:
    merged: list[str | Field] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        elif part != "":
            merged.append(part)
    return Template(tuple(merged))


TEMPLATES = st.lists(TEXT | FIELDS, max_size=5).map(_joined)


@given(TEMPLATES)
def test_text_and_template_round_trip(template: Template) -> None:
    assert parse(str(template)) == template


@given(TEMPLATES, VALUES)
def test_rendering_replaces_every_field_and_nothing_else(template: Template, value: str) -> None:
    rendered = template.render(lambda field: value)
    assert rendered == "".join(part if isinstance(part, str) else value for part in template.parts)


@given(TEMPLATES, FIELDS)
def test_one_empty_field_empties_the_whole(template: Template, missing: Field) -> None:
    full = Template((*template.parts, missing))
    assert full.render(lambda field: None if field == missing else "x") is None
    assert full.render(lambda field: "" if field == missing else "x") is None


@given(st.text(max_size=20) | st.text("{}:.abcdefgilnorstuv", max_size=20))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        template = parse(text)
    except Problems:
        return
    assert parse(str(template)) == template
    if not template.fields:
        assert template.literal == text.replace("{{", "{").replace("}}", "}")


def test_every_documented_field_parses() -> None:
    for name in (*PLAIN_FIELDS, *IDENTITY_FIELDS):
        assert parse(f"{{{name}}}").fields == (Field(name),)
    for name in KEYED_FIELDS:
        key = "/x" if name == "file" else "x"
        assert parse(f"{{{name}:{key}}}").fields == (Field(name, key),)
    assert parse("{parent.attr:serial}").fields == (Field("attr", "serial", of_parent=True),)
    assert parse("a{{b}}").literal == "a{b}"


@pytest.mark.parametrize(
    "text",
    ["{", "}", "{}", "{x}", "{attr:}", "{file:x}", "{file:/a/../b}", "{parent.sysname}", "{parent.file:/x}", "{{{x}}}",
     "{attr:/etc/passwd}", "{attr:../x}", "{sysname:x}", "x" * 5000, "{ sysname }", "{attr:a\nb}"],
)  # fmt: skip
def test_refused(text: str) -> None:
    with pytest.raises(Problems):
        parse(text)


@pytest.mark.parametrize("value", ["../sda", "a/b", "/etc/shadow", "..", ".", "a\0b", ""])
def test_hardware_cannot_lead_a_path_astray(value: str) -> None:
    assert parse("/dev/serial/{attr:serial}").render_path(lambda field: value) is None
    assert parse("/dev/serial/{property:X}").render_path(lambda field: value) is None


def test_paths_from_the_kernel_are_paths() -> None:
    assert parse("{devnode}").render_path(lambda field: "/dev/bus/usb/001/002") == "/dev/bus/usb/001/002"
    assert parse("/dev/nvidia{nvidia.minor}").render_path(lambda field: "3") == "/dev/nvidia3"
    assert parse("/dev/x{attr:n}").render_path(lambda field: "..7") == "/dev/x..7"
