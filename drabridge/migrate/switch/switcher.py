"""Switch namespaces of a cluster to claims, and back. Every step can be repeated; another call continues it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from drabridge.errors import ClusterError, ConfigError
from drabridge.kube import features
from drabridge.kube.api import (
    PODS,
    Cluster,
    DeniedError,
    InvalidError,
    Kind,
    NotFoundError,
    device_classes,
    served_version,
)
from drabridge.kube.feature_questions import keeps_extended_names, policy_version
from drabridge.kube.features import FEATURES
from drabridge.migrate.convert.templates import MOST_DEVICES, Template
from drabridge.migrate.report.readers import NAMESPACES, WORKLOADS, claim_templates, maker_of_pods
from drabridge.migrate.switch import marks
from drabridge.migrate.switch.policy import (
    GROUP,
    MISSING,
    base_of,
    bucket,
    claims_of_pod,
    classes_of,
    policies,
)

Json = Mapping[str, Any]
Tell = Callable[[str], None]
"""Called with each thing that was done, in a line."""

_SWITCH = "MutatingAdmissionPolicy"
_PLURALS = {
    _SWITCH: "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


def policy_kinds(version: str) -> dict[str, Kind]:
    """Return the kinds of a switch's objects. ``version``: of those that change pods; the others are of v1."""
    return {
        kind: Kind(GROUP, version if kind.startswith(_SWITCH) else "v1", plural, namespaced=False)
        for kind, plural in _PLURALS.items()
    }


EFFECT_SECONDS = 30.0  # an API server compiles a new policy within a second or two; then each pod sees it
_POLL_SECONDS = 0.5
_COUNTS = range(1, MOST_DEVICES + 1)  # that a template of ours can have


class Choice(Struct, frozen=True):
    """The options of a switch. ``counts``: numbers of devices that get a template even if no pod asks for them now."""

    classes: Mapping[str, str]  # resource -> DeviceClass
    counts: frozenset[int] = frozenset()
    percent: int | None = None
    selector: str = ""


class Switched(Struct, frozen=True):
    """One switched namespace: its templates, the percentage of owners, and the selector of pods."""

    namespace: str
    templates: tuple[str, ...]
    percent: int
    selector: str


class State(Struct, frozen=True):
    """What is switched in a cluster, and which resources with which DeviceClass."""

    classes: Mapping[str, str]
    namespaces: tuple[Switched, ...]


async def state_of(cluster: Cluster) -> State:
    """Read what is switched. Raises ClusterError."""
    kinds = await _policy_kinds(cluster)
    found = await cluster.list(NAMESPACES, label_selector=f"{marks.LABEL}={marks.CLAIMS}")
    return State(await _classes_in_use(cluster, kinds), tuple(_switched(one) for one in found.items))


async def to_claims(cluster: Cluster, namespaces: Sequence[str], choice: Choice, tell: Tell) -> None:
    """Switch namespaces to claims: make templates and policies, set the label, then try a pod in a dry run.

    Raises ConfigError for an invalid choice, ClusterError if the API server fails.
    """
    kinds = await _policy_kinds(cluster)
    version = await served_version(cluster)
    if not version:
        raise ConfigError("this API server serves no claims", hint="Kubernetes 1.34 and later have resource.k8s.io/v1")
    for namespace in namespaces:
        await _namespace(cluster, namespace)
    classes = await _classes(cluster, version, choice, kinds)
    templates = {}
    for namespace in namespaces:
        specs = await _pod_specs(cluster, namespace)
        templates[namespace] = await _make_templates(cluster, version, namespace, specs, classes, choice, tell)
    of_these = _resources({name for names in templates.values() for name in names}, classes)
    wanted = await _classes_in_use(cluster, kinds) | {resource: classes[resource] for resource in of_these}
    for policy in policies(wanted, kinds[_SWITCH].version):  # before labels, so that no labelled namespace lacks them
        await cluster.apply(kinds[policy["kind"]], policy, manager=marks.MANAGER)
    for namespace, names in templates.items():
        await cluster.apply(NAMESPACES, _labelled(namespace, names, choice), manager=marks.MANAGER)
        tell(f"namespace {namespace}: new pods get claims instead of limits")
        await _wait_for_effect(cluster, namespace, of_these, choice, names, tell)


async def to_limits(cluster: Cluster, namespaces: Sequence[str], tell: Tell) -> None:
    """Remove the label, and the policies after the last label. Templates stay: running pods may use them.

    Raises ConfigError for a label that somebody else set, ClusterError if the API server fails.
    """
    kinds = await _policy_kinds(cluster)
    for namespace in namespaces:
        before = await _namespace(cluster, namespace)
        if marks.CLAIMS not in (before["metadata"].get("labels") or {}).get(marks.LABEL, ""):
            tell(f"namespace {namespace}: was not switched")
            continue
        bare = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        after = await cluster.apply(NAMESPACES, bare, manager=marks.MANAGER)
        if marks.LABEL in (after["metadata"].get("labels") or {}):
            raise ConfigError(
                f"the label {marks.LABEL} of namespace {namespace} was set by somebody else",
                hint=f"kubectl label namespace {namespace} {marks.LABEL}-",
            )
        tell(f"namespace {namespace}: new pods keep their limits")
    left = await cluster.list(NAMESPACES, label_selector=f"{marks.LABEL}={marks.CLAIMS}")
    if not left.items:
        for policy in reversed(policies(await _classes_in_use(cluster, kinds))):
            await cluster.delete(kinds[policy["kind"]], policy["metadata"]["name"])
        tell("no namespace is switched any more: the policies are removed")


# --- what is there --------------------------------------------------------------------------------------------------


async def _policy_kinds(cluster: Cluster) -> dict[str, Kind]:
    """Return the kinds of policies as this API server serves them. Raises ConfigError where it has none."""
    version = await policy_version(cluster)
    if not version:
        raise ConfigError(FEATURES[features.POLICIES].sentence, hint="To rewrite them: drabridge migrate convert")
    return policy_kinds(version)


async def _namespace(cluster: Cluster, name: str) -> Json:
    try:
        return await cluster.get(NAMESPACES, name)
    except NotFoundError as error:
        raise ConfigError(f"there is no namespace {name}", hint="kubectl get namespaces lists them") from error


async def _classes_in_use(cluster: Cluster, kinds: Mapping[str, Kind]) -> dict[str, str]:
    try:
        return classes_of(await cluster.get(kinds[_SWITCH], marks.POLICY))
    except NotFoundError:
        return {}


async def _pod_specs(cluster: Cluster, namespace: str) -> list[Json]:
    """Return the pod specs of the namespace: of its pods and of its workloads' templates."""
    specs = [pod["spec"] for pod in (await cluster.list(PODS, namespace=namespace)).items]
    for kind in WORKLOADS.values():
        workloads = (await cluster.list(kind, namespace=namespace)).items
        specs += [maker_of_pods(one["spec"])["template"]["spec"] for one in workloads]
    return specs


async def _classes(cluster: Cluster, version: str, choice: Choice, kinds: Mapping[str, Kind]) -> dict[str, str]:
    """Return resource -> DeviceClass, from the policy, the choice and the DeviceClasses themselves.

    A class names its resource by ``extendedResourceName``.
    """
    there = (await cluster.list(device_classes(version))).items
    before = await _classes_in_use(cluster, kinds)
    for resource, name in choice.classes.items():
        if before.get(resource, name) != name:
            raise ConfigError(
                f"{resource} is switched to DeviceClass {before[resource]} already, and {name} was asked for",
                hint="All namespaces have one class for a resource: switch the others to limits first",
            )
    named = {name: one["metadata"]["name"] for one in there if (name := one["spec"].get("extendedResourceName"))}
    classes = {**named, **before, **choice.classes}
    for resource, name in choice.classes.items():
        if name not in {one["metadata"]["name"] for one in there}:
            raise ConfigError(f"there is no DeviceClass {name} for {resource}", hint="kubectl get deviceclasses")
    return classes


# --- what is made ---------------------------------------------------------------------------------------------------


async def _make_templates(
    cluster: Cluster,
    version: str,
    namespace: str,
    specs: Sequence[Json],
    classes: Mapping[str, str],
    choice: Choice,
    tell: Tell,
) -> tuple[str, ...]:
    """Make a template for every count that the namespace's pods ask for; return the names of all usable templates.

    A resource that no pod asks for gets one only if the choice names it.
    """
    kind = claim_templates(version)
    there = {one["metadata"]["name"]: one for one in (await cluster.list(kind, namespace=namespace)).items}
    bases = {resource: base_of(resource) for resource in classes}
    found = [claims_of_pod(spec, bases) for spec in specs]
    names = {name for name, one in there.items() if _ours(one)}
    for resource, device_class in sorted(classes.items()):
        counts = {count for one in found for count in one.counts(bases[resource])}
        if counts or resource in choice.classes or resource in _resources(names, [resource]):
            counts = counts | choice.counts or {1}
        for count in sorted(counts):
            template = Template(namespace, resource, device_class, count)
            body = template.manifest()
            body["apiVersion"] = f"{kind.group}/{version}"
            body["metadata"]["labels"] = dict(marks.MANAGED_BY)
            names.add(template.name)
            old = there.get(template.name)
            if old is None:
                await cluster.create(kind, body, namespace=namespace)
                tell(f"namespace {namespace}: made ResourceClaimTemplate {template.name}")
            elif (asked := _asked(old)) != (device_class, count):
                raise ConfigError(
                    f"ResourceClaimTemplate {template.name} of namespace {namespace} asks for {asked[1]} of {asked[0]}",
                    hint=f"The switch needs the name for {count} of {device_class}: delete or rename that template",
                )
    if not names:
        hint = "Name one: --class nvidia.com/gpu=gpu.example.com"
        with contextlib.suppress(ClusterError):
            if not await keeps_extended_names(cluster, version):
                hint = f"{hint}; {FEATURES[features.EXTENDED_NAMES].sentence}"
        raise ConfigError(f"no pod of namespace {namespace} asks for a resource whose DeviceClass is known", hint=hint)
    return tuple(sorted(names))


def _resources(templates: Collection[str], resources: Iterable[str]) -> frozenset[str]:
    """Return the resources for which a template with a switch's name exists."""
    named = {one: {Template("", one, "", count).name for count in _COUNTS} for one in resources}
    return frozenset(one for one, names in named.items() if not names.isdisjoint(templates))


def _ours(template: Json) -> bool:
    labels = template["metadata"].get("labels") or {}
    return bool(marks.MANAGED_BY.items() <= labels.items())


def _asked(template: Json) -> tuple[str, int]:
    """Return (DeviceClass, count) of a template that asks for nothing else; ("something else", 0) of another one."""
    requests = template["spec"]["spec"]["devices"].get("requests") or []
    exactly = requests[0].get("exactly") or requests[0] if len(requests) == 1 else {}
    if not exactly or exactly.get("selectors") or exactly.get("adminAccess"):
        return "something else", 0
    return str(exactly.get("deviceClassName")), int(exactly.get("count") or 1)


def _labelled(namespace: str, templates: Sequence[str], choice: Choice) -> Json:
    annotations = {marks.TEMPLATES: ",".join(templates)}
    if choice.percent is not None:
        annotations[marks.PERCENT] = str(choice.percent)
    if choice.selector:
        annotations[marks.SELECTOR] = choice.selector
    metadata = {"name": namespace, "labels": {marks.LABEL: marks.CLAIMS}, "annotations": annotations}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def _switched(namespace: Json) -> Switched:
    meta = namespace["metadata"]
    notes = meta.get("annotations") or {}
    templates = tuple(filter(None, (notes.get(marks.TEMPLATES) or "").split(",")))
    return Switched(meta["name"], templates, marks.percent_of(notes), notes.get(marks.SELECTOR) or "")


# --- whether it works -----------------------------------------------------------------------------------------------


async def _wait_for_effect(
    cluster: Cluster,
    namespace: str,
    resources: Iterable[str],
    choice: Choice,
    templates: Sequence[str],
    tell: Tell,
) -> None:
    """Make dry runs of pods until both policies act. Raises ClusterError if they do not act in time.

    The first policy gives a pod claims, the second refuses one whose template is missing; each needs a second or two.
    If the dry runs are denied or refused, a message says so and nothing fails.
    """
    if choice.percent == 0:
        return
    share = 100 if choice.percent is None else choice.percent
    name = next(name for name in (f"drabridge-probe-{i}" for i in range(10_000)) if bucket(name) < share)
    known = {Template("", resource, "", count).name: (resource, count) for resource in resources for count in _COUNTS}
    there = [known[one] for one in templates if one in known]
    lacking = [one for one in known.values() if one not in there]
    labels = dict(pair.split("=") for pair in choice.selector.split(",") if pair)

    def pod(resource: str, count: int) -> Json:
        container = {"name": "probe", "image": "probe", "resources": {"limits": {resource: str(count)}}}
        metadata = {"name": name, "namespace": namespace, "labels": labels}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}

    deadline = asyncio.get_running_loop().time() + EFFECT_SECONDS
    try:
        while not (
            await _gets_claims(cluster, pod(*there[0]))
            and (not lacking or await _gets_claims(cluster, pod(*lacking[0])) is None)
        ):
            if asyncio.get_running_loop().time() > deadline:
                raise ClusterError(
                    f"pods of namespace {namespace} still keep their limits after {EFFECT_SECONDS:.0f} s",
                    hint=f"kubectl get mutatingadmissionpolicy {marks.POLICY} -o yaml says why under status",
                )
            await asyncio.sleep(_POLL_SECONDS)
    except (DeniedError, InvalidError) as error:
        tell(f"namespace {namespace}: whether the switch works could not be tried: {error.message}")


async def _gets_claims(cluster: Cluster, pod: Json) -> bool | None:
    """Make a dry run of a pod; return whether it gets claims, None if a template is missing. Raises ClusterError."""
    try:
        tried = await cluster.create(PODS, pod, namespace=pod["metadata"]["namespace"], dry_run=True)
    except InvalidError as error:
        if MISSING in error.message:
            return None
        raise
    return bool(tried["spec"].get("resourceClaims"))
