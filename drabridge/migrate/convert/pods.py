"""Plan how one pod spec goes from limits to claims: the operations, and the templates that it needs.

A container that asks for devices gets a claim of its own for each resource, so that no two containers share a device.
Init containers reuse the devices of the app containers, as with a device plugin: a claim is held for the pod's whole
life, so a claim of their own would be unused later. Sidecars run beside the app containers and get claims of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, count

from msgspec import Struct, field

from drabridge.migrate.convert.kinds import MODELS, Form, Manifest, PodSpec
from drabridge.migrate.convert.settings import PROFILES, Settings, Term, cel
from drabridge.migrate.convert.splice import Add, Append, Operation, Remove
from drabridge.migrate.convert.templates import MOST_DEVICES, Template, request_name, slug
from drabridge.migrate.convert.yaml_nodes import Leaf, Value, at, text_at
from drabridge.yaml_reader import Path

_CLAIM_NAME_MAX = 63
# Where a pod's containers are, and their role; a place may hold one container or a list of them.
_PLACES: Mapping[Form, tuple[tuple[Path, str], ...]] = {
    Form.POD: ((("initContainers",), "init"), (("containers",), "app")),
    Form.ARGO: (
        (("initContainers",), "init"),
        (("container",), "app"),
        (("script",), "app"),
        (("containerSet", "containers"), "app"),
        (("sidecars",), "sidecar"),
    ),
    Form.MODEL: (
        (("initContainers",), "init"),
        *(((model,), "app") for model in MODELS),
        (("containers",), "app"),
    ),
    Form.VM: ((("domain", "devices", "gpus"), "device"), (("domain", "devices", "hostDevices"), "device")),
    Form.NIM: (((), "app"),),
    Form.VALUES: (),
    Form.OLLAMA: (),
}
_DEVICE_NAME = "deviceName"
_NIM_CLAIMS = "draResources"
_PATCH = "podSpecPatch"
_SECTIONS = ("limits", "requests")
# Parts of a device, as schedulers that share GPUs name them: HAMi (pkg/device of its source), Volcano's vGPU, Aliyun's
# and Tencent's GPU sharing. Their plugins enforce them; a claim's device has no such limit.
PART = re.compile(
    r"nvidia\.com/(?:gpumem(?:-percentage)?|gpucores|priority)|volcano\.sh/v?gpu-(?:memory(?:-percentage)?|cores)"
    r"|[^/]+/(?:[-\w.]*[-._])?(?:v?gpu-?mem(?:ory)?|gpu-core(?:\.percentage)?|vmemory|vcores?|dcu(?:mem|cores)|"
    r"sgpu-(?:memory|core)|vcuda-(?:memory|core)|smlu\.(?:vmemory|vcore))|huawei\.com/Ascend[\w-]*-memory"
)
_SELECTOR = ("nodeSelector",)
_NODE_AFFINITY = ("affinity", "nodeAffinity")
_TERMS = (*_NODE_AFFINITY, "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")


class RefusedError(Exception):
    """This pod spec cannot be converted. ``path`` is the place within it."""

    def __init__(self, path: Path, message: str, hint: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.hint = hint


class Remark(Struct, frozen=True):
    """A remark on a converted pod spec."""

    path: Path
    message: str
    hint: str = ""


class PodPlan(Struct):
    """What to do with one pod spec; all paths begin at the spec."""

    operations: list[Operation] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


class ConvertedPod(Struct, frozen=True):
    """One pod spec that is converted: whose it is, and what changes, with paths from the object."""

    line: int  # of the object
    manifest: Manifest
    operations: tuple[Operation, ...]
    templates: tuple[Template, ...]
    copies: int  # how many such pods there are, if the keys around it say so


class _Container(Struct):
    path: Path
    name: str
    role: str  # app, init or sidecar; device: of a virtual machine
    counts: dict[str, int]  # resource -> devices; never 0


class _Claim(Struct):
    name: str
    resource: str
    count: int


_PLAIN = PodSpec(())


def plan_pod(spec: Value, namespace: str, settings: Settings, found: PodSpec = _PLAIN) -> PodPlan | None:
    """Return the plan of one pod spec; None if it asks for none of the resources. Raises RefusedError."""
    form = found.form
    if form is Form.OLLAMA:
        return _plan_ollama(spec, settings)
    places = found.containers or _PLACES[form]
    containers = [one for one in _containers(spec, settings, places) if one.counts]
    if not containers:
        return None
    if at(spec, ("nodeName",)) is not None:
        raise RefusedError(
            ("nodeName",),
            "the pod names its node, so no scheduler allocates its claims",
            "use a nodeSelector on kubernetes.io/hostname instead",
        )
    for container in containers:
        _refuse_shares(container, settings)
        _refuse_parts(at(spec, container.path), container.path)
    plan = PodPlan()
    if (scheduler := text_at(spec, "schedulerName")) not in ("", "default-scheduler"):
        message = f"the scheduler {scheduler} must allocate its claims"
        plan.remarks.append(Remark(("schedulerName",), message, "see that it knows ResourceClaims, and has them on"))
    claims, uses = _claims(spec, containers, plan)
    for container in containers:
        plan.operations += _container_operations(spec, container, uses[container.path], form)
    selectors = _selectors(spec, {claim.resource for claim in claims}, settings, plan)
    entries: list[Value] = []
    for claim in claims:
        device = settings.devices[claim.resource]
        if device.claims_share and claim.count > 1:
            message = f"the {claim.count} devices of claim {claim.name} may be {claim.count} times the same one"
            plan.remarks.append(Remark((), message, "claims share these devices, so one may be given several times"))
        chosen = (*device.selectors, *selectors.get(claim.resource, ()))
        template = Template(namespace, claim.resource, device.device_class, claim.count, chosen)
        plan.templates.append(template)
        entries.append({"name": claim.name, "resourceClaimTemplateName": template.name})
    if form is Form.ARGO:
        if at(spec, (_PATCH,)) is not None:
            raise RefusedError((_PATCH,), "it has a podSpecPatch already", "write resourceClaims into it by hand")
        plan.operations.append(Add((), _PATCH, json.dumps({"resourceClaims": entries})))
    elif form is Form.NIM:
        names: list[Value] = [{"resourceClaimTemplateName": template.name} for template in plan.templates]
        plan.operations += _put(spec, (), _NIM_CLAIMS, names)
    else:
        plan.operations += _put(spec, found.claims, "resourceClaims", entries)
    return plan


def _plan_ollama(gpu: Value, settings: Settings) -> PodPlan | None:
    """Return the plan of ollama's values: ``draEnabled`` lets the chart make the claim, of ``draDriverClass``."""
    resource = text_at(gpu, "nvidiaResource") or "nvidia.com/gpu"
    if text_at(gpu, "type") == "amd":
        resource = "amd.com/gpu"
    device = settings.devices.get(resource)
    if device is None or text_at(gpu, "enabled") != "true" or text_at(gpu, "draEnabled") == "true":
        return None
    taken = next((key for key in ("mig", "draEnabled", "draDriverClass") if at(gpu, (key,)) is not None), None)
    if taken is not None or device.selectors or device.shares > 1 or device.claims_share:
        message = f"the chart's claim has a class and a number alone, and there is {taken or 'more to select'}"
        raise RefusedError((taken,) if taken else (), message, "set draEnabled and draDriverClass by hand")
    yes = Leaf("true", plain=True)
    return PodPlan([Add((), "draDriverClass", device.device_class), Add((), "draEnabled", yes)])


# --- who needs what -------------------------------------------------------------------------------------------------


def _containers(spec: Value, settings: Settings, places: Iterable[tuple[Path, str]]) -> Iterator[_Container]:
    for place, role in places:
        found = at(spec, place)
        listed = [((*place, number), body) for number, body in enumerate(found)] if isinstance(found, list) else []
        for path, body in [(place, found)] if isinstance(found, dict) else listed:
            restarts = role == "init" and text_at(body, "restartPolicy") == "Always"
            if role == "device":
                counts = {name: int(text_at(body, _DEVICE_NAME) == name) for name in settings.devices}
            else:
                counts = {name: _count(body, path, name) for name in settings.devices}
            wanted = {resource: number for resource, number in counts.items() if number}
            name = text_at(body, "name") or str(path[-1] if path else "main")
            yield _Container(path, name, "sidecar" if restarts else role, wanted)


def _count(container: Value, path: Path, resource: str) -> int:
    """Return how many devices a container asks for."""
    said: dict[str, int] = {}
    for section in _SECTIONS:
        place: Path = ("resources", section, resource)
        found = at(container, place)
        if found is None:
            continue
        text = found.text.strip() if isinstance(found, Leaf) else ""
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise RefusedError(
                (*path, *place),
                f"{resource}: {text or 'not a number'} is no whole number of devices",
                "a claim holds whole devices; for shares of one, publish them with allowMultipleAllocations",
            )
        said[section] = int(text)
    if len(set(said.values())) > 1:
        raise RefusedError(
            (*path, "resources", "requests", resource),
            f"requests say {said['requests']} of {resource}, limits say {said['limits']}",
            "Kubernetes takes such a pod on neither way: make them equal",
        )
    wanted = next(iter(said.values()), 0)
    if wanted > MOST_DEVICES:
        raise RefusedError(
            (*path, "resources", next(iter(said)), resource),
            f"{wanted} of {resource}; one claim holds at most {MOST_DEVICES} devices",
            "write several claims by hand",
        )
    return wanted


def _refuse_shares(container: _Container, settings: Settings) -> None:
    """Raise RefusedError if a container has a share of a device, and a claim would take the whole device."""
    for resource in container.counts:
        device = settings.devices[resource]
        if device.shares > 1 and not device.claims_share:
            raise RefusedError(
                (*container.path, "resources"),
                f"{resource} counts shares, {device.shares} of each device, and a claim would take the whole one",
                "set sharing.allowMultipleAllocations for it in the agent's configuration, or leave it on limits",
            )


def _refuse_parts(container: Value | None, path: Path) -> None:
    """Raise RefusedError where a container asks for a part of a device, as HAMi's resources do."""
    for section in _SECTIONS:
        found = at(container, ("resources", section))
        for name in found if isinstance(found, dict) else ():
            if PART.fullmatch(name):
                raise RefusedError(
                    (*path, "resources", section, name),
                    f"{name} asks for a part of a device, and nobody would enforce it for a claim",
                    "leave the pod on limits, with the scheduler and the plugin that know this name",
                )


def _claims(spec: Value, containers: list[_Container], plan: PodPlan) -> tuple[list[_Claim], dict[Path, list[_Claim]]]:
    """Return the pod's claims, and for each container those that it uses."""
    claims: list[_Claim] = []
    uses: dict[Path, list[_Claim]] = {container.path: [] for container in containers}
    namer = _Namer(spec, containers)
    for resource in dict.fromkeys(name for container in containers for name in container.counts):
        shared: list[_Claim] = []  # claims that init containers may reuse
        for container in sorted(containers, key=lambda one: ("app", "device", "sidecar", "init").index(one.role)):
            wanted = container.counts.get(resource, 0)
            if not wanted:
                continue
            if container.role == "init":
                uses[container.path] += _reused(shared, resource, namer, container, plan, claims)
                continue
            claim = _Claim(namer.name(resource, container), resource, wanted)
            claims.append(claim)
            uses[container.path].append(claim)
            if container.role == "app":
                shared.append(claim)
    for claim in claims:
        if claim.count > MOST_DEVICES:
            raise RefusedError(
                (), f"init containers need {claim.count} of {claim.resource}", "write the claims by hand"
            )
    return claims, uses


def _reused(
    shared: list[_Claim],
    resource: str,
    namer: _Namer,
    container: _Container,
    plan: PodPlan,
    claims: list[_Claim],
) -> list[_Claim]:
    """Return the claims whose devices an init container reuses; the first claim grows if they have too few."""
    wanted = container.counts[resource]
    if not shared:
        shared.append(_Claim(namer.name(resource, container), resource, wanted))
        claims.append(shared[0])
    lacking = wanted - sum(claim.count for claim in shared)
    if lacking > 0:
        shared[0].count += lacking
        message = (
            f"the claim {shared[0].name} has {shared[0].count} devices, as the init container {container.name} needs"
        )
        plan.remarks.append(Remark(container.path, message, "the container that runs after it sees all of them"))
    used: list[_Claim] = []
    for claim in shared:
        if sum(one.count for one in used) < wanted:
            used.append(claim)
    return used


class _Namer:
    """Names a pod's claims: the first by the resource, the others by resource and container."""

    def __init__(self, spec: Value, containers: list[_Container]) -> None:
        there = at(spec, ("resourceClaims",))
        self._taken = {text_at(one, "name") for one in there} if isinstance(there, list) else set()
        words = [request_name(name) for name in dict.fromkeys(name for one in containers for name in one.counts)]
        self._ambiguous = {word for word in words if words.count(word) > 1}

    def name(self, resource: str, container: _Container) -> str:
        word = request_name(resource)
        if word in self._ambiguous:
            word = slug(resource, _CLAIM_NAME_MAX)
        numbered = (f"{word[: _CLAIM_NAME_MAX - 6]}-{number}" for number in count(2))
        names = chain((word, slug(f"{word}-{container.name}", _CLAIM_NAME_MAX)), numbered)
        name = next(name for name in names if name not in self._taken)
        self._taken.add(name)
        return name


# --- what changes ---------------------------------------------------------------------------------------------------


def _container_operations(spec: Value, container: _Container, claims: list[_Claim], form: Form) -> Iterator[Operation]:
    if container.role == "device":
        (claim,) = claims
        yield Remove((*container.path, _DEVICE_NAME))
        yield Add(container.path, "requestName", request_name(claim.resource))
        yield Add(container.path, "claimName", claim.name)
        return
    resources: Path = (*container.path, "resources")
    gone: list[Path] = []
    for section in _SECTIONS:
        found = at(spec, (*resources, section))
        names = [name for name in container.counts if isinstance(found, dict) and name in found]
        if names and isinstance(found, dict) and len(names) == len(found):
            gone.append((*resources, section))
        else:
            gone += [(*resources, section, name) for name in names]
    there = at(spec, resources)
    sections = there if isinstance(there, dict) else ()
    if form is Form.NIM and {path for path in gone if len(path) == 2} == {(*resources, key) for key in sections}:
        yield Remove(("resources",))
        return
    yield from map(Remove, gone)
    if form is not Form.NIM:
        yield from _put(spec, resources, "claims", [{"name": claim.name} for claim in claims])


def _put(spec: Value, path: Path, key: str, items: list[Value]) -> Iterator[Operation]:
    """Yield the operations that bring items into the list at ``path`` and ``key``, which may not be there."""
    there = at(spec, (*path, key))
    if at(spec, path) is None:
        yield Add(path[:-1], str(path[-1]), {key: items})
    elif there is None:
        yield Add(path, key, items)
    elif isinstance(there, list):
        yield from (Append((*path, key), item) for item in items)
    else:
        raise RefusedError((*path, key), f"{key} has no value", "take the line out, or write a list")


# --- which devices will do ------------------------------------------------------------------------------------------


def _selectors(spec: Value, resources: set[str], settings: Settings, plan: PodPlan) -> dict[str, tuple[str, ...]]:
    """Return the CEL selectors of each resource; add to the plan the removal of the node selectors they replace."""
    known = [name for name in sorted(resources) if name in PROFILES]
    published = settings.devices[known[0]].published if len(known) == 1 else None
    found: list[str] = []
    for path, term in _terms(spec):
        if not any(term.label in profile for profile in PROFILES.values()):
            continue
        expression = cel(term, known[0], published) if published is not None else None
        if expression is None or path is None:
            remark = (
                "give the agent's configuration with --config" if published is None else "see that the nodes keep it"
            )
            plan.remarks.append(Remark(path or _TERMS, f"the node label {term.label} is still asked for", remark))
            continue
        plan.operations.append(Remove(path))
        found += [expression] if expression else []
    plan.operations = _emptied(spec, plan.operations)
    return {known[0]: tuple(found)} if found else {}


def _terms(spec: Value) -> Iterator[tuple[Path | None, Term]]:
    """Yield every condition on node labels with its place; place None: it is only one of several alternatives."""
    labels = at(spec, _SELECTOR)
    for label, wanted in labels.items() if isinstance(labels, dict) else ():
        yield (*_SELECTOR, label), Term(label, "In", (wanted.text if isinstance(wanted, Leaf) else "",))
    terms = at(spec, _TERMS)
    for number, term in enumerate(terms if isinstance(terms, list) else []):
        expressions = at(term, ("matchExpressions",))
        for place, one in enumerate(expressions if isinstance(expressions, list) else []):
            values = at(one, ("values",))
            texts = tuple(text.text for text in values if isinstance(text, Leaf)) if isinstance(values, list) else ()
            alone = isinstance(terms, list) and len(terms) == 1
            path = (*_TERMS, number, "matchExpressions", place) if alone else None
            yield path, Term(text_at(one, "key"), text_at(one, "operator"), texts)


def _emptied(spec: Value, operations: Iterable[Operation]) -> list[Operation]:
    """Return operations that remove a mapping or list as a whole if all its items are removed, and so on upwards.

    Only below the selectors: a node affinity without a term matches no node at all.
    """
    kept = [one for one in operations if not (isinstance(one, Remove) and one.path[0] in ("nodeSelector", "affinity"))]
    gone = {one.path for one in operations if isinstance(one, Remove)} - {one.path for one in kept}
    while gone:
        parents = {path[:-1] for path in gone if len(path) > 1}
        whole = {path for path in parents if _size(at(spec, path)) == sum(one[:-1] == path for one in gone)}
        if not whole:
            break
        gone = {path for path in gone if path[:-1] not in whole} | whole
    return [*kept, *(Remove(path) for path in sorted(gone, key=str))]


def _size(value: Value | None) -> int:
    return len(value) if isinstance(value, dict | list) else -1
