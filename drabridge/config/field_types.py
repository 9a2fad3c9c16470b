"""The types of the configuration's fields: patterns, templates, names."""

from __future__ import annotations

from typing import Annotated, Any

from drabridge.config import names
from drabridge.config.declaration import Check, Parse
from drabridge.config.pattern import Glob, Patterns
from drabridge.config.problems import Problem, Problems, unmet
from drabridge.config.regex import Regex
from drabridge.config.template import CONTAINER_FIELDS, IDENTITY_FIELDS, variable_name
from drabridge.config.template import Field as TemplateField
from drabridge.config.template import Template as _Template
from drabridge.config.template import parse as parse_template


def text_of(value: Any, what: str = "text") -> str:
    """Return the value when it is a string. Raises Problems when it is not."""
    if not isinstance(value, str):
        raise unmet(what)
    return str(value)


# --- patterns -------------------------------------------------------------------------------------------------------


def _pattern(value: Any) -> Glob | Regex:
    if isinstance(value, dict):
        if set(value) != {"regex"}:
            raise unmet('a pattern, or {regex: "..."}', "regex is the only key here")
        return Regex.compile(text_of(value["regex"], "a regular expression"))
    return Glob.compile(text_of(value, "a pattern, {regex: ...}, or a list of them"))


def as_patterns(value: Any) -> Patterns:
    """Read a glob, ``{regex: ...}`` or a list of them as patterns. Raises Problems, with the index in a list."""
    if isinstance(value, Patterns):
        return value
    if not isinstance(value, list | tuple):
        return Patterns((_pattern(value),))
    items: list[Glob | Regex] = []
    problems: list[Problem] = []
    for index, item in enumerate(value):
        try:
            items.append(_pattern(item))
        except Problems as error:
            problems += [problem.under(index) for problem in error.items]
    if problems:
        raise Problems(*problems)
    if not items:
        raise unmet("at least one pattern", "an empty list matches nothing")
    return Patterns(tuple(items))


_ONE_PATTERN: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "maxLength": 1024},
        {
            "type": "object",
            "properties": {"regex": {"type": "string", "maxLength": 512}},
            "required": ["regex"],
            "additionalProperties": False,
        },
    ]
}
PatternsText = Annotated[
    Patterns,
    Parse(
        as_patterns,
        {
            "anyOf": [*_ONE_PATTERN["anyOf"], {"type": "array", "minItems": 1, "items": _ONE_PATTERN}],
            "x-type": "pattern",
        },
    ),
]

# --- templates ------------------------------------------------------------------------------------------------------


def _template(value: Any) -> _Template:
    template = _in_container(value)
    for field in template.fields:
        _refuse_container_field(field)
    return template


def _refuse_container_field(field: TemplateField) -> None:
    if field.source in CONTAINER_FIELDS:
        raise unmet(
            "fields that a device has by itself",
            f"{{{field}}} is known in a container alone: write it into `as`, `containerPath` or `env`",
        )


def _in_container(value: Any) -> _Template:
    if isinstance(value, _Template):
        return value
    template = parse_template(text_of(value, "text, with fields in braces"))
    if not template.parts:
        raise unmet("some text")
    return template


def _without_identity(template: _Template) -> _Template:
    for field in template.fields:
        if field.source in IDENTITY_FIELDS:
            raise unmet("fields that are known before the id is", f"{{{field}}} follows from the id")
    return template


def _cdi_device(template: _Template) -> _Template:
    first = template.parts[0]
    kind, equals, name = first.partition("=") if isinstance(first, str) else ("", "", "")
    if not equals or not names.is_cdi_kind(kind):
        raise unmet(
            "a CDI device as vendor/class=name, fields only after the equals sign",
            "for example nvidia.com/gpu={nvidia.uuid}",
        )
    rest = "".join(part if isinstance(part, str) else "x" for part in (name, *template.parts[1:]))
    if not names.is_cdi_name(rest):
        hint = "letters, digits and any of '_-.:' inside; nvidia-ctk cdi list shows the names of NVIDIA's files"
        raise unmet("the name of a CDI device after the equals sign", hint)
    return template


def _path(template: _Template) -> _Template:
    first = template.parts[0]
    if isinstance(first, str):
        literal = "".join(part if isinstance(part, str) else "x" for part in template.parts)
        names.absolute_path(literal)
    elif first.source != "devnode":
        raise unmet("an absolute path", "begin it with / or {devnode}")
    return template


def _path_key(text: str) -> str:
    _path(_template(text))
    return text


def _variable(text: str) -> str:
    names.ENV_NAME.check("".join(part if isinstance(part, str) else "x" for part in variable_name(text).parts))
    return text


def _as_field(value: Any) -> TemplateField:
    if isinstance(value, TemplateField):
        return value
    text = text_of(value, "a field")
    if text.startswith("{"):
        raise unmet("a field without braces", f"write {text.strip('{}')}")
    field = TemplateField.parse(text)
    _refuse_container_field(field)
    return field


def _schema(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "x-type": kind, **more}


_PATH = _schema("path template", pattern=r"^(/|\{devnode\})")
_CDI_DEVICE = _schema("vendor/class=name", pattern=r"^[A-Za-z][A-Za-z0-9_.-]*/[^={}]+=.")

Template = Annotated[_Template, Parse(_template, _schema("template"))]
ContainerTemplate = Annotated[_Template, Parse(_in_container, _schema("template"))]
IdTemplate = Annotated[Template, Check(_without_identity)]
PathTemplate = Annotated[Template, Check(_path, _PATH)]
ContainerPath = Annotated[ContainerTemplate, Check(_path, _PATH)]
PathKey = Annotated[str, Check(_path_key, _PATH)]
CdiDeviceTemplate = Annotated[Template, Check(_cdi_device, _CDI_DEVICE)]
FieldText = Annotated[TemplateField, Parse(_as_field, _schema("field", pattern=r"^[^{]"))]

# --- names ----------------------------------------------------------------------------------------------------------


def _resource_names(text: str) -> str:
    """Check a resource name, or one with an attribute in it: one resource for each value (``name_template.py``)."""
    if "{" not in text and "}" not in text:
        return names.extended_resource_name(text)
    template = parse_template(text)
    fields = template.fields
    if len(fields) != 1 or fields[0].source != "attr" or fields[0].of_parent or "{" in text.partition("/")[0]:
        hint = "for example nvidia.com/mig-{attr:profile}, which is one resource for each value"
        raise unmet("a plain name, or one {attr:NAME} after the slash", hint)
    names.extended_resource_name(template.render(lambda _: "x") or "")
    return text


_PLAIN_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_NAME_OF_VALUE = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?\{attr:[^{}]+\}([-A-Za-z0-9_.]*[A-Za-z0-9])?"
_RESOURCE_NAME = r"^(?!requests\.)(?!.*kubernetes\.io/)[a-z0-9]([-a-z0-9.]*[a-z0-9])?/"
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_C_NAME = "[A-Za-z_][A-Za-z0-9_]"
_OWNER = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 4294967294}, {"const": "host"}], "x-type": "id"}


def _resource_schema(name: str) -> dict[str, Any]:
    """Return the schema of a resource's name; 244 characters for the domain, the slash, 63 for the name."""
    return _schema("domain/name", maxLength=308, pattern=f"{_RESOURCE_NAME}{name}$")


ResourceNames = Annotated[str, Check(_resource_names, _resource_schema(f"({_PLAIN_NAME}|{_NAME_OF_VALUE})"))]
ResourceName = Annotated[str, Check(names.extended_resource_name, _resource_schema(_PLAIN_NAME))]
DriverName = Annotated[str, names.DRIVER_NAME]
PoolName = Annotated[str, names.POOL_NAME]
ProfileName = Annotated[str, names.PROFILE_NAME]
DeviceClassName = Annotated[str, names.DEVICE_CLASS_NAME]
AttributeName = Annotated[
    str, Check(names.attribute_name, _schema("name", pattern=rf"^({_LABEL}(\.{_LABEL})*/)?{_C_NAME}{{0,31}}$"))
]
_LABEL_NAME = rf"^({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
# 253 characters for the domain, the slash, 63 for the name
LabelName = Annotated[str, Check(names.label_name, _schema("label's name", maxLength=317, pattern=_LABEL_NAME))]
EnvName = Annotated[str, names.ENV_NAME]
_VARIABLE_NAME = r"^([A-Za-z_]|\{[^{}]+\})([A-Za-z0-9_]|\{[^{}]+\})*$"
VariableName = Annotated[str, Check(_variable, _schema("name", pattern=_VARIABLE_NAME))]
Permissions = Annotated[str, names.PERMISSIONS]
FileMode = Annotated[str, names.FILE_MODE]
OwnerId = Annotated[int | str, Check(names.owner_id, _OWNER)]
AbsolutePath = Annotated[str, Check(names.absolute_path, _schema("path", pattern="^/"))]
