"""Define every blocker and trap on the way from limits to claims: its code, why it matters, and what to do.

Each has one row. A blocker makes a pod fail, or bypasses a control of the cluster, once its limits have become claims.
With a trap the pod works, but not as one expects.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """How bad an obstacle is, the worst first."""

    BLOCKER = "blocker"
    TRAP = "trap"


class Code(StrEnum):
    """The names of all rows. Do not change them: programs read them."""

    STATIC_POD = "StaticPod"
    FIXED_NODE_NAME = "FixedNodeName"
    MORE_THAN_32_DEVICES = "MoreThan32Devices"
    OPERATOR_COUNTS_LIMITS = "OperatorCountsLimits"
    QUOTA_COUNTS_LIMITS_ONLY = "QuotaCountsLimitsOnly"
    CLAIM_TEMPLATE_MISSING = "ClaimTemplateMissing"
    SEVERAL_CLASSES_ONE_NAME = "SeveralClassesOneName"
    DRA_NOT_SERVED = "DraNotServed"
    PODS_NOT_READ = "PodsNotRead"
    NOT_READ = "NotRead"
    QUOTA_COUNTS_CLAIMS_ONLY = "QuotaCountsClaimsOnly"
    AUTOSCALER_LABEL = "AutoscalerLabel"
    PRE_START = "PreStart"
    NAME_SET_TOO_EARLY = "NameSetTooEarly"
    TIME_SLICING = "TimeSlicing"
    EXTENDED_RESOURCE_TOLERATION = "ExtendedResourceToleration"
    SURGE_NEEDS_DEVICE = "SurgeNeedsDevice"
    STATEFUL_SET_ROLLS = "StatefulSetRolls"
    JOB_IMMUTABLE = "JobImmutable"
    BARE_POD = "BarePod"
    CUSTOM_OWNER = "CustomOwner"
    KUEUE = "Kueue"
    OTHER_SCHEDULER = "OtherScheduler"
    NO_PREEMPTION = "NoPreemption"
    INIT_CONTAINER = "InitContainer"
    SIDECAR = "Sidecar"
    SEVERAL_CONTAINERS = "SeveralContainers"
    EPHEMERAL_CONTAINER = "EphemeralContainer"
    RUNTIME_CLASS = "RuntimeClass"
    VISIBLE_DEVICES = "VisibleDevices"
    NODE_LABEL_SELECTOR = "NodeLabelSelector"


LEFT_ALONE = (Code.STATIC_POD, Code.FIXED_NODE_NAME, Code.MORE_THAN_32_DEVICES)
"""Obstacles whose pods the switch's policy leaves on limits."""


class CodeText(Struct, frozen=True):
    """The texts of a code: one sentence why it matters, one what to do."""

    severity: Severity
    why: str
    action: str


def _blocker(why: str, action: str) -> CodeText:
    return CodeText(Severity.BLOCKER, why, action)


def _trap(why: str, action: str) -> CodeText:
    return CodeText(Severity.TRAP, why, action)


TEXTS: dict[Code, CodeText] = {
    Code.STATIC_POD: _blocker(
        "kubelet makes a static pod from a file on the node, and a static pod cannot use claims",
        "make it a DaemonSet, or keep a device for limits on its node",
    ),
    Code.FIXED_NODE_NAME: _blocker(
        "spec.nodeName bypasses the scheduler, and only the scheduler allocates claims: such a pod does not start",
        "select the node with a nodeSelector on kubernetes.io/hostname instead",
    ),
    Code.MORE_THAN_32_DEVICES: _blocker(
        "one claim holds at most 32 devices", "split the demand over several claims of the pod"
    ),
    Code.OPERATOR_COUNTS_LIMITS: _blocker(
        "the operator that makes these pods reads device limits, or takes no claims",
        "keep its limits, and let DRA serve them: set extendedResourceName on the DeviceClass, at the end",
    ),
    Code.QUOTA_COUNTS_LIMITS_ONLY: _blocker(
        "the quota counts limits; claims of a class without extendedResourceName escape it",
        "set extendedResourceName on the class, or add a quota on <class>.deviceclass.resource.k8s.io/devices",
    ),
    Code.CLAIM_TEMPLATE_MISSING: _blocker(
        "pods name a ResourceClaimTemplate that their namespace does not have; they stay Pending",
        "create the template in this namespace: templates are per namespace, and must exist before the pods",
    ),
    Code.SEVERAL_CLASSES_ONE_NAME: _blocker(
        "several DeviceClasses have this extendedResourceName, and the scheduler takes only one of them",
        "leave the name on one class",
    ),
    Code.DRA_NOT_SERVED: _blocker(
        "the API server serves no version of resource.k8s.io that is known here",
        "upgrade to Kubernetes 1.34 or later, or switch the API on (--runtime-config) where it is 1.32 or 1.33",
    ),
    Code.PODS_NOT_READ: _blocker(
        "without pods nobody can say who uses devices",
        "get the right, then report again: drabridge migrate report --rbac",
    ),
    Code.NOT_READ: _trap(
        "this part of the cluster could not be read, so what it would tell is missing here",
        "get the right, then report again: drabridge migrate report --rbac",
    ),
    Code.QUOTA_COUNTS_CLAIMS_ONLY: _trap(
        "the quota counts claims; pods with limits of the same devices escape it",
        "add requests.<resource> to the quota, for as long as there are pods with limits",
    ),
    Code.AUTOSCALER_LABEL: _trap(
        "Cluster Autoscaler takes a node with its provider's GPU label and allocatable 0 for unready, and does not "
        "scale such groups from zero",
        "keep one device for limits on each node, or use node groups that the autoscaler knows as DRA",
    ),
    Code.PRE_START: _trap(
        "kubelet 1.36.2 refuses pods served by DRA under an extended resource's name, where a plugin that requires "
        "PreStartContainer has registered it; the API does not say whether it does",
        "ask the plugin's vendor; in drabridge leave out preStart",
    ),
    Code.NAME_SET_TOO_EARLY: _trap(
        "a DeviceClass has this extendedResourceName while kubelet still offers devices of that name: the scheduler "
        "uses no slices for limits on such nodes, and counts pods served by DRA against a later kubelet count",
        "set extendedResourceName when every node's allocatable is 0, and do not go back and forth while it is set",
    ),
    Code.TIME_SLICING: _trap(
        "the plugin offers one device several times (time-slicing replicas); a claim gets a whole device",
        "share it with a driver that publishes allowMultipleAllocations, or claim whole devices",
    ),
    Code.EXTENDED_RESOURCE_TOLERATION: _trap(
        "nodes have a taint with the resource's name; admission (ExtendedResourceToleration) adds the toleration only "
        "to pods with limits",
        "write the toleration into the pods that will use claims",
    ),
    Code.SURGE_NEEDS_DEVICE: _trap(
        "in a rollout the new pod needs a device for claims while the old one holds its own, and too few are free",
        "give claims one device more than the workload has, or use the strategy Recreate",
    ),
    Code.STATEFUL_SET_ROLLS: _trap(
        "a StatefulSet ends a pod before it makes the new one: the device that comes free is one for limits",
        "give claims a device before the rollout, or let each step wait until the device has moved",
    ),
    Code.JOB_IMMUTABLE: _trap(
        "a Job's pod template cannot be changed", "let it finish, and make the next one with claims"
    ),
    Code.BARE_POD: _trap("nothing makes this pod again", "delete it, and create it with claims"),
    Code.CUSTOM_OWNER: _trap(
        "the pod template is in a custom resource; its operator reverts changes of what it made",
        "change the template in the custom resource, and check that its schema keeps resourceClaims",
    ),
    Code.KUEUE: _trap(
        "Kueue counts claims only with a mapping of their DeviceClass",
        "add deviceClassMappings to Kueue's configuration first (0.19 charges both ways to one quota)",
    ),
    Code.OTHER_SCHEDULER: _trap(
        "another scheduler places these pods, and it must know how to allocate claims",
        "try one pod with a claim under this scheduler first",
    ),
    Code.NO_PREEMPTION: _trap(
        "the scheduler evicts nobody for a device of a claim, whatever the priority",
        "keep free devices for what must start at once",
    ),
    Code.INIT_CONTAINER: _trap(
        "containers get an init container's devices again with limits; a claim is held for the pod's whole life",
        "use the same request of the claim in both, or the pod needs more devices than before",
    ),
    Code.SIDECAR: _trap(
        "a sidecar runs beside the containers and needs devices of its own", "give the sidecar its own request"
    ),
    Code.SEVERAL_CONTAINERS: _trap(
        "several containers have limits; with one request in the claim they would share its devices",
        "make one request for each container",
    ),
    Code.EPHEMERAL_CONTAINER: _trap(
        "an ephemeral container has no resources: it gets no devices, neither by limits nor by claims",
        "debug in a container of the pod that has the device",
    ),
    Code.RUNTIME_CLASS: _trap(
        "the runtime class hands out devices by environment variables, beside what a claim gives",
        "leave runtimeClassName out once the pod has a claim: its devices come by CDI",
    ),
    Code.VISIBLE_DEVICES: _trap(
        "NVIDIA_VISIBLE_DEVICES in the pod template chooses devices, beside what a claim gives",
        "remove the variable from the template",
    ),
    Code.NODE_LABEL_SELECTOR: _trap(
        "labels of GPU feature discovery may be gone on nodes without the vendor's plugin",
        "select by the device's attributes in the claim (CEL) instead",
    ),
}


def reference() -> str:
    """Return the table of all codes for ``docs/reference/obstacles.md``, as Markdown."""
    rows = ["| code | severity | why | what to do |", "|---|---|---|---|"]
    for code in Code:
        text = TEXTS[code]
        cells = (f"`{code}`", text.severity, text.why, text.action)
        rows.append(f"| {' | '.join(cell.replace('<', '&lt;') for cell in cells)} |")
    return "\n".join(rows)
