"""Write the admission policies of a switch: one that turns limits into claims, and one that names a missing template.

Each container with limits gets a claim of its own. An init container runs before the others and reuses their devices,
as with a device plugin; if it needs more devices, the first claim grows. A sidecar runs beside the others, so it has a
claim of its own. These rules exist in CEL, and again in Python to know beforehand which templates are needed.

A pod is left unchanged as a whole if it belongs to a DaemonSet, has a node already (static pods), needs more devices
than a claim can have, or opts out. Two limits of Kubernetes 1.36 shape the policy: a list of ``Object{}`` initialisers
makes the API server's handler fail, so lists have maps; CEL has no functions of one's own, so texts are joined here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from drabridge.config.quantity import parse
from drabridge.migrate.convert.templates import MOST_DEVICES, Template
from drabridge.migrate.switch import marks

Json = dict[str, Any]
BUCKETS = 100
MOST_NAME = 253  # characters: the policy reads names before the API server has checked them
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-."


# --- which claims a pod gets ----------------------------------------------------------------------------------------


class Claim(Struct, frozen=True):
    """One claim of a pod. ``base``: prefix of its name; ``count``: its devices."""

    name: str
    base: str
    count: int


class PodClaims(Struct, frozen=True):
    """The claims of a pod, and the names of those that each container uses; by index, as the pod lists them."""

    claims: tuple[Claim, ...]
    containers: Mapping[int, tuple[str, ...]]
    init_containers: Mapping[int, tuple[str, ...]]

    def counts(self, base: str) -> frozenset[int]:
        """Return how many devices the claims of one resource have."""
        return frozenset(claim.count for claim in self.claims if claim.base == base)


def claims_of_pod(spec: Mapping[str, Any], bases: Mapping[str, str]) -> PodClaims:
    """Return a pod's claims. ``bases``: resource -> prefix of its claims' names."""
    claims: list[Claim] = []
    uses: tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, ...]]] = ({}, {})
    for resource, base in bases.items():
        app = list(_wanting(spec.get("containers"), resource))
        init = list(_wanting(spec.get("initContainers"), resource))
        sidecars = [(i, n) for i, n, always in init if always]
        ordinary = [(i, n) for i, n, always in init if not always]
        own = [(f"{base}-c{i}", n) for i, n, _ in app]
        lacking = max((n for _, n in ordinary), default=0) - sum(n for _, n in own)
        if lacking > 0:
            own[:1] = [(own[0][0], own[0][1] + lacking)] if own else [(f"{base}-init", lacking)]
        for i, _, _ in app:
            uses[0][i] = (*uses[0].get(i, ()), f"{base}-c{i}")
        for i, _ in sidecars:
            uses[1][i] = (*uses[1].get(i, ()), f"{base}-s{i}")
        for i, wanted in ordinary:
            first = [name for place, (name, _) in enumerate(own) if sum(n for _, n in own[:place]) < wanted]
            uses[1][i] = (*uses[1].get(i, ()), *first)
        claims += [Claim(name, base, n) for name, n in [*own, *((f"{base}-s{i}", n) for i, n in sidecars)]]
    return PodClaims(tuple(claims), *uses)


def _wanting(containers: Iterable[Mapping[str, Any]] | None, resource: str) -> Iterable[tuple[int, int, bool]]:
    """Yield (index, devices, whether it is a sidecar) of the containers that ask for a resource."""
    for index, container in enumerate(containers or ()):
        wanted = int(parse(str(((container.get("resources") or {}).get("limits") or {}).get(resource) or 0)))
        if wanted:
            yield index, wanted, container.get("restartPolicy") == "Always"


def bucket(owner: str) -> int:
    """Return a number from 0 to 99 for an owner's name, the same after every rollout.

    CEL has no hash function. So this is a sum over the letters, each multiplied by a number that depends on its place.
    """
    total = sum((LETTERS.find(letter) + 2) * (i * i * 7919 + i * 104_729 + 31_337) for i, letter in enumerate(owner))
    return total % 10_007 % BUCKETS


def owner_of(pod: Mapping[str, Any]) -> str:
    """Return a name for a pod's owner that stays the same over rollouts and restarts.

    It is the Deployment's name for a pod of its ReplicaSet, the CronJob's for a pod of its Jobs, and the pod's own name
    for a pod without an owner.
    """
    meta = pod.get("metadata") or {}
    controllers = [one for one in meta.get("ownerReferences") or () if one.get("controller")]
    name = str(controllers[0]["name"] if controllers else meta.get("name") or meta.get("generateName") or "")
    name = name if len(name) <= MOST_NAME else ""
    template_hash = (meta.get("labels") or {}).get("pod-template-hash")
    if template_hash:
        name = name.removesuffix(f"-{template_hash}")
    return re.sub(r"-[0-9]{8,}$", "", name)


# --- the policies ---------------------------------------------------------------------------------------------------

GROUP = "admissionregistration.k8s.io"
MISSING = "has no ResourceClaimTemplate"  # in what the second policy says
# Before the API server checks it, input may have any size, and loops over it cost the server time. So it is limited.
MOST_TEMPLATES = 10_000  # characters of the annotation: 150 names
MOST_SELECTOR = 4_000
MOST_CONTAINERS = 100
MOST_CLAIMS = 256
_PODS = {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}
_NOTES = "has(namespaceObject.metadata.annotations) ? namespaceObject.metadata.annotations : {}"


def base_of(resource: str) -> str:
    """Return the prefix of the names of a resource's claims and templates: ``nvidia-gpu``."""
    return Template("", resource, "", 1).name.removesuffix("-1")


class Form(Struct, frozen=True):
    """What differs between the policies that the command makes and those of the chart."""

    policy: str = marks.POLICY
    guard: str = marks.GUARD
    known: str = (
        f"'{marks.TEMPLATES}' in variables.notes && variables.notes['{marks.TEMPLATES}'].size() <= {MOST_TEMPLATES} "
        f"? variables.notes['{marks.TEMPLATES}'].split(',') : []"
    )
    """CEL of the list of the namespace's templates."""
    namespaces: Json = field(default_factory=lambda: {"matchLabels": {marks.LABEL: marks.CLAIMS}})
    """The selector of the namespaces that are switched."""
    version: str = "v1"
    """The version of MutatingAdmissionPolicy. The policy that refuses pods is always of v1."""


class Parts:
    """The resources of a policy, each with its CEL."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._parts = [Part(str(number), resource, base_of(resource)) for number, resource in enumerate(resources)]

    def joined(self, first: str, operator: str, cel: Callable[[Part], str]) -> str:
        """Return ``first``, and after it for each resource the operator with its CEL."""
        return first + "".join(f" {operator} {cel(part)}" for part in self._parts)

    def variables(self) -> Iterable[tuple[str, str]]:
        """Yield names and expressions of the variables of all resources."""
        return (variable for part in self._parts for variable in part.variables())


def policies(classes: Mapping[str, str], version: str = "v1") -> list[Json]:
    """Return the four objects of a switch: both policies and their bindings.

    ``classes``: resource -> DeviceClass. ``version``: of the two that change pods.
    """
    listed = ",".join(f"{resource}={name}" for resource, name in sorted(classes.items()))
    found = objects(Parts(sorted(classes)), Form(version=version))
    found[0]["metadata"]["annotations"] = {marks.RESOURCES: listed}
    return found


def objects(parts: Parts, form: Form) -> list[Json]:
    """Return the four objects, without the annotation that records their resources."""
    specs = {
        ("MutatingAdmissionPolicy", form.policy): _switch(parts, form),
        ("MutatingAdmissionPolicyBinding", form.policy): {"policyName": form.policy},
        ("ValidatingAdmissionPolicy", form.guard): _guard(parts, form),
        ("ValidatingAdmissionPolicyBinding", form.guard): {"policyName": form.guard, "validationActions": ["Deny"]},
    }
    for (kind, _), spec in specs.items():
        if kind.endswith("Binding"):
            spec["matchResources"] = {"namespaceSelector": form.namespaces}
    return [
        {
            "apiVersion": f"{GROUP}/{form.version if kind.startswith('Mutating') else 'v1'}",
            "kind": kind,
            "metadata": {"name": name, "labels": dict(marks.MANAGED_BY)},
            "spec": spec,
        }
        for (kind, name), spec in specs.items()
    ]


def classes_of(policy: Mapping[str, Any]) -> dict[str, str]:
    """Return the resources of a policy that :func:`policies` made, with their DeviceClasses."""
    listed = ((policy.get("metadata") or {}).get("annotations") or {}).get(marks.RESOURCES) or ""
    pairs = (pair.partition("=") for pair in listed.split(",") if pair)
    return {resource: name for resource, _, name in pairs}


# --- limits become claims -------------------------------------------------------------------------------------------

_NOT_OPTED_OUT = (
    f"!has(object.metadata.annotations) || !('{marks.OPT_OUT}' in object.metadata.annotations) "
    f"|| object.metadata.annotations['{marks.OPT_OUT}'] != '{marks.LIMITS}'"
)
_NOT_OF_A_DAEMONSET = (
    "!has(object.metadata.ownerReferences) || !object.metadata.ownerReferences.exists(o, o.kind == 'DaemonSet')"
)
_CONTROLLERS = "object.metadata.ownerReferences.filter(o, has(o.controller) && o.controller)"
_OWNER_NOW = (
    f"has(object.metadata.ownerReferences) && {_CONTROLLERS}.size() > 0 ? {_CONTROLLERS}[0].name : "
    "has(object.metadata.name) && object.metadata.name != '' ? object.metadata.name : "
    "has(object.metadata.generateName) ? object.metadata.generateName : ''"
)
_HASH = "variables.labels['pod-template-hash']"
_OWNER = (
    f"[{_OWNER_NOW}].map(n, n.size() > {MOST_NAME} ? '' : n)"
    f".map(n, 'pod-template-hash' in variables.labels && n.endsWith('-' + {_HASH}) "
    f"? n.substring(0, n.size() - {_HASH}.size() - 1) : n)"
    ".map(n, n.matches('-[0-9]{8,}$') ? n.substring(0, n.lastIndexOf('-')) : n)[0]"
)
_BUCKET = (
    "variables.owner.split('').transformList(i, c, "
    f"('{LETTERS}'.indexOf(c) + 2) * (i * i * 7919 + i * 104729 + 31337)).sum() % 10007 % {BUCKETS}"
)
_CHOSEN = (
    f"(!('{marks.PERCENT}' in variables.notes) || (variables.notes['{marks.PERCENT}'].matches('^[0-9]{{1,3}}$') && "
    f"{_BUCKET} < int(variables.notes['{marks.PERCENT}']))) && "
    f"(!('{marks.SELECTOR}' in variables.notes) || (variables.notes['{marks.SELECTOR}'].size() <= {MOST_SELECTOR} && "
    f"variables.notes['{marks.SELECTOR}'].split(',').all(p, p.split('=').size() == 2 && "
    "p.split('=')[0] in variables.labels && variables.labels[p.split('=')[0]] == p.split('=')[1])))"
)
_SIDECAR = "has(c.restartPolicy) && c.restartPolicy == 'Always'"
_CLAIMS_THERE = (
    "(has(c.resources.claims) ? c.resources.claims.map(x, "
    "has(x.request) ? {'name': x.name, 'request': x.request} : {'name': x.name}) : [])"
)


def _switch(parts: Parts, form: Form) -> Json:
    variables = [
        ("notes", _NOTES),
        ("known", form.known),
        ("inits", "has(object.spec.initContainers) ? object.spec.initContainers : []"),
        ("labels", "has(object.metadata.labels) ? object.metadata.labels : {}"),
        ("owner", _OWNER),
        ("chosen", _CHOSEN),
        *parts.variables(),
        ("fits", parts.joined("true", "&&", lambda part: part.fits)),
        ("count", parts.joined("0", "+", lambda part: f"{part.all}.size()")),
    ]
    patches = [
        parts.joined("[]", "+", lambda part: part.removals()),
        _uses("containers", "object.spec.containers", parts),
        _uses("initContainers", "variables.inits", parts),
        "has(object.spec.resourceClaims) ? [] : [JSONPatch{op: 'add', path: '/spec/resourceClaims', value: []}]",
        parts.joined("[]", "+", lambda part: part.claims()),
    ]
    added = " + ".join(f"({patch})" for patch in patches)
    wanted = parts.joined("false", "||", lambda part: part.wanted)
    return {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": _PODS,
        "matchConditions": [
            {"name": "has-limits", "expression": wanted},
            {"name": "not-opted-out", "expression": _NOT_OPTED_OUT},
            {"name": "not-of-a-daemonset", "expression": _NOT_OF_A_DAEMONSET},
            {
                "name": "has-a-usual-size",
                "expression": f"object.spec.containers.size() <= {MOST_CONTAINERS} && "
                f"(!has(object.spec.initContainers) || object.spec.initContainers.size() <= {MOST_CONTAINERS})",
            },
            {"name": "has-no-node", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
        ],
        "variables": [{"name": name, "expression": expression} for name, expression in variables],
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": f"variables.chosen && variables.fits && variables.count > 0 ? {added} : []"
                },
            }
        ],
    }


class Part:
    """The CEL of one resource. Its variables are numbered, as an identifier cannot have the resource's name.

    ``here``: whether the namespace is switched for the resource, by its templates. ``app``, ``side`` and ``init`` are
    the containers of each kind that ask for it, as {i: index, n: devices}. ``own`` are the claims of the app
    containers, with what init containers need beyond them (an index of -1 where there is no app container); ``all``
    are all the pod's claims, as {name, template}.
    """

    def __init__(self, number: str, resource: str, base: str) -> None:
        self._number = number
        self._resource = resource
        self._base = base
        self._has = f"has(c.resources) && has(c.resources.limits) && '{resource}' in c.resources.limits"
        self._count = f"quantity(string(c.resources.limits['{resource}'])).asInteger()"
        words = ("app", "side", "init", "lacking", "own", "all")
        self.app, self.side, self.init, self.lacking, self.own, self.all = (f"variables.{one}{number}" for one in words)
        self._own_name = f"(e.i < 0 ? '{self._base}-init' : '{self._base}-c' + string(e.i))"

    @property
    def wanted(self) -> str:
        """Whether any container asks for the resource."""
        lists = ("object.spec.containers", "object.spec.?initContainers.orValue([])")
        return " || ".join(f"{containers}.exists(c, {self._has})" for containers in lists)

    @property
    def fits(self) -> str:
        """Whether each claim can have as many devices as it needs."""
        return f"({self.own} + {self.side}).all(e, e.n <= {MOST_DEVICES})"

    def variables(self) -> Iterable[tuple[str, str]]:
        """Yield names and expressions; each uses only those before it."""
        yield f"here{self._number}", f"variables.known.exists(t, t.matches('^{self._base}-[0-9]+$'))"
        found = f"variables.here{self._number} && {self._has} && {self._count} > 0"
        item = f"{{'i': int(i), 'n': {self._count}}}"
        yield f"app{self._number}", f"object.spec.containers.transformList(i, c, {found}, {item})"
        yield f"side{self._number}", f"variables.inits.transformList(i, c, {found} && {_SIDECAR}, {item})"
        yield f"init{self._number}", f"variables.inits.transformList(i, c, {found} && !({_SIDECAR}), {item})"
        beyond = f"{self.init}.map(e, e.n).max() - {self.app}.map(e, e.n).sum()"
        yield f"lacking{self._number}", f"{self.init}.size() == 0 ? 0 : [0, {beyond}].max()"
        grown = f"{{'i': e.i, 'n': e.n + (e.i == {self.app}[0].i ? {self.lacking} : 0)}}"
        alone = f"{self.lacking} > 0 ? [{{'i': -1, 'n': {self.lacking}}}] : []"
        yield f"own{self._number}", f"{self.app}.size() > 0 ? {self.app}.map(e, {grown}) : {alone}"
        template = f"'template': '{self._base}-' + string(e.n)"
        yield (
            f"all{self._number}",
            f"{self.own}.map(e, {{'name': {self._own_name}, {template}}}) "
            f"+ {self.side}.map(e, {{'name': '{self._base}-s' + string(e.i), {template}}})",
        )

    @property
    def is_missing(self) -> str:
        """Whether a pod's claim ``c``, whose template is not there, is one that the switch made."""
        name = f"c.name.matches('^{self._base}-(c[0-9]+|s[0-9]+|init)$')"
        return f"({name} && c.resourceClaimTemplateName.matches('^{self._base}-[0-9]+$'))"

    def claims(self) -> str:
        """Return the patches that add the pod's claims."""
        value = "{'name': e.name, 'resourceClaimTemplateName': e.template}"
        return f"{self.all}.map(e, JSONPatch{{op: 'add', path: '/spec/resourceClaims/-', value: {value}}})"

    def removals(self) -> str:
        """Return the patches that take the resource out of limits and requests."""
        patches = []
        for found, containers in ((self.app, "containers"), (f"({self.side} + {self.init})", "initContainers")):
            place = f"object.spec.{containers}[e.i].resources"
            asked = f".filter(e, has({place}.requests) && '{self._resource}' in {place}.requests)"
            for section, those in (("limits", ""), ("requests", asked)):
                path = f"'/spec/{containers}/' + string(e.i) + '/resources/{section}/'"
                key = f"jsonpatch.escapeKey('{self._resource}')"
                patches.append(f"{found}{those}.map(e, JSONPatch{{op: 'remove', path: {path} + {key}}})")
        return " + ".join(patches)

    def uses(self, containers: str) -> tuple[str, str]:
        """Return whether the container number ``i`` uses claims of the resource, and the list of these."""
        if containers == "containers":
            name = f"{{'name': '{self._base}-c' + string(e.i)}}"
            return f"{self.app}.exists(e, e.i == i)", f"{self.app}.filter(e, e.i == i).map(e, {name})"
        sidecars = f"{self.side}.filter(e, e.i == i).map(e, {{'name': '{self._base}-s' + string(e.i)}})"
        before = f"{self.own}.filter(b, b.i < e.i).map(b, b.n).sum()"
        reused = f"{self.own}.filter(e, {self.init}.exists(w, w.i == i && {before} < w.n))"
        mine = f"{sidecars} + {reused}.map(e, {{'name': {self._own_name}}})"
        return f"({self.side} + {self.init}).exists(e, e.i == i)", mine


def _uses(containers: str, listed: str, parts: Parts) -> str:
    """Return the patches that name in each container the claims that it uses, after those that it has."""
    some = parts.joined("false", "||", lambda part: part.uses(containers)[0])
    value = parts.joined(_CLAIMS_THERE, "+", lambda part: f"({part.uses(containers)[1]})")
    path = f"'/spec/{containers}/' + string(i) + '/resources/claims'"
    return f"{listed}.transformList(i, c, {some}, JSONPatch{{op: 'add', path: {path}, value: {value}}})"


# --- a template is missing ------------------------------------------------------------------------------------------


def _guard(parts: Parts, form: Form) -> Json:
    ours = parts.joined("false", "||", lambda part: part.is_missing)
    missing = (
        f"!has(object.spec.resourceClaims) || object.spec.resourceClaims.size() > {MOST_CLAIMS} ? [] : "
        "object.spec.resourceClaims.filter(c, "
        f"has(c.resourceClaimTemplateName) && !(c.resourceClaimTemplateName in variables.known) && ({ours}))"
        ".map(c, c.resourceClaimTemplateName)"
    )
    message = (
        f"'namespace ' + namespaceObject.metadata.name + ' is switched to claims and {MISSING} ' + "
        "variables.missing.join(', ') + '. To make it: drabridge migrate switch ' + namespaceObject.metadata.name + "
        "' --to claims --count ' + variables.missing[0].substring(variables.missing[0].lastIndexOf('-') + 1)"
    )
    return {
        "failurePolicy": "Fail",
        "matchConstraints": _PODS,
        "variables": [
            {"name": "notes", "expression": _NOTES},
            {"name": "known", "expression": form.known},
            {"name": "missing", "expression": missing},
        ],
        "validations": [{"expression": "variables.missing.size() == 0", "messageExpression": message}],
    }
