"""Find what blocks workloads, or will surprise their owners, when limits become claims. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from drabridge.migrate.installers import counting_operator
from drabridge.migrate.report.codes import TEXTS, Code
from drabridge.migrate.report.document import Obstacle, number
from drabridge.migrate.report.readers import ClassFacts, NodeFacts, QuotaFacts, is_extended
from drabridge.migrate.report.tally import ResourceNames, WorkloadTally


def obstacle(
    code: Code, object: str, *, namespace: str = "", resource: str = "", seen: str = "", pods: int = 0
) -> Obstacle:
    """Return an obstacle with the words of its code."""
    text = TEXTS[code]
    return Obstacle(code, text.severity, namespace, object, resource, seen, pods, text.why, text.action)


def workload_obstacles(
    workload: WorkloadTally, free_in_slices: Mapping[str, int], templates: Collection[tuple[str, str]] | None
) -> Iterator[Obstacle]:
    """Yield everything about one workload. ``templates``: (namespace, name) of those there are; None if unread."""
    chain = workload.chain

    def about(code: Code, resource: str = "", seen: str = "", pods: int | None = None) -> Obstacle:
        pods = workload.limit_pods if pods is None else pods
        name = f"{chain.kind}/{chain.name}"
        return obstacle(code, name, namespace=chain.namespace, resource=resource, seen=seen, pods=pods)

    for (code, resource), one in workload.signs.items():
        yield about(code, resource, one.seen, one.pods)
    for name in sorted(workload.templates):
        if templates is not None and (chain.namespace, name) not in templates:
            yield about(Code.CLAIM_TEMPLATE_MISSING, "", f"ResourceClaimTemplate/{name}", workload.total_pods)
    if not workload.has_limits:
        return
    if operator := counting_operator(chain.group, chain.kind):
        yield about(Code.OPERATOR_COUNTS_LIMITS, "", operator.seen)
    elif chain.is_custom:
        yield about(Code.CUSTOM_OWNER, "", " < ".join(reversed(chain.kinds)))
    if chain.kind == "Pod" and (Code.STATIC_POD, "") not in workload.signs:
        yield about(Code.BARE_POD)
    if chain.kind == "Job":
        yield about(Code.JOB_IMMUTABLE)
    if "StatefulSet" in chain.kinds:
        yield about(Code.STATEFUL_SET_ROLLS)
    surge = max((one.surge for one in chain.read if one.kind == "Deployment"), default=0)
    for resource, per_pod in sorted(workload.per_pod.items()):
        free = free_in_slices.get(resource, 0)
        if surge * per_pod > free:
            wanted = f"{number(surge, 'pod')} more at a time, {number(per_pod, 'device')} each"
            seen = f"a rollout makes {wanted}; free for claims: {free}"
            yield about(Code.SURGE_NEEDS_DEVICE, resource, seen)


# --- in nodes, DeviceClasses and quotas -----------------------------------------------------------------------------

# Labels by which Cluster Autoscaler knows GPU nodes: GPULabel in its cloudprovider/{gce,aws,azure,alicloud}.
GPU_LABELS = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "accelerator",
    "kubernetes.azure.com/accelerator",
    "aliyun.accelerator/nvidia_name",
)
AUTOSCALED = "nvidia.com/gpu"  # the resource that the autoscaler looks at (utils/gpu, ResourceNvidiaGPU)
_REQUESTS = "requests."
_CLASS_QUOTA = ".deviceclass.resource.k8s.io/devices"


def node_obstacles(nodes: Sequence[NodeFacts], classes: Sequence[ClassFacts]) -> Iterator[Obstacle]:
    """Yield what nodes show, one obstacle for each resource."""
    by_resource: dict[str, list[NodeFacts]] = {}
    for node in nodes:
        for name, _ in node.allocatable:
            by_resource.setdefault(name, []).append(node)
    named = {one.extended: one.name for one in classes if one.extended}
    for resource, having in sorted(by_resource.items()):
        tainted = [node for node in having if resource in {key for key, _, _ in node.taints}]
        if tainted:
            yield obstacle(
                Code.EXTENDED_RESOURCE_TOLERATION, _nodes(tainted), resource=resource, seen=f"taint {resource}"
            )
        sliced = [node for node in having if _is_sliced(node, resource)]
        if sliced:
            yield obstacle(
                Code.TIME_SLICING, _nodes(sliced), resource=resource, seen=_sliced_words(sliced[0], resource)
            )
        labelled = [node for node in having if _gpu_label(node)] if resource == AUTOSCALED else []
        if labelled:
            empty = [node for node in labelled if not dict(node.allocatable)[resource]]
            seen = f"label {_gpu_label(labelled[0])}; allocatable is 0 on {len(empty)} of {len(labelled)} nodes"
            yield obstacle(Code.AUTOSCALER_LABEL, _nodes(empty or labelled), resource=resource, seen=seen)
        if resource in named:
            name = f"DeviceClass/{named[resource]}"
            offering = [node for node in having if dict(node.allocatable)[resource]]
            yield obstacle(Code.PRE_START, name, resource=resource, seen=f"a plugin has registered on {_nodes(having)}")
            if offering:
                seen = f"kubelet offers it on {_nodes(offering)}"
                yield obstacle(Code.NAME_SET_TOO_EARLY, name, resource=resource, seen=seen)


def class_obstacles(classes: Sequence[ClassFacts]) -> Iterator[Obstacle]:
    """Yield extended resource names that several classes have."""
    by_name: dict[str, list[str]] = {}
    for one in classes:
        if one.extended:
            by_name.setdefault(one.extended, []).append(one.name)
    for resource, names in sorted(by_name.items()):
        if len(names) > 1:
            first, *others = sorted(names)
            seen = f"also on {', '.join(others)}"
            yield obstacle(Code.SEVERAL_CLASSES_ONE_NAME, f"DeviceClass/{first}", resource=resource, seen=seen)


def quota_obstacles(
    quotas: Sequence[QuotaFacts], classes: Sequence[ClassFacts], names: ResourceNames, offered: frozenset[str]
) -> Iterator[Obstacle]:
    """Yield quotas that count one way only. ``offered``: the resources that kubelet knows on some node."""
    extended = {one.extended for one in classes if one.extended}
    limits: dict[str, set[str]] = {}
    claims: dict[str, set[str]] = {}
    for quota in quotas:
        limits.setdefault(quota.namespace, set()).update(limited(quota))
        claims.setdefault(quota.namespace, set()).update(names.of_class(name) for name in _classes(quota))
    for quota in quotas:
        name, namespace = f"ResourceQuota/{quota.name}", quota.namespace
        for resource in limited(quota):
            if resource not in extended and resource not in claims[namespace]:
                code, seen = Code.QUOTA_COUNTS_LIMITS_ONLY, f"{_REQUESTS}{resource}"
                yield obstacle(code, name, namespace=namespace, resource=resource, seen=seen)
        for device_class in _classes(quota):
            resource = names.of_class(device_class)
            if resource in offered and resource not in limits[namespace]:
                code, seen = Code.QUOTA_COUNTS_CLAIMS_ONLY, f"{device_class}{_CLASS_QUOTA}"
                yield obstacle(code, name, namespace=namespace, resource=resource, seen=seen)


def limited(quota: QuotaFacts) -> list[str]:
    """Return the extended resources whose limits a quota counts."""
    keys = (key.removeprefix(_REQUESTS) for key in quota.hard if key.startswith(_REQUESTS))
    return [name for name in keys if is_extended(name)]


def _classes(quota: QuotaFacts) -> list[str]:
    return [key.removesuffix(_CLASS_QUOTA) for key in quota.hard if key.endswith(_CLASS_QUOTA)]


def _nodes(nodes: Sequence[NodeFacts]) -> str:
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"Node/{min(node.name for node in nodes)}{more}"


def _gpu_label(node: NodeFacts) -> str:
    labels = node.labels
    return next((label for label in GPU_LABELS if label in labels), "")


def _is_sliced(node: NodeFacts, resource: str) -> bool:
    """Whether GPU feature discovery, or the resource's own name, says that devices are offered several times."""
    labels = node.labels
    replicas = labels.get(f"{resource}.replicas", "")
    shared = labels.get(f"{resource}.product", "").endswith("-SHARED")
    return (replicas.isdecimal() and int(replicas) > 1) or shared or resource.endswith(".shared")


def _sliced_words(node: NodeFacts, resource: str) -> str:
    replicas = node.labels.get(f"{resource}.replicas")
    return f"label {resource}.replicas={replicas}" if replicas else f"{resource} is shared"
