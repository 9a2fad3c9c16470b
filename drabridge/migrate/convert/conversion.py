"""Convert the text of a manifest from limits to claims: text in, text and findings out, no files and no cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from drabridge.migrate.convert.converter import ConvertedPod, Converter, Moving, templates_in
from drabridge.migrate.convert.left_over import HELM_HINT, Listed
from drabridge.migrate.convert.settings import Finding, Level, Settings
from drabridge.migrate.convert.splice import Unspliceable
from drabridge.migrate.convert.templates import KIND, Existing, Template, is_template_of
from drabridge.migrate.convert.text_values import parsed
from drabridge.migrate.convert.undo import (
    CannotUndo,
    undone,
    undone_by,
)
from drabridge.migrate.convert.yaml_nodes import NotYaml, value

_BOM = "\ufeff"
# A claim as a conversion writes it, within a podSpecPatch as well: {"name": "gpu", ... "nvidia-gpu-1"}.
_CLAIM_IN_JSON = re.compile(
    r'(?:"name\\?":\s*\\?"([-a-z0-9]+)\\?",\s*\\?)?"?resourceClaimTemplateName\\?":\s*\\?"([-a-z0-9]+)\\?"'
)
_MARKS_IN_JSON = ("resourceClaimTemplateName", "draDriverClass")  # what a converted text has


class Conversion(Struct):
    """What became of one text. ``text`` is the given one where nothing changed."""

    text: str
    findings: list[Finding] = field(default_factory=list)
    pods: list[ConvertedPod] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)  # those that are new, and in the text
    undo: str = ""  # of JSON, what reverse() needs beside the text
    places: list[Listed] = field(default_factory=list)  # every place that names devices, in the order of the text
    argo_folders: dict[str, dict[str, str]] = field(default_factory=dict)  # of Applications: name -> files
    beside: dict[str, str] | None = None  # of a chart's values: files that they need beside them; None: as they are

    @property
    def unfinished(self) -> bool:
        """Whether something stays on limits or could not be read."""
        return any(finding.level is not Level.NOTE for finding in self.findings)


def convert(
    text: str,
    settings: Settings,
    there: Iterable[Existing] = (),
    *,
    can_undo: bool = True,
    file: str = "values.yaml",
    chart: str = "",
) -> Conversion:
    """Convert all pod specs of a text that can be converted whole, and say what is left and why.

    ``there``: templates that other files of the same place have, which are not written again. ``can_undo``: add what
    :func:`reverse` needs. ``file``: its name, for what is written beside it. ``chart``: whose values it has, where
    files beside it say that. The result was parsed again and says what
    it shall; where that fails, the pod spec stays.
    """
    bom, body = _split_bom(text)
    try:
        converter = Converter(body, settings, there, chart)
    except NotYaml as error:
        return Conversion(text, [_not_yaml(body, error)])
    pods = converter.pods()
    found = Conversion(text, converter.findings)
    try:
        after, templates, undo = converter.result(pods, can_undo=can_undo)
    except Unspliceable:
        pods = converter.each_alone(pods)
        try:
            after, templates, undo = converter.result(pods, can_undo=can_undo)
        except Unspliceable:
            message = "the last value runs to the end of the text, so nothing can be put after it"
            converter.find(Level.LEFT, pods[0], (), message, "end the last line with a line break")
            pods = []
    found.places = converter.places(pods)
    found.argo_folders = converter.argo_folders()
    if not pods:
        return found
    found.text, found.templates, found.undo = bom + after, templates, undo
    found.pods = list(converter.converted(pods))
    found.beside = converter.beside(pods, file) or None
    return found


class Surveyed(Struct):
    """What a conversion would do, without its text."""

    findings: list[Finding]
    moving: list[Moving] = field(default_factory=list)
    objects: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # subject -> group, kind, namespace

    def left(self) -> Iterator[tuple[Finding, tuple[str, str, str]]]:
        """Yield what stays on limits, with the object's group, kind and namespace."""
        for one in self.findings:
            if one.level is Level.LEFT:
                yield one, self.objects.get(one.subject, ("", "", ""))


def survey(text: str, settings: Settings) -> Surveyed:
    """Return what :func:`convert` would do. It is faster, because nothing is written and read again."""
    try:
        converter = Converter(_split_bom(text)[1], settings, ())
    except NotYaml as error:
        return Surveyed([_not_yaml(text, error)])
    pods = converter.pods()
    try:
        converter.places(pods)
    except Unspliceable:
        pods = converter.each_alone(pods)
        converter.places(pods)
    return Surveyed(converter.findings, converter.moving(pods), converter.named())


def reverse(text: str, undo: str = "") -> Conversion:
    """Return the text as it was before :func:`convert`; a finding where that cannot be.

    ``undo``: of JSON, what the conversion returned beside the text; after several conversions all of it.
    """
    bom, body = _split_bom(text)
    try:
        if not _is_json(body):
            return Conversion(bom + undone(body), beside={})
        if undo:
            return Conversion(bom + _undone_json(body, undo))
        if any(is_template_of(claim[2], claim[1] or "") for claim in _CLAIM_IN_JSON.finditer(body)):
            raise CannotUndo(
                0, "JSON with claims, and the file beside it in which --in-place keeps the old lines is gone"
            )
        return Conversion(text)
    except CannotUndo as error:
        hint = "restore the file from its backup or from version control"
        return Conversion(text, [Finding(Level.ERROR, error.line, "", error.message, hint)])


def _undone_json(body: str, undo: str) -> str:
    try:
        return undone_by(body, undo)
    except CannotUndo:
        if any(mark in body for mark in _MARKS_IN_JSON):
            raise
        return body  # it was undone already


def existing_templates(text: str) -> list[Existing]:
    """Return the ResourceClaimTemplates of a text; none where it is no YAML, which its own conversion says."""
    if KIND not in text:
        return []
    try:
        return [one for root in parsed(_split_bom(text)[1])[0] for one in templates_in(value(root))]
    except NotYaml:
        return []


def _is_json(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and parsed(text)[1]
    except NotYaml:
        return False


def _split_bom(text: str) -> tuple[str, str]:
    return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


def _not_yaml(text: str, error: NotYaml) -> Finding:
    if "{{" in text:
        return Finding(Level.ERROR, error.line, "", "a Helm template", HELM_HINT)
    if text.lstrip().startswith("{"):
        return Finding(Level.ERROR, error.line, "", f"no valid JSON: {error.message}", "write it as JSON says")
    hint = "indent with spaces, and quote values that contain : { } [ ] , & * #"
    return Finding(Level.ERROR, error.line, "", f"no valid YAML: {error.message}", hint)
