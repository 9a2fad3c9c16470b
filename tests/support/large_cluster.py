"""A tiny API server with a large cluster: ``python -m tests.support.large_cluster`` prints its URL and serves.

It makes each page when it is asked for, so that the reader's time is measured and not the simulated server's, which
sorts all objects for each page. Objects are as large as those of clusters: kubelet's and managers' fields fill them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

NODES = 5_000
PODS = 50_000
PODS_PER_WORKLOAD = 20
NAMESPACES = 100
DEVICES_PER_NODE = 8
NODE_BYTES = 12_000  # a node with its image list
POD_BYTES = 5_000
OTHER_BYTES = 2_000
GPU = "nvidia.com/gpu"
CLASS = "gpu.nvidia.com"
Json = dict[str, Any]


def namespace(index: int) -> str:
    return f"team-{index // PODS_PER_WORKLOAD % NAMESPACES:03}"


def meta(name: str, filled_bytes: int, space: str = "", owner: tuple[str, str, str] | None = None) -> Json:
    """Metadata with as many bytes of managed fields; ``owner``: apiVersion, kind and name."""
    found: Json = {"name": name, "uid": f"uid-{name}", "managedFields": [{"manager": "x" * filled_bytes}]}
    if space:
        found["namespace"] = space
    if owner is not None:
        version, kind, of = owner
        found["ownerReferences"] = [
            {"apiVersion": version, "kind": kind, "name": of, "uid": f"uid-{of}", "controller": True}
        ]
    return found


def node(index: int) -> Json:
    amounts = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(DEVICES_PER_NODE // 2)}
    return {
        "metadata": meta(f"node-{index:05}", NODE_BYTES),
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def pod(index: int) -> Json:
    """One of four pods has no device, one a claim, two have limits."""
    made_by = f"rs-{index // PODS_PER_WORKLOAD}"
    spec: Json = {"nodeName": f"node-{index % NODES:05}", "containers": [{"name": "main", "resources": {}}]}
    status: Json = {"phase": "Running"}
    if index // PODS_PER_WORKLOAD % 4 > 1:
        spec["containers"][0]["resources"] = {"limits": {GPU: "1", "cpu": "4"}}
    elif index // PODS_PER_WORKLOAD % 4 == 1:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
        status["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": f"claim-{index}"}]
    owner = ("apps/v1", "ReplicaSet", made_by)
    return {"metadata": meta(f"pod-{index:06}", POD_BYTES, namespace(index), owner), "spec": spec, "status": status}


def claim(index: int) -> Json:
    of = index // PODS_PER_WORKLOAD * 4 * PODS_PER_WORKLOAD + PODS_PER_WORKLOAD + index % PODS_PER_WORKLOAD
    request = {"name": "gpu", "exactly": {"deviceClassName": CLASS, "count": 1}}
    result = {"request": "gpu", "driver": CLASS, "pool": f"node-{of % NODES:05}", "device": "gpu-0"}
    return {
        "metadata": meta(f"claim-{of}", OTHER_BYTES, namespace(of)),
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def workload(prefix: str, owner_prefix: str = "") -> Callable[[int], Json]:
    def make(index: int) -> Json:
        pods = pod(index * PODS_PER_WORKLOAD)
        owner = ("apps/v1", "Deployment", f"{owner_prefix}-{index}") if owner_prefix else None
        spec = {"replicas": PODS_PER_WORKLOAD, "template": {"spec": {**pods["spec"], "nodeName": ""}}}
        space = pods["metadata"]["namespace"]
        return {"metadata": meta(f"{prefix}-{index}", OTHER_BYTES, space, owner), "spec": spec, "status": {}}

    return make


def resource_slice(index: int) -> Json:
    name = f"node-{index:05}"
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": f"gpu-{number}", "attributes": {"uuid": {"string": "x" * 40}}} for number in range(4)]
    spec = {"driver": CLASS, "nodeName": name, "pool": pool, "devices": devices}
    return {"metadata": meta(f"slice-{index}", 500), "spec": spec}


def device_class(index: int) -> Json:
    return {
        "metadata": meta(CLASS, 100),
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{CLASS}"'}}]},
    }


def template(index: int) -> Json:
    return {"metadata": meta("gpu", 500, f"team-{index:03}"), "spec": {}}


WORKLOADS = PODS // PODS_PER_WORKLOAD
LISTS: dict[str, tuple[int, Callable[[int], Json]]] = {
    "nodes": (NODES, node),
    "pods": (PODS, pod),
    "replicasets": (WORKLOADS, workload("rs", "web")),
    "deployments": (WORKLOADS, workload("web")),
    "deviceclasses": (1, device_class),
    "resourceslices": (NODES, resource_slice),
    "resourceclaims": (PODS // 4, claim),
    "resourceclaimtemplates": (NAMESPACES, template),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        body = json.dumps(self._answer(url.path, query), separators=(",", ":")).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str, query: dict[str, str]) -> Json:
        if path == "/version":
            return {"gitVersion": "v1.36.2"}
        if path == "/apis/resource.k8s.io":
            return {"versions": [{"version": "v1"}]}
        if path == "/apis/admissionregistration.k8s.io/v1":
            return {"resources": [{"name": "mutatingadmissionpolicies"}]}
        if path == "/api/v1/namespaces/kube-system":
            return {"metadata": meta("kube-system", 100)}
        count, make = LISTS.get(path.rpartition("/")[2], (0, node))
        first = int(query.get("continue", 0))
        last = min(first + int(query.get("limit", count)), count)
        return {
            "metadata": {"resourceVersion": "1", "continue": str(last) if last < count else ""},
            "items": [make(index) for index in range(first, last)],
        }

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
