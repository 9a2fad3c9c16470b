"""Convert manifests from limits to claims: texts in, texts and findings out, no files and no cluster."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct, field, structs

from drabridge.migrate.convert import post_render
from drabridge.migrate.convert.charts import (
    ARGO,
    FLUX,
    Release,
    chart_by_keys,
    notes_on,
    pods_in,
    releases,
    values_alone,
)
from drabridge.migrate.convert.kinds import Manifest, PodSpec, copies, manifests, pod_specs, remarks_on
from drabridge.migrate.convert.left_over import HELM_HINT, Listed, Repeated, State, judge
from drabridge.migrate.convert.mentions import Mention, Place, finder, mentions
from drabridge.migrate.convert.pods import ConvertedPod, PodPlan, RefusedError, plan_pod
from drabridge.migrate.convert.post_render import KUSTOMIZATION, joined
from drabridge.migrate.convert.settings import Finding, Level, Settings
from drabridge.migrate.convert.splice import Edit, Operation, UnspliceableError, applied, edits, in_order, spliced
from drabridge.migrate.convert.templates import (
    KIND,
    TEMPLATES_FILE,
    Existing,
    Template,
    foreign,
    is_template_of,
    missing,
    placed,
    takes_templates,
    with_templates_said,
)
from drabridge.migrate.convert.text_values import parse, parsed
from drabridge.migrate.convert.undo import (
    CannotUndoError,
    block_alone,
    undone,
    undone_by,
    with_block,
    with_templates,
)
from drabridge.migrate.convert.yaml_nodes import NotYamlError, Value, at, parse_json, same, starts, value
from drabridge.yaml_reader import MappingNode, Path, SequenceNode, node_at, owner_of

_NO_TEMPLATES: Existing = {}
_NO_OBJECT = Manifest((), "", "", "", {})
_ALONE = Manifest((0,), "", "", "", {})  # of values of a chart, alone in a text


class _Pod(Struct):
    """The plan of one pod spec."""

    manifest: Manifest
    path: Path  # it begins with the number of the document, as all paths here
    plan: PodPlan
    asks: tuple[Path, ...] = ()  # places that a patch removes from the chart's output
    patch: post_render.Patch | None = None

    def operations(self) -> list[Operation]:
        """Return the operations with paths from the document's number on."""
        if self.patch is not None:
            return []
        return [structs.replace(one, path=(*self.path, *one.path)) for one in self.plan.operations]


class Converter:
    """The conversion of one text that is YAML or JSON."""

    def __init__(self, text: str, settings: Settings, there: Existing, chart: str = "") -> None:
        """``chart``: the chart whose values the text has, if files beside it say that."""
        self._roots, self._is_json = parsed(text)
        self._root = SequenceNode(0, len(text), flow=False, items=self._roots)
        self._text = text
        self._breaks = [found.start() for found in re.finditer("\n", text)]
        self._settings = settings
        self._documents: list[Value] = [value(root) for root in self._roots]
        self._known = dict(there)
        for document in self._documents:
            self._known |= templates_in(document)
        self._taken = dict(self._known)  # the same, and of those to be written
        self.findings: list[Finding] = []
        self._pattern = finder(settings.devices)
        listed = (one for number, said in enumerate(self._documents) for one in manifests(said, (number,)))
        self._objects: dict[Path, Manifest] = {one.path: one for one in listed}
        self._pod_paths: dict[Path, None] = {}
        self._refused: set[Path] = set()
        self._reached: dict[Path, frozenset[int]] = {}
        self._said: list[tuple[Path, str]] = []  # path and message of each finding
        self._patched: set[Path] = set()  # places that a patch removes already
        self.of_argo: list[post_render.Patched] = []  # pods that need a patch of a chart that Argo CD installs
        self._asking: list[Path] = []  # parts of charts' values that ask for devices
        self._chart = chart  # of values in a file of their own

    def pods(self) -> list[_Pod]:
        """Return the convertible pod specs; the others become findings."""
        found: list[_Pod] = []
        for manifest in self._objects.values():
            found += self._of_manifest(manifest)
        if len(self._documents) == 1 and not self._objects:
            for alone in values_alone(self._documents[0], self._chart):
                found += self._of_release(_ALONE, self._documents[0], alone)
        if found and not self._is_json and self._text.lstrip().startswith("{"):
            message = "kubectl takes for JSON what begins with {, and this is none"
            self.find(Level.LEFT, found[0], (), message, "write it as JSON, or put a line --- above it")
            return []
        if found and self._is_json and not takes_templates(self._roots):
            hint = "write List instead, with apiVersion v1"
            self.find(Level.LEFT, found[0], (), "a list of one kind, in which no template can stand", hint)
            return []
        return found

    def converted(self, pods: Sequence[_Pod]) -> Iterator[ConvertedPod]:
        """Yield the conversion of each pod spec, independent of the text. Its operations can be done in their order."""
        patched: set[Path] = set()
        for pod in pods:
            place = pod.manifest.path
            operations = pod.operations()
            if pod.patch is not None and place not in patched:
                patched.add(place)
                operations += _patching([one for one in pods if one.manifest.path == place])
            within = in_order([structs.replace(one, path=one.path[len(place) :]) for one in operations])
            times = copies(self._documents, pod.path)
            yield ConvertedPod(self._line(place), pod.manifest, tuple(within), tuple(pod.plan.templates), times)

    def beside(self, pods: Sequence[_Pod], file: str) -> dict[str, str]:
        """Return the files that values of a chart need beside them: name -> text."""
        alone = [pod for pod in pods if not pod.manifest.kind]
        templates = missing([template for pod in alone for template in pod.plan.templates])
        patches = [pod.patch for pod in alone if pod.patch is not None]
        return post_render.folder(file, self._chart, patches, templates)

    def named(self) -> dict[str, Manifest]:
        """Return the objects, by the name that findings give them."""
        return {str(one): one for one in self._objects.values()}

    def result(self, pods: Sequence[_Pod], *, can_undo: bool, write: bool) -> tuple[str, list[Template], str]:
        """Return the converted text, the new templates in it, and for JSON the text that can undo it.

        Raises UnspliceableError if the text cannot be changed, or if the result would not parse to the wanted document.
        """
        templates = missing([one for pod in pods if pod.manifest.kind for one in pod.plan.templates], self._known)
        changes = self._edits(pods)
        if not write or not (changes or templates):  # nothing to do, or all changes are in files beside it
            return self._text, [], ""
        changed, undo = self._intended(pods), ""
        if self._is_json:
            edited = [*changes, *placed(self._text, self._roots, templates)]
            after, wanted = spliced(self._text, edited), with_templates_said(changed, self._roots, templates)
            undo = block_alone(self._text, after, edited)
        else:
            after, wanted = spliced(self._text, changes), [*changed, *(one.document() for one in templates)]
            after = with_block(self._text, after, changes, templates) if can_undo else with_templates(after, templates)
        if not self._says(after, wanted):
            if self._says(spliced(self._text, changes), changed):
                message = "the last value runs to the end of the text, so nothing can be put after it"
                raise UnspliceableError(message, hint="end the last line with a line break")
            raise UnspliceableError("an alias shares what must change with something that must not")
        return after, templates, undo

    def each_alone(self, pods: Sequence[_Pod], *, can_undo: bool, write: bool) -> list[_Pod]:
        """Try each pod spec alone; return those whose text can be changed. The others become findings."""
        kept: list[_Pod] = []
        for pod in pods:
            try:
                self.result([*kept, pod], can_undo=can_undo, write=write)
                kept.append(pod)
            except UnspliceableError as error:
                self.find(Level.LEFT, pod, (), str(error), error.hint)
        return kept

    def find(self, level: Level, pod: _Pod, path: Path, message: str, hint: str) -> None:
        """Record a finding about one pod spec; ``path`` begins at it. A pod spec with Level.LEFT is not converted."""
        if level is Level.LEFT:
            self._refused.add(pod.path)
        self._find(level, pod.manifest, (*pod.path, *path), message, hint)

    # -- what is there

    def _of_manifest(self, manifest: Manifest) -> Iterator[_Pod]:
        found = list(self._of_specs(manifest, pod_specs(manifest, self._settings.paths)))
        for release in releases(manifest):
            found += self._of_release(manifest, manifest.body, release)
        for message in remarks_on(manifest) if found else ():
            self._find(Level.NOTE, manifest, manifest.path, message, "")
        yield from found

    def _of_release(self, manifest: Manifest, body: Value, release: Release) -> Iterator[_Pod]:
        specs = list(pods_in(release, body, manifest.path))
        found = list(self._of_specs(manifest, specs, release))
        for message in notes_on(release, body) if found else ():
            self._find(Level.NOTE, manifest, manifest.path, message, "")
        yield from found

    def _of_specs(self, manifest: Manifest, specs: list[PodSpec], release: Release | None = None) -> Iterator[_Pod]:
        self._pod_paths |= dict.fromkeys(spec.path for spec in specs)
        for spec in specs:
            rendered = spec.rendered
            try:
                body = rendered.body if rendered else at(self._documents, spec.path) or {}
                plan = plan_pod(body, manifest.pods_namespace, self._settings, spec)
            except RefusedError as refused:
                self._asking += [spec.path] if release is not None else []
                path = spec.path if rendered else (*spec.path, *refused.path)
                self._find(Level.LEFT, manifest, path, refused.message, refused.hint)
                self._refused.add(spec.path)
                continue
            if plan is None:
                continue
            pod = _Pod(manifest, spec.path, plan)
            if release is not None:
                self._asking.append(spec.path)
                self._chart = release.chart
                if rendered is not None:
                    pod.asks, pod.patch = rendered.asks, post_render.patch_of(rendered, plan.operations)
                if (stays := self._stays(pod, spec, release)) is not None:
                    message, hint = stays
                    if message:
                        self.find(Level.LEFT, pod, (), message, hint)
                    continue
            if (clash := foreign(plan.templates, self._taken)) is not None:
                message = f"there is a ResourceClaimTemplate {clash.name} already, and it says something else"
                self.find(Level.LEFT, pod, (), message, "rename or remove it")
                continue
            self._taken |= {one.key: one.document()["spec"] for one in plan.templates}
            for remark in plan.remarks:
                self.find(Level.NOTE, pod, remark.path, remark.message, remark.hint)
            if spec.by_shape:
                message = "found by its shape: this kind is not in the table of pod templates"
                self.find(Level.NOTE, pod, (), message, "see that its CRD has resourceClaims")
            yield pod

    def _stays(self, pod: _Pod, spec: PodSpec, release: Release) -> tuple[str, str] | None:
        """Return why a pod of a chart stays, and what to do (both "" if its patch is there); None: it does not stay."""
        if spec.refused:
            return spec.refused, release.hint
        if pod.patch is None or not release.kind:
            return None
        if release.kind == ARGO:
            of = pod.manifest, release, pod.patch, pod.plan.templates
            self.of_argo.append(post_render.Patched(self._text, self._root, *of))
        if release.kind != FLUX:
            tool = "Argo CD" if release.kind == ARGO else "k3s"
            message = f"its values take no claims, and {tool} patches nothing that Helm makes"
            return message, post_render.hint(pod.manifest, release)
        if post_render.is_there(pod.manifest.body, pod.patch):
            self._patched.update(pod.asks)
            return "", ""
        if post_render.other_claims(pod.manifest.body):
            return "its postRenderers speak of resourceClaims already", "add the claim there by hand"
        return None

    # -- what is left

    def places(self, pods: Sequence[_Pod]) -> list[Listed]:
        """Return every place that names devices, with its outcome; unchanged places become findings."""
        gone = sorted((edit.start, edit.end) for edit in self._edits(pods) if edit.end > edit.start)
        patched = self._patched.union(*(pod.asks for pod in pods))
        listed: list[Listed] = []
        above: set[Path] = set()  # paths with a mention below them
        said = Repeated()
        for number, root in enumerate(self._roots):
            for mention in mentions(root, (number,), self._pattern):
                line = self._line_of(mention.position)
                state = State.CONVERTED
                before = bisect_right(gone, (mention.position, len(self._text))) - 1
                goes = before >= 0 and mention.position < gone[before][1]
                if mention.path not in patched and not goes:
                    state = self._judged(mention, line, said)
                listed.append(Listed(line, state, mention.name, _shown(mention.path)))
                above |= {mention.path[:length] for length in range(len(mention.path))}
        self.findings += said.findings()
        for path in self._asking:
            if path not in above:  # its keys ask for devices without naming them
                state = State.LEFT if path in self._refused else State.CONVERTED
                listed.append(Listed(self._line(path), state, "devices", _shown(path)))
        return sorted(listed, key=lambda one: one.line)

    def _judged(self, mention: Mention, line: int, said: Repeated) -> State:
        place = _start_in(self._objects, mention.path)
        manifest = _NO_OBJECT if place is None else self._objects[place]
        pod = self._pod_of(mention)
        if pod in self._refused and mention.place is Place.COUNT and mention.name in self._settings.devices:
            return State.LEFT  # the finding about the pod says why
        judged = judge(mention, manifest, self._settings.devices, in_pod=pod is not None)
        known = (message for path, message in self._said if _below(mention.path, path))
        if not any(mention.name in message for message in known):
            finding = Finding(judged.level, line, str(manifest), judged.message, judged.hint)
            said.add(mention.path[:1], finding)
        return judged.state

    def _pod_of(self, mention: Mention) -> Path | None:
        """Return the path of the pod spec that contains a mention, itself or by an alias."""
        if (own := _start_in(self._pod_paths, mention.path)) is not None:
            return own
        for path in self._pod_paths:
            if path[0] == mention.path[0]:
                if path not in self._reached:
                    node = node_at(self._root, path)
                    self._reached[path] = frozenset() if node is None else starts(node)
                if mention.position in self._reached[path]:
                    return path
        return None

    def _line_of(self, position: int) -> int:
        return bisect_left(self._breaks, position) + 1

    def _find(self, level: Level, manifest: Manifest, path: Path, message: str, hint: str) -> None:
        finding = Finding(level, self._line(path), str(manifest), message, hint)
        self._said.append((path, message))
        if finding not in self.findings:
            self.findings.append(finding)

    def _line(self, path: Path) -> int:
        """Return the line of a key or item, or of its nearest existing parent."""
        while path:
            if (owned := owner_of(self._root, path)) is not None:
                owner, place = owned
                start = owner.entries[place][0].start if isinstance(owner, MappingNode) else owner.items[place].start
                return self._line_of(start)
            path = path[:-1]
        return 1

    # -- what changes

    def _edits(self, pods: Sequence[_Pod]) -> list[Edit]:
        return edits(self._text, self._root, _operations(pods), is_json=self._is_json)

    def _intended(self, pods: Sequence[_Pod]) -> list[Value]:
        found = applied(self._documents, _operations(pods))
        assert isinstance(found, list)
        return found

    def _says(self, text: str, documents: Sequence[Value]) -> bool:
        try:
            found = [value(root) for root in (parse_json if self._is_json else parse)(text)]
        except NotYamlError:
            return False
        return len(found) == len(documents) and all(map(same, found, documents))


def _operations(pods: Sequence[_Pod]) -> list[Operation]:
    return [*(one for pod in pods for one in pod.operations()), *_patching(pods)]


def _patching(pods: Sequence[_Pod]) -> list[Operation]:
    """Return the operations that add the patches to their HelmReleases."""
    patches: dict[Path, list[post_render.Patch]] = {}
    bodies: dict[Path, Value] = {}
    for pod in pods:
        if pod.patch is not None and pod.manifest.kind == FLUX:
            patches.setdefault(pod.manifest.path, []).append(pod.patch)
            bodies[pod.manifest.path] = pod.manifest.body
    found = ((path, post_render.in_release(bodies[path], some)) for path, some in patches.items())
    return [structs.replace(one, path=(*path, *one.path)) for path, one in found]


def templates_in(document: Value) -> Existing:
    """Return the ResourceClaimTemplates of a document."""
    found = ((one, one.body.get("spec")) for one in manifests(document) if one.kind == KIND)
    return {(one.namespace, one.name): spec for one, spec in found if spec is not None}


def _below(path: Path, start: Path) -> bool:
    return path[: len(start)] == start


def _start_in(known: Container[Path], path: Path) -> Path | None:
    """Return the first known path above a path, or the path itself."""
    return next((path[:length] for length in range(len(path) + 1) if path[:length] in known), None)


def _shown(path: Path) -> str:
    """Return a path as a person reads it, from its document."""
    return ".".join(map(str, path[1:]))


_BOM = "\ufeff"
# A claim as a conversion writes it, within a podSpecPatch as well: {"name": "gpu", ... "nvidia-gpu-1"}.
_CLAIM_IN_JSON = re.compile(
    r'(?:"name\\?":\s*\\?"([-a-z0-9]+)\\?",\s*\\?)?"?resourceClaimTemplateName\\?":\s*\\?"([-a-z0-9]+)\\?"'
)
_MARKS_IN_JSON = ("resourceClaimTemplateName", "draDriverClass")  # what a converted text has


# --- one text -------------------------------------------------------------------------------------------------------


class Conversion(Struct):
    """The result for one text. ``text`` is the given one if nothing changed."""

    text: str
    findings: list[Finding] = field(default_factory=list)
    pods: list[ConvertedPod] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)  # those that are new, and in the text
    undo: str = ""  # of JSON, what reverse() needs beside the text
    places: list[Listed] = field(default_factory=list)  # every place that names devices, in the order of the text
    argo_folders: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # of Argo CD: (release, files)
    beside: dict[str, str] | None = None  # for a chart's values: files that they need beside them; None: unchanged
    manifests: dict[str, Manifest] = field(default_factory=dict)  # name in findings -> object

    @property
    def unfinished(self) -> bool:
        """Whether something stays on limits or could not be read."""
        return any(finding.level is not Level.NOTE for finding in self.findings)


def convert(
    text: str,
    settings: Settings,
    there: Existing = _NO_TEMPLATES,
    *,
    can_undo: bool = True,
    file: str = "values.yaml",
    chart: str = "",
    write: bool = True,
) -> Conversion:
    """Convert the pod specs of a text that can be converted as a whole; findings say what is left, and why.

    ``there``: templates in other files that are deployed together; they are not written again. ``can_undo``: add what
    :func:`reverse` needs. ``file``: the text's name, for files beside it. ``chart``: the chart whose values it has,
    if files beside it say that. ``write``: change the text, too. The changed text is parsed again and compared with the
    wanted document; if they differ, the pod spec stays.
    """
    bom, body = _split_bom(text)
    try:
        converter = Converter(body, settings, there, chart)
    except NotYamlError as error:
        return Conversion(text, [_not_yaml(body, error)])
    pods = converter.pods()
    found = Conversion(text, converter.findings, manifests=converter.named())
    try:
        after, templates, undo = converter.result(pods, can_undo=can_undo, write=write)
    except UnspliceableError:
        pods = converter.each_alone(pods, can_undo=can_undo, write=write)
        after, templates, undo = converter.result(pods, can_undo=can_undo, write=write)
    found.places = converter.places(pods)
    found.argo_folders = post_render.folders(converter.of_argo)
    if not pods:
        return found
    found.text, found.templates, found.undo = bom + after, templates, undo
    found.pods = list(converter.converted(pods))
    found.beside = converter.beside(pods, file) or None
    return found


def survey(text: str, settings: Settings) -> Conversion:
    """Return what :func:`convert` would, with the text unchanged. Faster: nothing is written and parsed again."""
    return convert(text, settings, write=False)


def reverse(text: str, undo: str = "") -> Conversion:
    """Return the text as it was before :func:`convert`; if that is impossible, a finding.

    ``undo``: for JSON, the undo texts that all its conversions returned.
    """
    bom, body = _split_bom(text)
    try:
        if not _is_json(body):
            return Conversion(bom + undone(body), beside={})
        if undo:
            return Conversion(bom + _undone_json(body, undo))
        if any(is_template_of(claim[2], claim[1] or "") for claim in _CLAIM_IN_JSON.finditer(body)):
            raise CannotUndoError(
                0, "JSON with claims, and the file beside it in which --in-place keeps the old lines is gone"
            )
        return Conversion(text)
    except CannotUndoError as error:
        hint = "restore the file from its backup or from version control"
        return Conversion(text, [Finding(Level.ERROR, error.line, "", error.message, hint)])


def _undone_json(body: str, undo: str) -> str:
    try:
        return undone_by(body, undo)
    except CannotUndoError:
        if any(mark in body for mark in _MARKS_IN_JSON):
            raise
        return body  # it was undone already


def existing_templates(text: str) -> Existing:
    """Return the ResourceClaimTemplates of a text; {} if it is no YAML, which its own conversion reports."""
    found: Existing = {}
    with contextlib.suppress(NotYamlError):
        for root in parsed(_split_bom(text)[1])[0] if KIND in text else ():
            found |= templates_in(value(root))
    return found


def _is_json(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and parsed(text)[1]
    except NotYamlError:
        return False


def _split_bom(text: str) -> tuple[str, str]:
    return (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)


def _not_yaml(text: str, error: NotYamlError) -> Finding:
    if "{{" in text:
        return Finding(Level.ERROR, error.line, "", "a Helm template", HELM_HINT)
    if text.lstrip().startswith("{"):
        return Finding(Level.ERROR, error.line, "", f"no valid JSON: {error.message}", "write it as JSON says")
    hint = "indent with spaces, and quote values that contain : { } [ ] , & * #"
    return Finding(Level.ERROR, error.line, "", f"no valid YAML: {error.message}", hint)


# --- several files --------------------------------------------------------------------------------------------------

_VALUES = re.compile(r"values", re.IGNORECASE)  # in the name of a file that Helm is given


class Source(Struct, frozen=True):
    """A file's name and its text with its own line breaks. ``undo``: for JSON, the undo text that is kept beside it.

    ``beside``: for a chart's values, the files that a conversion wrote beside it.
    """

    name: str
    text: str
    undo: str = ""
    beside: Mapping[str, str] = {}


class Outcome(Struct):
    """The result for one file."""

    source: Source
    conversion: Conversion

    @property
    def changed(self) -> bool:
        """Whether the text, or a file beside it, changed."""
        return self.text_changed or self.beside != self.source.beside

    @property
    def text_changed(self) -> bool:
        """Whether the text changed."""
        return self.conversion.text != self.source.text

    @property
    def beside(self) -> Mapping[str, str]:
        """The files that must be beside the text, including templates of earlier conversions."""
        old, new = self.source.beside, self.conversion.beside
        if new is None:
            return old
        if KUSTOMIZATION in new or TEMPLATES_FILE not in new or TEMPLATES_FILE not in old:
            return new  # a patch always covers all the values
        return {TEMPLATES_FILE: joined(old[TEMPLATES_FILE], new[TEMPLATES_FILE])}

    @property
    def undo(self) -> str:
        """The undo text to keep beside a JSON text, including that of earlier conversions if it still applies."""
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
    there: Existing = {}
    for source in sources:
        there |= existing_templates(source.text)
    charts = charts_beside(sources)
    outcomes: list[Outcome] = []
    for source in sources:
        path = PurePath(source.name)
        chart = charts.get(path, "")
        conversion = convert(source.text, settings, there, can_undo=can_undo, file=path.name, chart=chart)
        there |= {one.key: one.document()["spec"] for one in conversion.templates}
        outcomes.append(Outcome(source, conversion))
    return outcomes


def charts_beside(sources: Sequence[Source]) -> dict[PurePath, str]:
    """Return file -> chart for values that come on top of others: ``values-prod.yaml`` beside ``values.yaml``.

    One of the files with the keys of a chart is enough.
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
    except NotYamlError:
        return ""
    return chart_by_keys(value(roots[0])) if len(roots) == 1 else ""


def text_of(data: bytes) -> str | Finding:
    """Return a file's text, or a finding if it is not text."""
    if b"\0" in data:
        return Finding(Level.ERROR, 0, "", "no text: it has zero bytes", "name files with manifests only")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Finding(Level.ERROR, line, "", "no UTF-8 text", "save it as UTF-8, which Kubernetes asks for")
