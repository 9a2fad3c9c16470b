"""Judge each place that names devices: converted, left on limits, or irrelevant for a conversion."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from enum import Enum

from msgspec import Struct, structs

from drabridge.migrate.convert.charts import releases
from drabridge.migrate.convert.kinds import COUNT_LIMITS, KUBEVIRT_VMS, NO_POD_TEMPLATE, OTHERWISE, Manifest
from drabridge.migrate.convert.mentions import Mention, Place
from drabridge.migrate.convert.pods import PART
from drabridge.migrate.convert.settings import Finding, Level
from drabridge.yaml_reader import Path

# Below these keys a value that is no number may become one later: a placeholder of a shell or a template.
_COUNTS = frozenset({"limits", "requests", "hard", "default", "defaultRequest", "max", "min", "capability"})
_HELM = "helm template ... | drabridge migrate convert --post-renderer"
HELM_HINT = f"templates of a chart are no YAML; convert what Helm makes of them: {_HELM}"
_VALUES_HINT = (
    "values of a chart stay as they are, for only its templates know where claims could go; "
    f"convert what Helm makes of them: {_HELM}"
)
_ASKS = re.compile(r"\blimits\b")


class State(Enum):
    """What became of a place."""

    CONVERTED = "converted"
    LEFT = "left on limits"
    IRRELEVANT = "irrelevant"


class Listed(Struct, frozen=True):
    """One place that names devices, and what became of it. ``line`` counts from 1."""

    line: int
    state: State
    name: str
    path: str
    file: str = ""

    def __str__(self) -> str:
        where = ":".join(part for part in (self.file, str(self.line)) if part)
        return f"{where}: {self.state.value}: {self.name} at {self.path or 'what the chart asks for by itself'}"


class Judgement(Struct, frozen=True):
    """The judgement of a place that stays unchanged."""

    level: Level
    message: str
    hint: str = ""
    asks: bool = False  # it asks for devices, although it is only a note

    @property
    def state(self) -> State:
        """The state that follows: whether something stays on limits here."""
        return State.LEFT if self.asks or self.level is Level.LEFT else State.IRRELEVANT


class Repeated:
    """Findings of one text. A note for several lines of an object is reported once, with the number of lines."""

    def __init__(self) -> None:
        self._found: dict[tuple[Path, Finding], list[int]] = {}

    def add(self, document: Path, finding: Finding) -> None:
        """Take a finding of a document."""
        key = structs.replace(finding, line=0) if finding.level is Level.NOTE else finding
        self._found.setdefault((document, key), []).append(finding.line)

    def findings(self) -> Iterator[Finding]:
        """Yield each finding once, at its first line."""
        for (_, finding), lines in self._found.items():
            others = len(set(lines)) - 1
            more = f" (and in {others} more line{'s' if others > 1 else ''})" if others else ""
            yield structs.replace(finding, line=lines[0], message=finding.message + more)


_STAYS = {
    Place.LABEL: ("the node label {} is still asked for", "see that the nodes keep it"),
    Place.TAINT: ("the taint {} is still spoken of", "taints are on nodes, so it may stay"),
    Place.ANNOTATION: ("the annotation {} stays", "what reads it looks at limits, not at claims: see what it is for"),
    Place.METADATA: ("the label {} stays", "it asks for no device"),
    Place.ENVIRONMENT: (
        "{} names devices past limits and claims",
        "take it out, or see that no other pod may hold these devices",
    ),
}


def judge(mention: Mention, manifest: Manifest, devices: Container[str], *, in_pod: bool) -> Judgement:
    """Return the judgement of a place that no conversion changed. ``in_pod``: it is in a pod spec."""
    hint = _hint(mention, manifest)
    if mention.place in _STAYS:
        message, more = _STAYS[mention.place]
        return Judgement(Level.NOTE, message.format(mention.name), more)
    if mention.place is Place.COUNT:
        return _judge_count(mention, manifest, devices, hint, in_pod=in_pod)
    if mention.place is Place.OWN_COUNT:
        message = f"{mention.name}: {mention.said} seems to count devices"
        return Judgement(Level.NOTE, message, "see that it agrees with the limits or claims beside it")
    known = mention.name in devices
    if manifest.kind in KUBEVIRT_VMS and mention.path[-1:] == ("deviceName",) and not known:
        message = f"deviceName: {mention.name} stays with its device plugin"
        return Judgement(Level.NOTE, message, f"to convert it, add --class {mention.name}=CLASS", asks=True)
    if mention.path and mention.path[-1] == "podSpecPatch" and known:
        return Judgement(Level.LEFT, f"it speaks of {mention.name}", hint)
    if mention.place is Place.TEXT:
        asks = known and _ASKS.search(mention.said) is not None
        message = f"{_key(mention)} is a text that speaks of {mention.name}"
        if asks:
            hint = "texts are not converted: take its manifests into files of their own, and convert those"
            return Judgement(Level.NOTE, message, hint, asks=True)
        return Judgement(Level.NOTE, message, "texts are not converted")
    if known and not manifest.kind:
        return Judgement(
            Level.LEFT, f"{_key(mention)}: {mention.name} names a device, outside any Kubernetes object", hint
        )
    more = NO_POD_TEMPLATE.get(manifest.kind, "see whether what reads it looks at limits")
    more = hint if any(releases(manifest)) else more
    return Judgement(Level.NOTE, f"{_key(mention)}: {mention.name} names a device", more)


def _hint(mention: Mention, manifest: Manifest) -> str:
    if not manifest.kind:
        return _VALUES_HINT
    inside = mention.path[len(manifest.path) :]
    release = next((one for one in releases(manifest) if inside[: len(one.values)] == one.values), None)
    return release.hint if release is not None else NO_POD_TEMPLATE.get(manifest.kind, OTHERWISE)


def _judge_count(
    mention: Mention, manifest: Manifest, devices: Container[str], hint: str, *, in_pod: bool
) -> Judgement:
    key, said, parent = str(mention.path[-1]), mention.said, str(mention.path[-2]) if len(mention.path) > 1 else ""
    if said == "0":
        return Judgement(Level.NOTE, f"{key}: 0 asks for no device")
    if not (said.isascii() and said[:1].isdigit()) and parent not in _COUNTS:
        return Judgement(Level.NOTE, f"{key} is a key, and no number of devices", "see what it is for")
    if PART.fullmatch(mention.name):
        return Judgement(
            Level.NOTE, f"{mention.name} stays: nobody would enforce a part of a device for a claim", asks=True
        )
    if mention.name not in devices:
        message = f"{mention.name} stays on limits"
        return Judgement(Level.NOTE, message, f"to convert it, add --class {mention.name}=CLASS", asks=True)
    if manifest.kind in COUNT_LIMITS:
        return Judgement(Level.NOTE, f"{key}: {said} counts limits", hint)
    if not manifest.kind:
        place = ".".join(map(str, mention.path[1:-1]))
        return Judgement(Level.LEFT, f"{place} has {key}: {said}, outside any Kubernetes object", hint)
    where = "where its pod does not take it" if in_pod else "in no pod template"
    return Judgement(Level.LEFT, f"{key}: {said} is {where}", hint)


def _key(mention: Mention) -> str:
    words = [part for part in mention.path if isinstance(part, str)]
    return words[-1] if words else "it"
