"""What a scenario needs of a cluster with an agent; the configuration and the kinds that all scenarios use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from drabridge.errors import ClusterError
from drabridge.kube.api import Kind
from drabridge.kube.client import KubernetesCluster

Json = dict[str, Any]

DRIVER = "cluster-test.example.com"
RESOURCE = "example.com/cluster-test"
CLASS = "drabridge-cluster-test"
NAMESPACE = "drabridge-test"
AGENT = "drabridge-test"  # the chart's release
MANAGER = "drabridge-cluster-test"  # owns the fields that these tests apply
LANES = f"{DRIVER}/lanes"  # the Node's annotation
POLL_SECONDS = 0.2
CONFIG: Json = {
    "apiVersion": "drabridge/v1alpha1",
    "kind": "AgentConfig",
    "driver": DRIVER,
    "udevEvents": "kernel",
    "safety": {
        "minHoldSeconds": 1,
        "unconfirmedSeconds": 3,  # that kubelet showed a pod is lost when the node dies before the ledger's next commit
        "absentSeconds": 1,
        "settleSeconds": 1,
        "quiesceSeconds": 1,
    },
    "resources": [
        {
            "name": RESOURCE,
            "match": [{"subsystem": "mem", "sysname": ["zero", "null", "full", "random"]}],
            "id": ["{sysname}"],
            "nodes": [{"from": "devnode", "as": "/dev/test-{sysname}"}],
            "env": {"DEVICE": "{sysname}"},
            "lanes": {"legacy": 2, "dra": 2},
            "deviceClass": {"name": CLASS},
        }
    ],
}
DEVICES = 4

NODES = Kind("", "v1", "nodes", namespaced=False)
NAMESPACES = Kind("", "v1", "namespaces", namespaced=False)
PODS = Kind("", "v1", "pods")
EVENTS = Kind("", "v1", "events")
JOBS = Kind("batch", "v1", "jobs")
CLAIMS = Kind("resource.k8s.io", "v1", "resourceclaims")
TEMPLATES = Kind("resource.k8s.io", "v1", "resourceclaimtemplates")
SLICES = Kind("resource.k8s.io", "v1", "resourceslices", namespaced=False)
CLASSES = Kind("resource.k8s.io", "v1", "deviceclasses", namespaced=False)


class Settings(NamedTuple):
    """What a test sets of a cluster: feature gates of all programs, more of the node's kubelet's configuration."""

    gates: Mapping[str, bool] = MappingProxyType({})
    kubelet: Mapping[str, Any] = MappingProxyType({})


class Bed(Protocol):
    """A cluster that is there, and an agent that can be put on one node of it, or one on each."""

    api: KubernetesCluster
    kubeconfig: Path
    """An administrator's."""
    config: Json
    """The agent's."""
    node: str
    """Where scenarios put their pods; "" for any node."""
    node_object: str
    """The Node's name, where ``node`` is its hostname."""
    image: str
    """Has ``sh`` and ``flock``."""
    patience: float
    """Seconds after which something that should happen counts as not happening."""
    workload_kinds: tuple[Kind, ...]
    """What scenarios make, owners before what they own."""

    def each_node(self) -> Sequence[Bed]:
        """Return a bed for each node that has an agent."""
        return (self,)

    async def install(self) -> None:
        """Begin; :meth:`ready` says when it is done."""

    async def ready(self) -> bool:
        """Whether the agent that runs now says so itself."""

    async def not_ready(self) -> str:
        """Why the agent is not ready, in its words; empty where it is, or does not answer."""

    async def kill_agent(self) -> None:
        """As by ``kill -9``; something starts it again. Returns when the killed one is gone."""

    async def upgrade(self) -> None:
        """Replace the running agent by a new one, as a rollout does; returns when the new one is ready."""

    async def restart_kubelet(self) -> None:
        """Skips the test where that is not allowed."""

    async def fault(self, verb: str, part: str) -> None:
        """``start``, ``stop``, ``kill`` or ``restart`` a part: ``kubelet``, ``apiserver``, ``containerd``.

        Skips the test where that is not allowed, or where there is no such part.
        """

    async def configure(self, settings: Settings) -> Settings:
        """Restart what has other settings than these; return those of before. Skips the test where that cannot be."""

    async def reboot(self, *, agent_first: bool) -> None:
        """End everything on the node at once, and begin to start it again. Skips the test where that is not allowed.

        ``agent_first``: the agent is there before kubelet admits its pods again. Where nobody decides that (the agent
        is a pod like its neighbours) it is ignored, and :attr:`decides_order` is false.
        """

    decides_order: bool
    reboot_patience: float
    """Seconds after which a rebooted node counts as lost."""

    async def devices(self, pod: str) -> list[str]:
        """The devices that each start of the pod's containers was given, as they saw them, the newest start last.

        A start that failed, or of which nothing is known any more, is left out.
        """

    @property
    def kubelet_directory(self) -> Path | None:
        """Kubelet's root, as this process can open it; None where the node's files are out of reach."""

    runs_programs: bool
    """Whether containers run what they are told to."""

    async def said(self, pod: str, container: str = "") -> str | None:
        """The log of the pod's container, or of its only one. None where containers run no programs."""

    async def restarted(self, pod: str) -> bool:
        """Whether the pod's container was started more than once."""

    async def force_delete(self, pod: str) -> None:
        """The API server forgets the pod at once, whatever the node does."""

    async def workload_pods(self) -> list[Json]:
        """The pods that scenarios brought: those of the agent are left out."""

    async def uninstall(self) -> None:
        """Returns when the agent is gone."""

    async def left_behind(self) -> list[str]:
        """What is still there of an agent that was uninstalled, beside its ledger."""

    async def files_left(self) -> list[str]:
        """The agent's files on the node, ledger and CDI files included, once it is gone."""

    async def page(self, path: str = "/", host: str = "localhost") -> tuple[int, str]:
        """Status and body of what the agent's port serves to who came by ``kubectl port-forward``."""

    async def drabridge(self, *words: str) -> tuple[int, str]:
        """Exit status and standard output of the command, where the agent runs."""

    async def uninstall_check(self) -> tuple[bool, str]:
        """Whether ``helm uninstall`` would go on, and what its Job says."""

    async def conflicts(self) -> list[str]:
        """Workloads that found their device's lock taken."""

    async def agent_story(self, last: int = 0) -> str:
        """What the agent knows and what it said; ``last``: so many characters of each log, 0: all."""


# --- for people, when a scenario failed -----------------------------------------------------------------------------


async def story(bed: Bed) -> str:
    """Every pod's whole status, all claims, what happened to them, and the agent's log."""
    parts = [
        await _told("pods", _statuses(bed)),
        await _told("claims", _claims(bed)),
        await _told("events", _events(bed)),
        await _told("the agent", bed.agent_story(8000)),
    ]
    return "\n".join(parts)


async def _told(what: str, text: Awaitable[str]) -> str:
    try:
        return f"--- {what}\n{await text}"
    except (ClusterError, OSError, TimeoutError) as error:  # it is part of what went wrong
        return f"--- {what}: cannot be asked: {error}"


async def _statuses(bed: Bed) -> str:
    pods = (await bed.api.list(PODS, namespace=NAMESPACE)).items
    return "\n".join(f"{_title(one)}\n{json.dumps(one.get('status', {}), indent=1)}" for one in pods)


async def _claims(bed: Bed) -> str:
    claims = (await bed.api.list(CLAIMS, namespace=NAMESPACE)).items
    return "\n".join(f"{_title(one)} {json.dumps(one.get('status', {}))}" for one in claims)


def _title(obj: Json) -> str:
    deleted = obj["metadata"].get("deletionTimestamp")
    return f"{obj['metadata']['name']} {obj['metadata']['uid']}{f', being deleted since {deleted}' if deleted else ''}"


async def _events(bed: Bed) -> str:
    events = (await bed.api.list(EVENTS, namespace=NAMESPACE)).items
    return "\n".join(map(_event, sorted(events, key=_when)))


def _when(event: Json) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return str(next((one for one in times if one), ""))


def _event(event: Json) -> str:
    about = event.get("involvedObject", {})
    words = (about.get("kind"), about.get("name"), event.get("reason"), event.get("message"))
    return f"{_when(event)} {' '.join(map(str, words))}"


class ScenarioError(AssertionError):
    """What was not as it should be, with the story."""


async def failed(bed: Bed, what: str) -> ScenarioError:
    """What to raise. Not by ``assert``, which shows ``...`` in place of what is long."""
    return ScenarioError(f"{what}\n{await story(bed)}")


async def wait_for(bed: Bed, what: str, condition: Callable[[], Awaitable[Any]], seconds: float = 0.0) -> Any:
    """The condition's first true value. Fails with ``what`` after so many seconds, or after the bed's patience.

    An API server that is away is as good as a condition that is not true.
    """
    patience = seconds or bed.patience
    deadline = time.monotonic() + patience
    error = ""
    while True:
        try:
            if value := await condition():
                return value
            error = ""
        except ClusterError as problem:
            error = f" ({problem})"
        if time.monotonic() >= deadline:
            raise await failed(bed, f"waited {patience:.0f} s for {what}{error}")
        await asyncio.sleep(POLL_SECONDS)


# --- every scenario begins with the same ----------------------------------------------------------------------------


def expected_lanes(config: Json) -> dict[str, tuple[int, int]]:
    """Devices of each resource for pods with limits and for claims, as the configuration has them at first."""
    return {
        one["name"]: (one["lanes"]["legacy"] + both, one["lanes"]["dra"] + both)
        for one in config["resources"]
        for both in (one["lanes"].get("shared", 0),)
    }


async def lanes(bed: Bed, resource: str = RESOURCE) -> tuple[int, int]:
    """Devices that a pod with limits could get on the node, devices that a claim could get."""
    node = await bed.api.get(NODES, bed.node_object)
    slices = await bed.api.list(SLICES, field_selector=f"spec.driver={DRIVER},spec.nodeName={bed.node_object}")
    published = [
        device
        for one in slices.items
        for device in one["spec"].get("devices") or ()
        if not device.get("taints") and device["attributes"]["resource"] == {"string": resource}
    ]
    return int(node["status"].get("allocatable", {}).get(resource, "0")), len(published)


async def at_the_beginning(bed: Bed) -> None:
    """Wait for a ready agent that offers what the configuration says."""
    await wait_for(bed, "the agent to be ready", bed.ready)
    for node in bed.each_node():
        for resource, wanted in expected_lanes(bed.config).items():

            async def offers(node: Bed = node, resource: str = resource, wanted: tuple[int, int] = wanted) -> bool:
                return await lanes(node, resource) == wanted

            what = f"{resource} to have {wanted} devices in the legacy lane and the other on {node.node_object}"
            await wait_for(bed, what, offers)


async def clear(bed: Bed, *, seconds: float = 0.0) -> None:
    """Take the workloads away while the agent is there, as kubelet needs it for claims, and the Nodes' annotations."""
    for node in bed.each_node():
        await apply_node(node, {})
    for kind in bed.workload_kinds:
        selector = f"app.kubernetes.io/instance!={AGENT}"
        await _delete_all(bed, kind, (await bed.api.list(kind, namespace=NAMESPACE, label_selector=selector)).items)

    async def gone() -> bool:
        pods = await bed.workload_pods()
        await _delete_all(bed, PODS, [one for one in pods if not one["metadata"].get("deletionTimestamp")])
        return not pods

    await wait_for(bed, "the pods to be gone", gone, seconds)
    await _delete_all(bed, TEMPLATES, (await bed.api.list(TEMPLATES, namespace=NAMESPACE)).items)

    async def no_claims() -> bool:
        claims = (await bed.api.list(CLAIMS, namespace=NAMESPACE)).items
        await _delete_all(bed, CLAIMS, [one for one in claims if not one["metadata"].get("deletionTimestamp")])
        return not claims

    await wait_for(bed, "the claims to be gone", no_claims, seconds)


async def apply_node(bed: Bed, annotations: dict[str, str]) -> None:
    """An apply without annotations of an earlier one takes them away."""
    metadata = {"name": bed.node_object, **({"annotations": annotations} if annotations else {})}
    await bed.api.apply(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata}, manager=MANAGER)


async def _delete_all(bed: Bed, kind: Kind, objects: Iterable[Json]) -> None:
    for one in objects:
        with contextlib.suppress(ClusterError):  # another one deletes it as well; who waits will see
            await bed.api.delete(kind, one["metadata"]["name"], namespace=NAMESPACE)
