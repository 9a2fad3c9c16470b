"""Write the admission policies of a switch: one that turns limits into claims, and one that names a missing template.

The first one's rules are those of :mod:`drabridge.migrate.switch.claims_of_pod`, in CEL. A pod is left alone as a whole
where it belongs to a DaemonSet, has a node already (static pods), needs more devices than a claim can have, or says so.
Kubernetes 1.36 gave the policy its form: a list of ``Object{}`` initialisers makes the API server's handler fail, so
lists have maps; and CEL has no functions of one's own, so texts are put together here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drabridge.migrate.convert.templates import Template
from drabridge.migrate.switch import marks
from drabridge.migrate.switch.claims_of_pod import BUCKETS, LETTERS, MOST_DEVICES

Json = dict[str, Any]
GROUP = "admissionregistration.k8s.io"
API_VERSION = f"{GROUP}/v1"
_PODS = {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}
_SWITCHED = {"namespaceSelector": {"matchLabels": {marks.LABEL: marks.CLAIMS}}}
_KNOWN = f"'{marks.TEMPLATES}' in variables.notes ? variables.notes['{marks.TEMPLATES}'].split(',') : []"
_NOTES = "has(namespaceObject.metadata.annotations) ? namespaceObject.metadata.annotations : {}"


def base_of(resource: str) -> str:
    """Return what the names of a resource's claims and templates begin with: ``nvidia-gpu``."""
    return Template("", resource, "", 1).name.removesuffix("-1")


def policies(classes: Mapping[str, str]) -> list[Json]:
    """Return the four objects of a switch: both policies and their bindings. ``classes``: resource -> DeviceClass."""
    listed = ",".join(f"{resource}={name}" for resource, name in sorted(classes.items()))
    meta = {"labels": marks.MANAGED_BY, "annotations": {marks.RESOURCES: listed}}
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": marks.POLICY, **meta},
            "spec": _switch(sorted(classes)),
        },
        {
            "apiVersion": API_VERSION,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": marks.POLICY, "labels": marks.MANAGED_BY},
            "spec": {"policyName": marks.POLICY, "matchResources": _SWITCHED},
        },
        {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": marks.GUARD, "labels": marks.MANAGED_BY},
            "spec": _guard(sorted(classes)),
        },
        {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": marks.GUARD, "labels": marks.MANAGED_BY},
            "spec": {"policyName": marks.GUARD, "matchResources": _SWITCHED, "validationActions": ["Deny"]},
        },
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
    f"[{_OWNER_NOW}]"
    f".map(n, 'pod-template-hash' in variables.labels && n.endsWith('-' + {_HASH}) "
    f"? n.substring(0, n.size() - {_HASH}.size() - 1) : n)"
    ".map(n, n.matches('-[0-9]{8,}$') ? n.substring(0, n.lastIndexOf('-')) : n)[0]"
)
_BUCKET = (
    "variables.owner.split('').transformList(i, c, "
    f"('{LETTERS}'.indexOf(c) + 2) * (i * i * 7919 + i * 104729 + 31337)).sum() % 10007 % {BUCKETS}"
)
_CHOSEN = (
    f"(!('{marks.PERCENT}' in variables.notes) || {_BUCKET} < int(variables.notes['{marks.PERCENT}'])) && "
    f"(!('{marks.SELECTOR}' in variables.notes) || variables.notes['{marks.SELECTOR}'].split(',')"
    ".all(p, p.split('=')[0] in variables.labels && variables.labels[p.split('=')[0]] == p.split('=')[1]))"
)
_SIDECAR = "has(c.restartPolicy) && c.restartPolicy == 'Always'"
_CLAIMS_THERE = (
    "(has(c.resources.claims) ? c.resources.claims.map(x, "
    "has(x.request) ? {'name': x.name, 'request': x.request} : {'name': x.name}) : [])"
)


def _switch(resources: Sequence[str]) -> Json:
    parts = [_Part(number, resource) for number, resource in enumerate(resources)]
    variables = [
        ("notes", _NOTES),
        ("known", _KNOWN),
        ("inits", "has(object.spec.initContainers) ? object.spec.initContainers : []"),
        ("labels", "has(object.metadata.labels) ? object.metadata.labels : {}"),
        ("owner", _OWNER),
        ("chosen", _CHOSEN),
        *(variable for part in parts for variable in part.variables()),
        ("fits", " && ".join(part.fits for part in parts)),
        ("count", " + ".join(f"{part.all}.size()" for part in parts)),
    ]
    patches = [
        *(patch for part in parts for patch in part.removals()),
        _uses("containers", "object.spec.containers", parts),
        _uses("initContainers", "variables.inits", parts),
        "has(object.spec.resourceClaims) ? [] : [JSONPatch{op: 'add', path: '/spec/resourceClaims', value: []}]",
        *(
            f"{part.all}.map(e, JSONPatch{{op: 'add', path: '/spec/resourceClaims/-', "
            "value: {'name': e.name, 'resourceClaimTemplateName': e.template}})"
            for part in parts
        ),
    ]
    added = "\n+ ".join(f"({patch})" for patch in patches)
    return {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": _PODS,
        "matchConditions": [
            {"name": "has-limits", "expression": " || ".join(part.wanted for part in parts)},
            {"name": "not-opted-out", "expression": _NOT_OPTED_OUT},
            {"name": "not-of-a-daemonset", "expression": _NOT_OF_A_DAEMONSET},
            {"name": "has-no-node", "expression": "!has(object.spec.nodeName) || object.spec.nodeName == ''"},
        ],
        "variables": [{"name": name, "expression": expression} for name, expression in variables],
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": f"variables.chosen && variables.fits && variables.count > 0 ? (\n{added}\n) : []"
                },
            }
        ],
    }


class _Part:
    """The CEL of one resource. Its variables are numbered, as an identifier cannot have the resource's name.

    ``here`` is whether the namespace is switched for it, which its templates say. ``app``, ``side`` and ``init`` are
    the containers of each kind that ask for it, as {i: index, n: devices}. ``own`` are the claims of the app
    containers, with what init containers need beyond them (an index of -1 where there is no app container); ``all``
    are all the pod's claims, as {name, template}.
    """

    def __init__(self, number: int, resource: str) -> None:
        self._number = number
        self._resource = resource
        self._base = base_of(resource)
        self._has = f"has(c.resources) && has(c.resources.limits) && '{resource}' in c.resources.limits"
        self._count = f"quantity(string(c.resources.limits['{resource}'])).asInteger()"
        words = ("app", "side", "init", "lacking", "own", "all")
        self.app, self.side, self.init, self.lacking, self.own, self.all = (f"variables.{one}{number}" for one in words)
        self._own_name = f"(e.i < 0 ? '{self._base}-init' : '{self._base}-c' + string(e.i))"

    @property
    def wanted(self) -> str:
        """Whether any container asks for it."""
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

    def removals(self) -> Iterable[str]:
        """Yield the patches that take the resource out of limits and requests."""
        for found, containers in ((self.app, "containers"), (f"({self.side} + {self.init})", "initContainers")):
            place = f"object.spec.{containers}[e.i].resources"
            asked = f".filter(e, has({place}.requests) && '{self._resource}' in {place}.requests)"
            for section, those in (("limits", ""), ("requests", asked)):
                path = f"'/spec/{containers}/' + string(e.i) + '/resources/{section}/'"
                key = f"jsonpatch.escapeKey('{self._resource}')"
                yield f"{found}{those}.map(e, JSONPatch{{op: 'remove', path: {path} + {key}}})"

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


def _uses(containers: str, listed: str, parts: Sequence[_Part]) -> str:
    """Return the patches that name in each container the claims that it uses, after those that it has."""
    uses = [part.uses(containers) for part in parts]
    some = " || ".join(any_of for any_of, _ in uses)
    value = " + ".join([_CLAIMS_THERE, *(f"({mine})" for _, mine in uses)])
    path = f"'/spec/{containers}/' + string(i) + '/resources/claims'"
    return f"{listed}.transformList(i, c, {some}, JSONPatch{{op: 'add', path: {path}, value: {value}}})"


# --- a template is missing ------------------------------------------------------------------------------------------


def _guard(resources: Sequence[str]) -> Json:
    bases = "|".join(base_of(resource) for resource in resources)
    missing = (
        "!has(object.spec.resourceClaims) ? [] : object.spec.resourceClaims.filter(c, "
        f"has(c.resourceClaimTemplateName) && c.name.matches('^({bases})-(c[0-9]+|s[0-9]+|init)$') "
        f"&& c.resourceClaimTemplateName.matches('^({bases})-[0-9]+$') "
        "&& !(c.resourceClaimTemplateName in variables.known)).map(c, c.resourceClaimTemplateName)"
    )
    message = (
        "'namespace ' + namespaceObject.metadata.name + ' is switched to claims and has no ResourceClaimTemplate ' + "
        "variables.missing.join(', ') + '. To make it: drabridge migrate switch ' + namespaceObject.metadata.name + "
        "' --to claims --count ' + variables.missing[0].substring(variables.missing[0].lastIndexOf('-') + 1)"
    )
    return {
        "failurePolicy": "Fail",
        "matchConstraints": _PODS,
        "variables": [
            {"name": "notes", "expression": _NOTES},
            {"name": "known", "expression": _KNOWN},
            {"name": "missing", "expression": missing},
        ],
        "validations": [{"expression": "variables.missing.size() == 0", "messageExpression": message}],
    }
