"""kubectl, and as much of an API server as ``kubectl apply --dry-run=client`` wants: discovery, and no objects.

The kinds are written down here, not read off the manifests: a kind, version or spelling that Kubernetes does not have
finds no resource, as on a real server.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import QuietHandler, served
from tests.support.waiting import HANG_SECONDS

Json = dict[str, Any]
SECONDS = 10 * HANG_SECONDS
CLUSTER, NAMESPACED = False, True
KINDS: dict[str, dict[str, tuple[str, bool]]] = {
    "v1": {
        "ConfigMap": ("configmaps", NAMESPACED),
        "Namespace": ("namespaces", CLUSTER),
        "Service": ("services", NAMESPACED),
        "ServiceAccount": ("serviceaccounts", NAMESPACED),
    },
    "admissionregistration.k8s.io/v1": {
        "ValidatingAdmissionPolicy": ("validatingadmissionpolicies", CLUSTER),
        "ValidatingAdmissionPolicyBinding": ("validatingadmissionpolicybindings", CLUSTER),
    },
    "apps/v1": {"DaemonSet": ("daemonsets", NAMESPACED)},
    "monitoring.coreos.com/v1": {
        "PodMonitor": ("podmonitors", NAMESPACED),
        "PrometheusRule": ("prometheusrules", NAMESPACED),
    },
    "networking.k8s.io/v1": {"NetworkPolicy": ("networkpolicies", NAMESPACED)},
    "rbac.authorization.k8s.io/v1": {
        "ClusterRole": ("clusterroles", CLUSTER),
        "ClusterRoleBinding": ("clusterrolebindings", CLUSTER),
    },
    "resource.k8s.io/v1": {"DeviceClass": ("deviceclasses", CLUSTER)},
}
"""By API group and version; of Kubernetes' API reference, and of the Prometheus operator's."""


class KubectlRefusedError(Exception):
    """kubectl's own words."""


def kubectl(*arguments: str, stdin: str = "") -> str:
    """What it prints. Raises KubectlRefusedError; skips the test where there is no kubectl."""
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("kubectl is not installed here (Debian's package is kubernetes-client)")
    done = subprocess.run(
        [program, *arguments], input=stdin, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode != 0:
        raise KubectlRefusedError(done.stderr)
    return done.stdout


def discovery(path: str) -> Json | None:
    """The document of a path; None where the server has none (every object, for one)."""
    groups = sorted(each.partition("/")[0] for each in KINDS if "/" in each)
    versions = {group: [{"groupVersion": f"{group}/v1", "version": "v1"}] for group in groups}
    found: dict[str, Json] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": group, "versions": versions[group], "preferredVersion": versions[group][0]} for group in groups
            ],
        },
    }
    for version, kinds in KINDS.items():
        found[f"/apis/{version}" if "/" in version else f"/api/{version}"] = {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version,
            "resources": [
                {"name": plural, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "verbs": VERBS}
                for kind, (plural, namespaced) in kinds.items()
            ],
        }
    return found.get(path.partition("?")[0])


VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


class _Handler(QuietHandler):
    def do_GET(self) -> None:
        document = discovery(self.path)
        body = json.dumps(document or NOT_FOUND).encode()
        self.send_response(200 if document else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def empty_cluster() -> AbstractContextManager[str]:
    """The address of a server that knows the kinds and has no object."""
    return served(_Handler)


def applied(manifest: str, address: str, cache: Path) -> list[str]:
    """``kind/name`` of what ``kubectl apply --dry-run=client`` would create. Validation is other tests' business."""
    arguments = (f"--server={address}", f"--cache-dir={cache}", "--kubeconfig=/dev/null")
    out = kubectl(
        "apply", "--dry-run=client", "--validate=false", *arguments, "--output=name", "--filename=-", stdin=manifest
    )
    return out.split()
