"""Find the values of charts: in an object of Flux, Argo CD or k3s, or alone; and the pods of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from drabridge.migrate.convert.charts import CHARTS, GPU, Chart, Pod, chart_of
from drabridge.migrate.convert.kinds import Form, Manifest, PodSpec, Rendered, at, matching, text_at
from drabridge.migrate.convert.mentions import is_extended
from drabridge.migrate.convert.yaml_nodes import Leaf, Value
from drabridge.yaml_reader import Path

FLUX = "HelmRelease"
ARGO = "Application"
K3S = "HelmChart"
_IN_VALUES = ("spec", "values")  # of a HelmRelease
_IN_TEXT = ("spec", "valuesContent")  # of a HelmChart of k3s
_SOURCES = ("spec.source", "spec.sources.*", "spec.template.spec.source", "spec.template.spec.sources.*")
_RENDERED = "convert what Helm makes of the chart: helm template ... | drabridge migrate convert --post-renderer"
_UNKNOWN = (
    "this chart is not known: its templates would need resources.claims in the container and resourceClaims in the "
    f"pod, so see whether its values take these; else {_RENDERED}"
)
_WHERE = {
    FLUX: "Flux takes a patch in spec.postRenderers",
    ARGO: "Argo CD takes a patch in a kustomization with helmCharts",
    K3S: "k3s and RKE2 patch nothing that Helm makes",
}
# kind -> keys with values that come together with those that are read
_BESIDE = {
    FLUX: ("valuesFrom",),
    ARGO: ("valueFiles", "values", "valuesObject", "parameters", "fileParameters"),
    K3S: ("set", "valuesSecrets"),
}
_NAME = "{name}"  # in a selector: of the part
_KEPT, _NONE = "cpu", Leaf("0", plain=True)  # the chart may put more into a section, so no patch takes out all of it
_NOT_SET = frozenset({"", "false", "null", "~"})


class Release(Struct, frozen=True):
    """Values of a chart in an object, or alone (an empty path): which chart, where, and in what kind of object.

    ``version``: of the chart, "" where nothing says it. ``source``: the path of Argo CD's source. ``partial``: what the
    chart asks for by itself is not meant: these values come on top of others.
    """

    chart: str
    values: Path
    kind: str = ""
    version: str = ""
    source: Path = ()
    partial: bool = False

    @property
    def row(self) -> Chart | None:
        """Return what is known of the chart."""
        return chart_of(self.chart)

    @property
    def hint(self) -> str:
        """Return what to do where limits are left in the values."""
        found = self.row
        if found is None:
            said = _UNKNOWN
        else:
            said = f"chart {self.chart}: {found.hint or f'these are not the keys that become claims; else {_RENDERED}'}"
        return f"{said}; {_WHERE[self.kind]}" if self.kind in _WHERE else said


def releases(manifest: Manifest) -> Iterator[Release]:
    """Yield the values of charts in an object of Flux, Argo CD or k3s."""
    body = manifest.body
    if manifest.kind == FLUX:
        values, spec = at(body, _IN_VALUES), at(body, ("spec", "chart", "spec"))
        named, other = text_at(spec, "chart"), text_at(at(body, ("spec", "chartRef")), "name")
        chart = _chart(named, other, values)
        found = Release(chart, _IN_VALUES, FLUX, text_at(spec, "version"))
        yield from _with_subcharts(found, values)
    elif manifest.kind in (ARGO, "ApplicationSet"):
        for pattern in _SOURCES:
            for path in matching(body, tuple(pattern.split("."))):
                source, values = at(body, path), None
                for key in ("values", "valuesObject"):  # the last one counts, where it has something
                    found_there = at(body, (*path, "helm", key))
                    if isinstance(found_there, dict) and (found_there or values is None):
                        place, values = (*path, "helm", key), found_there
                if values is not None:
                    chart = _chart(text_at(source, "chart"), text_at(source, "path"), values)
                    found = Release(chart, place, ARGO, text_at(source, "targetRevision"), path)
                    yield from _with_subcharts(found, values)

    elif manifest.kind in (K3S, "HelmChartConfig"):
        values, spec = at(body, _IN_TEXT), at(body, ("spec",))
        chart = _chart(text_at(spec, "chart"), manifest.name, values)
        if isinstance(values, dict):
            yield from _with_subcharts(Release(chart, _IN_TEXT, K3S, text_at(spec, "version")), values)


def values_alone(document: Value, chart: str = "") -> Iterator[Release]:
    """Yield the values of charts that are known by their keys; ``chart``: whose other values are, if that is known."""
    found = chart_by_keys(document)
    if found or (chart and isinstance(document, dict)):
        yield Release(found or chart, (), partial=not found)
    yield from _subcharts(Release("", ()), document)


def _with_subcharts(release: Release, values: Value | None) -> Iterator[Release]:
    yield release
    yield from _subcharts(release, values or {})


def _subcharts(release: Release, values: Value) -> Iterator[Release]:
    """Yield the values of charts that this one brings with it, below their names."""
    for key, inner in values.items() if isinstance(values, dict) else ():
        chart = chart_of(key)
        if chart is not None and key != release.chart and chart.sign and any(_matching(inner, chart.sign)):
            yield Release(key, (*release.values, key), release.kind, source=release.source)


def pods_in(release: Release, document: Value, start: Path = ()) -> Iterator[PodSpec]:
    """Yield what a chart makes pods of. ``document``: the object of the release; ``start``: its path."""
    chart = release.row
    if chart is None:
        return
    values = at(document, release.values) or {}
    root = (*start, *release.values)
    old = _too_old(release, chart)
    for pod in chart.pods:
        for path in _matching(values, pod.at):
            part = at(values, path)
            if not isinstance(part, dict):
                continue
            nameless = "it has no name to aim a patch at" if _NAME in pod.selector and not text_at(part, "name") else ""
            refused = old or nameless or _in_the_way(pod.unless, part, values)
            yield _pod(pod, part, values, (*root, *path), release, refused)
    if chart.gpu and isinstance(at(values, gpu := _keys(chart.gpu)), dict):
        yield PodSpec(
            (*root, *gpu), form=Form.OLLAMA, refused=_in_the_way(chart.unless, {}, values) or _own_limits(values)
        )


def notes_on(release: Release, document: Value) -> Iterator[str]:
    """Yield what to know where values of a chart were converted. ``document``: the object of the release."""
    row = release.row
    if row is not None and row.note:
        yield row.note
    if row is not None and row.since and not release.version:
        since = ".".join(map(str, row.since))
        yield f"its keys for claims need {release.chart} {since} or later: see which version it is"
    if not release.kind:
        yield "values of other files, or of --set, come on top: see that they bring no limits of the same devices"
    where = (*release.source, "helm") if release.kind == ARGO else ("spec",)
    for key in _BESIDE.get(release.kind, ()):
        if at(document, (*where, key)) and (*where, key) != release.values[: len(where) + 1]:
            yield f"{key} is not read: see that it brings no limits of the same devices"


def _pod(pod: Pod, part: Value, values: Value, path: Path, release: Release, refused: str) -> PodSpec:
    if pod.claims is None:
        name = text_at(values, "nameOverride") or release.chart
        rendered = _rendered(replace(pod, default=0) if release.partial else pod, part, path, name)
        return PodSpec(path, rendered=rendered, refused=refused)
    containers = tuple((place, role) for pattern, role in pod.containers for place in _matching(part, pattern))
    return PodSpec(path, form=Form.VALUES, containers=containers, claims=_keys(pod.claims), refused=refused)


def _rendered(pod: Pod, part: Value, path: Path, name: str) -> Rendered:
    """Return the pod that templates make of a part of the values."""
    sections: dict[str, dict[str, Value]] = {"limits": {}, "requests": {}}
    asks: list[Path] = []
    resources = at(part, _keys(pod.resources))
    number = at(part, _keys(pod.count)) if pod.count else None
    if isinstance(resources, dict):
        for section, found in sections.items():
            place = (*_keys(pod.resources), section)
            given = at(part, place)
            found |= given if isinstance(given, dict) else {}
            asks += ((*path, *place, resource) for resource in found)
    elif isinstance(number, Leaf):
        asks.append((*path, *_keys(pod.count)))
        said: Value = Leaf(number.text, plain=not pod.quoted)
        resource = text_at(part, pod.count_of) or GPU
        sections["limits"][resource] = said
        if pod.requests:
            sections["requests"][resource] = said
    if pod.default and number is None:
        sections["limits"].setdefault(GPU, Leaf(str(pod.default), plain=True))
    if pod.adds and _is_set(part, pod.adds):
        sections["limits"].setdefault(GPU, Leaf("1", plain=True))
    said_there: dict[str, Value] = {key: {**child, _KEPT: _NONE} for key, child in sections.items() if child}
    if (claims := at(resources, ("claims",))) is not None:
        said_there["claims"] = claims
    container: Value = {"name": "main", "resources": said_there}
    selector = pod.selector.format(chart=name, name=text_at(part, "name"))
    return Rendered({"containers": [container]}, pod.kind, selector, tuple(asks))


def _too_old(release: Release, chart: Chart) -> str:
    """Say that a chart of this version takes no claims yet; "" where it does, or nothing says its version."""
    found = re.match(r"v?(\d+)(?:\.(\d+))?", release.version)
    if not chart.since or found is None or tuple(int(part or 99) for part in found.groups()) >= chart.since:
        return ""
    since = ".".join(map(str, chart.since))
    return f"{release.chart} {release.version} has no key for resourceClaims: {since} is the first that has one"


def _in_the_way(unless: Iterable[tuple[str, str]], part: Value, values: Value) -> str:
    found = (f"{key}: {why}" for key, why in unless if _is_set(part, key) or _is_set(values, key))
    return next(found, "")


def _own_limits(values: Value) -> str:
    """Say that values have limits of devices beside the keys that make a claim; "" where they have not."""
    for section in ("limits", "requests"):
        found = at(values, ("resources", section))
        for name in found if isinstance(found, dict) else ():
            if is_extended(name):
                return f"resources.{section} has {name} as well, which the chart keeps beside the claim"
    return ""


def _is_set(values: Value, pattern: str) -> bool:
    """Whether a key has a value that is more than nothing, or false."""
    for path in _matching(values, pattern):
        found = at(values, path)
        if (found.text not in _NOT_SET) if isinstance(found, Leaf) else bool(found):
            return True
    return False


def _chart(named: str, other: str, values: Value | None) -> str:
    """Return the chart's name: as it is named, else what the values' keys say, else the name of where it is."""
    if not named and values is not None and (found := _by_sign(values)) is not None:
        return found.names[0]
    return (named or other).rstrip("/").rpartition("/")[2]


def chart_by_keys(document: Value) -> str:
    """Return the chart that is known by keys that only its values have; "" for other documents."""
    found = _by_sign(document)
    return found.names[0] if found is not None else ""


def _by_sign(values: Value) -> Chart | None:
    return next((one for one in CHARTS if one.sign and any(_matching(values, one.sign))), None)


def _matching(values: Value, pattern: str) -> Iterator[Path]:
    return matching(values, _keys(pattern))


def _keys(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split(".")) if pattern else ()
