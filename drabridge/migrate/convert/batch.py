"""Convert several files: those that are deployed together share their templates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct, structs

from drabridge.migrate.convert.conversion import Conversion, convert, existing_templates, reverse
from drabridge.migrate.convert.left_over import Listed
from drabridge.migrate.convert.post_render import KUSTOMIZATION, joined
from drabridge.migrate.convert.releases import chart_by_keys
from drabridge.migrate.convert.settings import Finding, Level, Settings
from drabridge.migrate.convert.templates import TEMPLATES_FILE, Existing
from drabridge.migrate.convert.yaml_nodes import NotYaml, parse, value

_VALUES = re.compile(r"values", re.IGNORECASE)  # in the name of a file that Helm is given


class Source(Struct, frozen=True):
    """A file's name and its text, as it is, with its line breaks. ``undo``: of JSON, what is kept beside it.

    ``beside``: of a chart's values, the files that a conversion wrote beside it.
    """

    name: str
    text: str
    undo: str = ""
    beside: Mapping[str, str] = {}


class Outcome(Struct):
    """What became of one file."""

    source: Source
    conversion: Conversion

    @property
    def changed(self) -> bool:
        """Whether the text, or what must be beside it, is another one now."""
        return self.text_changed or self.beside != self.source.beside

    @property
    def text_changed(self) -> bool:
        """Whether the text is another one now."""
        return self.conversion.text != self.source.text

    @property
    def beside(self) -> Mapping[str, str]:
        """What must be beside the text, with the templates that earlier conversions of it wrote."""
        old, new = self.source.beside, self.conversion.beside
        if new is None:
            return old
        if KUSTOMIZATION in new or TEMPLATES_FILE not in new or TEMPLATES_FILE not in old:
            return new  # a patch is made of all the values each time
        return {TEMPLATES_FILE: joined(old[TEMPLATES_FILE], new[TEMPLATES_FILE])}

    @property
    def undo(self) -> str:
        """What must be kept beside the text to go back: of JSON alone, and of earlier conversions what still holds."""
        if not self.conversion.undo:
            return ""
        holds = self.source.undo and reverse(self.source.text, self.source.undo).text != self.source.text
        return (self.source.undo if holds else "") + self.conversion.undo

    def findings(self) -> list[Finding]:
        """Return the findings with the file's name."""
        return [structs.replace(one, file=self.source.name) for one in self.conversion.findings]

    def places(self) -> list[Listed]:
        """Return the places that name devices, with the file's name."""
        return [structs.replace(one, file=self.source.name) for one in self.conversion.places]


def convert_group(sources: Sequence[Source], settings: Settings, *, can_undo: bool = True) -> list[Outcome]:
    """Convert files that are deployed together; each template is written once, into the first file that needs it."""
    there = [one for source in sources for one in existing_templates(source.text)]
    charts = charts_beside(sources)
    outcomes: list[Outcome] = []
    for source in sources:
        path = PurePath(source.name)
        chart = charts.get(path, "")
        conversion = convert(source.text, settings, there, can_undo=can_undo, file=path.name, chart=chart)
        there += [Existing(one.namespace, one.name, one.spec()) for one in conversion.templates]
        outcomes.append(Outcome(source, conversion))
    return outcomes


def charts_beside(sources: Sequence[Source]) -> dict[PurePath, str]:
    """Return file -> chart for values that come on top of others: ``values-prod.yaml`` beside ``values.yaml``.

    Only one of them need have the keys that a chart is known by.
    """
    named = {PurePath(one.name): one.text for one in sources if _VALUES.search(PurePath(one.name).name)}
    known = {path: chart for path, text in named.items() if (chart := _chart_of(text))}
    found: dict[PurePath, str] = {}
    for path in named.keys() - known.keys():
        charts = {chart for other, chart in known.items() if _belong_together(path, other)}
        if len(charts) == 1:
            found[path] = charts.pop()
    return found


def _belong_together(one: PurePath, other: PurePath) -> bool:
    short, long = sorted((one.stem, other.stem), key=len)
    return one.parent == other.parent and re.match(rf"{re.escape(short)}[-_.]", long) is not None


def _chart_of(text: str) -> str:
    try:
        roots = parse(text)
    except NotYaml:
        return ""
    return chart_by_keys(value(roots[0])) if len(roots) == 1 else ""


def text_of(data: bytes) -> str | Finding:
    """Return a file's text, or the finding that it is none."""
    if b"\0" in data:
        return Finding(Level.ERROR, 0, "", "no text: it has zero bytes", "name files with manifests only")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Finding(Level.ERROR, line, "", "no UTF-8 text", "save it as UTF-8, which Kubernetes asks for")
