"""Say what blocks workloads, or will surprise their owners, when their limits become claims. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from drabridge.migrate.operators import counting_operator
from drabridge.migrate.report.codes import TEXTS, Code
from drabridge.migrate.report.model import Obstacle, number
from drabridge.migrate.report.owners import OwnerChain
from drabridge.migrate.report.tally import WorkloadTally


def obstacle(
    code: Code, object: str, *, namespace: str = "", resource: str = "", seen: str = "", pods: int = 0
) -> Obstacle:
    """Return an obstacle with the words of its code."""
    text = TEXTS[code]
    return Obstacle(code, text.severity, namespace, object, resource, seen, pods, text.why, text.action)


def object_name(chain: OwnerChain) -> str:
    return f"{chain.kind}/{chain.name}"


def workload_obstacles(
    workload: WorkloadTally, free_in_slices: Mapping[str, int], templates: Collection[tuple[str, str]] | None
) -> Iterator[Obstacle]:
    """Yield everything about one workload. ``templates``: (namespace, name) of those there are; None if unread."""
    chain = workload.chain

    def about(code: Code, resource: str = "", seen: str = "", pods: int | None = None) -> Obstacle:
        pods = workload.limit_pods if pods is None else pods
        name = object_name(chain)
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
