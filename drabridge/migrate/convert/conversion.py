"""Convert the text of a manifest from limits to claims: text in, text and findings out, no files and no cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct, field, structs

from drabridge.migrate.convert.json_nodes import parse_json
from drabridge.migrate.convert.json_templates import placed, takes_templates, with_templates_said
from drabridge.migrate.convert.kinds import (
    COUNT_LIMITS,
    NO_POD_TEMPLATE,
    OTHERWISE,
    Manifest,
    at,
    manifests,
    pod_specs,
    remark_on,
)
from drabridge.migrate.convert.pods import PodPlan, Refused, plan_pod
from drabridge.migrate.convert.settings import Finding, Level, Settings
from drabridge.migrate.convert.splice import Edit, Operation, Unspliceable, applied, edits, in_order, spliced
from drabridge.migrate.convert.templates import KIND, Existing, Template, foreign, missing
from drabridge.migrate.convert.undo import (
    CannotUndo,
    block_alone,
    undone,
    undone_by,
    with_block,
    with_templates,
)
from drabridge.migrate.convert.yaml_nodes import Leaf, Mapping, Node, NotYaml, Path, Value, owner_of, parse, same, value

_BOM = "\ufeff"
_CLAIM_IN_JSON = re.compile(r'resourceClaimTemplateName\\?":\s*\\?"')  # also within a podSpecPatch
# Below these keys a number counts devices: in pods, quotas and limit ranges.
_COUNTS = frozenset({"limits", "requests", "hard", "default", "defaultRequest", "max", "min"})
_HELM = "helm template ... | drabridge migrate convert --post-renderer"
_VALUES_HINT = (
    "values of a chart stay as they are, for only its templates know where claims could go; "
    f"convert what Helm makes of them: {_HELM}"
)
HELM_HINT = f"templates of a chart are no YAML; convert what Helm makes of them: {_HELM}"


class ConvertedPod(Struct, frozen=True):
    """One pod spec that is converted: whose it is, and what changes, with paths from the object."""

    manifest: Manifest
    operations: tuple[Operation, ...]
    templates: tuple[Template, ...]


class Conversion(Struct):
    """What became of one text. ``text`` is the given one where nothing changed."""

    text: str
    findings: list[Finding] = field(default_factory=list)
    pods: list[ConvertedPod] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)  # those that are new, and in the text
    undo: str = ""  # of JSON, what reverse() needs beside the text

    @property
    def unfinished(self) -> bool:
        """Whether something stays on limits or could not be read."""
        return any(finding.level is not Level.NOTE for finding in self.findings)


def convert(text: str, settings: Settings, there: Iterable[Existing] = (), *, can_undo: bool = True) -> Conversion:
    """Convert all pod specs of a text that can be converted whole, and say what is left and why.

    ``there``: templates that other files of the same place have, which are not written again. ``can_undo``: add what
    :func:`reverse` needs. The result was parsed again and says what it shall; where that fails, the pod spec stays.
    """
    bom, body = _split_bom(text)
    try:
        converter = _Converter(body, settings, there)
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
            return found
    if not pods:
        return found
    found.text, found.templates, found.undo = bom + after, templates, undo
    found.pods = [ConvertedPod(pod.manifest, tuple(pod.within_manifest()), tuple(pod.plan.templates)) for pod in pods]
    return found


def reverse(text: str, undo: str = "") -> Conversion:
    """Return the text as it was before :func:`convert`; a finding where that cannot be.

    ``undo``: of JSON, what the conversion returned beside the text; after several conversions all of it.
    """
    bom, body = _split_bom(text)
    try:
        if not _is_json(body):
            return Conversion(bom + undone(body))
        converted = _CLAIM_IN_JSON.search(body)
        if converted and not undo:
            raise CannotUndo(
                0, "JSON with claims, and the file beside it in which --in-place keeps the old lines is gone"
            )
        return Conversion(bom + (undone_by(body, undo) if converted else body))
    except CannotUndo as error:
        hint = "restore the file from its backup or from version control"
        return Conversion(text, [Finding(Level.ERROR, error.line, "", error.message, hint)])


def existing_templates(text: str) -> list[Existing]:
    """Return the ResourceClaimTemplates of a text; none where it is no YAML, which its own conversion says."""
    if KIND not in text:
        return []
    try:
        return [one for root in _parsed(_split_bom(text)[1])[0] for one in _templates_in(value(root))]
    except NotYaml:
        return []


def _parsed(text: str) -> tuple[list[Node], bool]:
    """Return the documents of a text, and whether it is JSON. Raises NotYaml."""
    if not text.lstrip().startswith("{"):
        return parse(text), False
    try:
        return parse_json(text), True
    except NotYaml as error:
        try:
            return parse(text), False
        except NotYaml:
            raise error from None


def _is_json(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and _parsed(text)[1]
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


def _templates_in(document: Value) -> Iterator[Existing]:
    for manifest in manifests(document):
        spec = manifest.body.get("spec")
        if manifest.kind == KIND and spec is not None:
            yield Existing(manifest.namespace, manifest.name, spec)


class _Pod(Struct):
    """The plan of one pod spec."""

    document: int
    manifest: Manifest
    path: Path
    plan: PodPlan

    def operations(self) -> list[Operation]:
        """The operations with paths from the document's root."""
        return [structs.replace(one, path=(*self.path, *one.path)) for one in self.plan.operations]

    def within_manifest(self) -> list[Operation]:
        """The operations with paths from the object, in an order in which each can be done after the other."""
        start = len(self.manifest.path)
        return in_order([structs.replace(one, path=one.path[start:]) for one in self.operations()])


class _Converter:
    """The conversion of one text that is YAML or JSON."""

    def __init__(self, text: str, settings: Settings, there: Iterable[Existing]) -> None:
        roots, self._is_json = _parsed(text)
        self._text = text
        self._roots = roots
        self._settings = settings
        self._documents = [value(root) for root in roots]
        self.known = [*there, *(one for document in self._documents for one in _templates_in(document))]
        self.findings: list[Finding] = []

    def pods(self) -> list[_Pod]:
        """Return the pod specs that can be converted; findings say what else there is."""
        taken = list(self.known)
        found: list[_Pod] = []
        for number, document in enumerate(self._documents):
            objects = manifests(document)
            for manifest in objects:
                found += self._of_manifest(number, manifest, taken)
            if not objects:
                self._find_left(number, Manifest((), "", "", "", {}), document, (), set(), _VALUES_HINT)
        if found and not self._is_json and self._text.lstrip().startswith("{"):
            message = "kubectl takes for JSON what begins with {, and this is none"
            self.find(Level.LEFT, found[0], (), message, "write it as JSON, or put a line --- above it")
            return []
        if found and self._is_json and not takes_templates(self._roots):
            hint = "write List instead, with apiVersion v1"
            self.find(Level.LEFT, found[0], (), "a list of one kind, in which no template can stand", hint)
            return []
        return found

    def result(self, pods: Sequence[_Pod], *, can_undo: bool) -> tuple[str, list[Template], str]:
        """Return the converted text, the templates that are new in it, and of JSON what can undo it.

        Raises Unspliceable where the text cannot be changed, or would not say what it shall.
        """
        if not pods:
            return self._text, [], ""
        templates = missing([template for pod in pods for template in pod.plan.templates], self.known)
        changes = self._edits(pods)
        if self._is_json:
            changes += placed(self._text, self._roots, templates)
            after = spliced(self._text, changes)
            if not _says(after, with_templates_said(self._intended(pods), self._roots, templates), parse_json):
                raise Unspliceable("the text would not say what it shall")
            return after, templates, block_alone(self._text, after, changes)
        after = spliced(self._text, changes)
        if can_undo:
            after = with_block(self._text, after, changes, templates)
        else:
            after = with_templates(after, templates)
        if not _says(after, [*self._intended(pods), *(template.document() for template in templates)]):
            raise Unspliceable("the text would not say what it shall")
        return after, templates, ""

    def each_alone(self, pods: Sequence[_Pod]) -> list[_Pod]:
        """Return the pod specs whose text can be changed, where not all can; findings say which cannot."""
        kept: list[_Pod] = []
        for pod in pods:
            problem = self._problem([*kept, pod])
            if problem is None:
                kept.append(pod)
            else:
                self.find(Level.LEFT, pod, (), problem, "write these lines out by hand, then convert again")
        return kept

    def find(self, level: Level, pod: _Pod, path: Path, message: str, hint: str) -> None:
        """Note a finding about one pod spec; ``path`` begins at it."""
        self._find(level, pod.document, pod.manifest, (*pod.path, *path), message, hint)

    # -- what is there

    def _of_manifest(self, number: int, manifest: Manifest, taken: list[Existing]) -> Iterator[_Pod]:
        specs = pod_specs(manifest, self._settings.paths)
        converted = False
        for spec in specs:
            try:
                body = at(self._documents[number], spec.path) or {}
                plan = plan_pod(body, manifest.namespace, self._settings, spec.form)
            except Refused as refused:
                path = (*spec.path, *refused.path)
                self._find(Level.LEFT, number, manifest, path, refused.message, refused.hint)
                continue
            if plan is None:
                continue
            pod = _Pod(number, manifest, spec.path, plan)
            if (clash := foreign(plan.templates, taken)) is not None:
                message = f"there is a ResourceClaimTemplate {clash.name} already, and it says something else"
                self.find(Level.LEFT, pod, (), message, "rename or remove it")
                continue
            taken += [Existing(one.namespace, one.name, one.spec()) for one in plan.templates]
            converted = True
            for remark in plan.remarks:
                self.find(Level.NOTE, pod, remark.path, remark.message, remark.hint)
            if spec.by_shape:
                message = "found by its shape: this kind is not in the table of pod templates"
                self.find(Level.NOTE, pod, (), message, "see that its CRD has resourceClaims")
            yield pod
        if converted and (message := remark_on(manifest)):
            self._find(Level.NOTE, number, manifest, manifest.path, message, "")
        hint = NO_POD_TEMPLATE.get(manifest.kind, OTHERWISE)
        self._find_left(number, manifest, manifest.body, manifest.path, {spec.path for spec in specs}, hint)

    def _find_left(self, number: int, manifest: Manifest, body: Value, path: Path, pods: set[Path], hint: str) -> None:
        """Find limits outside pod specs, and other extended resources anywhere."""
        if isinstance(body, dict):
            for key, child in body.items():
                if path and path[-1] in _COUNTS and isinstance(child, Leaf):
                    self._find_count(number, manifest, (*path, key), child, path in pods, hint)
                if key == "podSpecPatch" and isinstance(child, Leaf):
                    for name in (one for one in self._settings.devices if one in child.text):
                        self._find(Level.LEFT, number, manifest, (*path, key), f"it speaks of {name}", hint)
                inside = pods | {(*path, key)} if path in pods else pods
                self._find_left(number, manifest, child, (*path, key), inside, hint)
        elif isinstance(body, list):
            for place, child in enumerate(body):
                inside = pods | {(*path, place)} if path in pods else pods
                self._find_left(number, manifest, child, (*path, place), inside, hint)

    def _find_count(self, number: int, manifest: Manifest, path: Path, count: Leaf, in_pod: bool, hint: str) -> None:
        key = str(path[-1])
        resource = key.removeprefix("requests.").removeprefix("limits.")
        if count.text.strip() in ("", "0"):
            return
        if resource in self._settings.devices:
            if manifest.kind in COUNT_LIMITS:
                self._find(Level.NOTE, number, manifest, path, f"{key}: {count.text} counts limits", hint)
            elif not manifest.kind:
                place = ".".join(map(str, path[:-1]))
                message = f"{place} has {key}: {count.text}, outside any Kubernetes object"
                self._find(Level.LEFT, number, manifest, path, message, hint)
            elif not in_pod:
                self._find(Level.LEFT, number, manifest, path, f"{key}: {count.text} is in no pod template", hint)
        elif in_pod and _is_extended(resource) and path[-2] == "limits":
            message = f"{resource} stays on limits"
            self._find(Level.NOTE, number, manifest, path, message, f"to convert it, add --class {resource}=CLASS")

    def _find(self, level: Level, number: int, manifest: Manifest, path: Path, message: str, hint: str) -> None:
        finding = Finding(level, self._line(number, path), str(manifest), message, hint)
        if finding not in self.findings:
            self.findings.append(finding)

    def _line(self, number: int, path: Path) -> int:
        """Return the line of a key or an item, or of the nearest thing above it that there is."""
        while path and (owned := owner_of(self._roots[number], path)) is not None:
            owner, place = owned
            start = owner.entries[place][0].start if isinstance(owner, Mapping) else owner.items[place].start
            return self._text.count("\n", 0, start) + 1
        return self._line(number, path[:-1]) if path else self._text.count("\n", 0, self._roots[number].start) + 1

    # -- what changes

    def _problem(self, pods: Sequence[_Pod]) -> str | None:
        try:
            after = spliced(self._text, self._edits(pods))
        except Unspliceable as error:
            return str(error)
        if _says(after, self._intended(pods), parse_json if self._is_json else parse):
            return None
        return "an alias shares what must change with something that must not"

    def _edits(self, pods: Sequence[_Pod]) -> list[Edit]:
        found: list[Edit] = []
        for number, root in enumerate(self._roots):
            operations = [one for pod in pods if pod.document == number for one in pod.operations()]
            found += edits(self._text, root, operations, is_json=self._is_json) if operations else []
        return found

    def _intended(self, pods: Sequence[_Pod]) -> list[Value]:
        return [
            applied(document, [one for pod in pods if pod.document == number for one in pod.operations()])
            for number, document in enumerate(self._documents)
        ]


def _says(text: str, documents: Sequence[Value], parser: Callable[[str], list[Node]] = parse) -> bool:
    try:
        found = [value(root) for root in parser(text)]
    except NotYaml:
        return False
    return len(found) == len(documents) and all(map(same, found, documents))


def _is_extended(name: str) -> bool:
    domain, slash, _ = name.partition("/")
    return bool(slash) and not domain.endswith("kubernetes.io")
