"""Objects of the API as JSON: what tenants, other drivers and a lying server can send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from drabridge.config.loader import load
from drabridge.coordinator.pending_claims import waiting_claim
from drabridge.dra import publisher
from drabridge.dra.allocation import allocation_here, allocation_of, devices_on, is_allocated
from drabridge.dra.claim_names import NOMINATED
from drabridge.dra.leases import lease_to
from drabridge.dra.planning import Planner, device_lookup
from drabridge.errors import ClusterError, DrabridgeError
from drabridge.evidence.pod_objects import watched_pod
from drabridge.inventory.devices import Snapshot
from drabridge.kube.access import Access
from drabridge.kube.allocated_claims import in_use
from drabridge.kube.api import PODS, error_of, resource_versions
from drabridge.kube.claim_hints import HintsFields, read_hints
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.feature_questions import keeps_extended_names, policy_version, slice_features
from drabridge.kube.json_reader import ClaimFields, Json, ObjectView, PodFields, decode
from drabridge.kube.node_annotation import NodeAnnotationWatch
from drabridge.kube.node_labels import labels_of, plan
from drabridge.kube.response import _status, read_event
from drabridge.ledger.entries import ClaimRef
from drabridge.migrate.report import readers
from drabridge.system.untrusted import Unreadable, reading
from tests.fuzz.reader import Form, Read, Reader
from tests.support.dra_node import CONFIG, DRIVER, NODE, gpu

CLAIM = ClaimRef("1c0099f8-be3c-4241-9812-2e22864df819", "default", "c")


@contextmanager
def cluster() -> Iterator[KubernetesCluster]:
    """A client; what the server answers is :attr:`_body`'s to say."""
    found = KubernetesCluster(lambda: Access(""))
    try:
        yield found
    finally:
        found.close()


def answering(client: KubernetesCluster, data: bytes) -> KubernetesCluster:
    client._body = lambda *_: data  # type: ignore[method-assign]
    return client


def of_kind(*views: ObjectView[Any]) -> Callable[[Path], Any]:
    """Return a reader of objects of one kind: each view has it, or says that it is unreadable. None stops a list."""

    @contextmanager
    def begun(root: Path) -> Iterator[Read]:
        with cluster() as client:

            def read(data: bytes) -> None:
                for view in views:
                    with suppress(DrabridgeError), reading("an object"):
                        view(data)
                        json.dumps(repr(view(data)))
                    body = b'{"metadata":{"resourceVersion":"7"},"items":[' + data + b"]}"
                    with suppress(ClusterError):
                        found = answering(client, body)._page(PODS, "/x", {"limit": 3}, view)
                        assert all(len(str(one)) < 10**6 for one in found.unreadable)

            yield read

    return begun


@contextmanager
def claims_whole(root: Path) -> Iterator[Read]:
    """The claim that kubelet wants prepared, and that gets a lease."""
    planner, snapshot = Planner(load(CONFIG), NODE, device_lookup), Snapshot(1, tuple(map(gpu, range(2))))

    def read(data: bytes) -> None:
        with suppress(DrabridgeError, ValueError):
            claim = decode(data)
            if isinstance(claim, dict):
                with suppress(DrabridgeError), reading("a claim"):
                    is_allocated(CLAIM, claim)
                with suppress(DrabridgeError), reading("a claim"):
                    lease_to(claim, DRIVER, NODE)
                planner.plan(allocation_of(CLAIM, claim, DRIVER), snapshot)

    yield read


@contextmanager
def events(root: Path) -> Iterator[Read]:
    """A line of a watch. What it raises ends the watch, which begins again: see ``WatchStream.run``."""
    view = ObjectView(watched_pod, PodFields)

    def read(data: bytes) -> None:
        with suppress(DrabridgeError), reading("a line"):
            found = read_event("/x", view, Unreadable("pods"), data)
            assert found.object is not None or found.type == "BOOKMARK" or found.identity.uid

    yield read


@contextmanager
def lists(root: Path) -> Iterator[Read]:
    """A whole answer to a LIST."""
    with cluster() as client:

        def read(data: bytes) -> None:
            with suppress(ClusterError):
                answering(client, data)._page(PODS, "/x", {"limit": 3}, ObjectView(watched_pod, PodFields))

        yield read


@contextmanager
def discovery(root: Path) -> Iterator[Read]:
    """What a server says of itself, to dry runs, and when it refuses."""
    with cluster() as client, asyncio.Runner() as runner:

        def read(data: bytes) -> None:
            asked = answering(client, data)
            for question in (
                resource_versions(asked),
                policy_version(asked),
                keeps_extended_names(asked, "v1"),
                slice_features(asked, "v1", DRIVER, NODE, NODE),
                slice_features(asked, "v1beta1", DRIVER, NODE, NODE),
            ):
                with suppress(ClusterError):
                    runner.run(question)
            for code in (404, 409, 500):
                str(error_of(code, "refused", _status(data)))

        yield read


def _allocated(read: Callable[[Json], Any]) -> ObjectView[Any]:
    return ObjectView(read, ClaimFields)


def _labelled(node: Json) -> Any:
    return plan(labels_of(node), {"nvidia.com/gpu.count": "1"}, "drabridge")


def _annotated() -> ObjectView[Any]:
    with cluster() as client:
        return NodeAnnotationWatch(client, NODE, DRIVER, lambda value: None).view


PODS_VIEWS = (ObjectView(watched_pod, PodFields), NOMINATED, readers.POD)
CLAIM_VIEWS = (
    _allocated(lambda one: allocation_here(one, DRIVER, NODE)),
    _allocated(lambda one: in_use(one, DRIVER, {})),
    ObjectView(lambda one: devices_on(one, DRIVER, NODE), ClaimFields),
    ObjectView(lambda one: waiting_claim(one, DRIVER), ClaimFields),
    readers.CLAIM,
)
NODE_VIEWS = (_annotated(), ObjectView(_labelled), readers.NODE)
SLICE_VIEWS = (
    publisher.slice_view("v1"),
    publisher.slice_view("v1beta1"),
    readers.SLICE,
)


OTHER_VIEWS: tuple[ObjectView[Any], ...] = (
    ObjectView(read_hints, HintsFields),
    readers.CLASS,
    readers.QUOTA,
    readers.TEMPLATE,
    readers.NAMESPACE,
    *readers.WORKLOAD.values(),
)

READERS = (
    Reader("pods", Form.JSON, "pods", of_kind(*PODS_VIEWS)),
    Reader("claims", Form.JSON, "claims, as lists and watches have them", of_kind(*CLAIM_VIEWS)),
    Reader("claim", Form.JSON, "the claim that is to be prepared", claims_whole),
    Reader("nodes", Form.JSON, "nodes", of_kind(*NODE_VIEWS)),
    Reader("slices", Form.JSON, "slices", of_kind(*SLICE_VIEWS)),
    Reader("objects", Form.JSON, "workloads, classes, quotas, namespaces, hints", of_kind(*OTHER_VIEWS)),
    Reader("lists", Form.JSON, "answers to a LIST", lists),
    Reader("events", Form.JSON, "lines of a watch", events),
    Reader("discovery", Form.JSON, "what an API server says of itself", discovery),
)  # fmt: skip
