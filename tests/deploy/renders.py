"""Values to render the chart with, and how two renders are compared."""

from __future__ import annotations

from typing import Any

from deploy.generate import without_helm
from deploy.helm import manifests
from drabridge.sim.releases import FIRST, NEWEST

Json = dict[str, Any]

VERSIONS = (FIRST, "1.36", NEWEST)
"""Kubernetes releases whose schemas and types the manifests are checked against."""


UDEV: Json = {"config": {"udevEvents": "udev"}}


LEGACY_ONLY: Json = {"config": {"dra": {"enabled": False}}}


EVERYTHING: Json = {
    "config": {
        "udevEvents": "udev",
        "resources": [
            {
                "name": "example.com/kvm",
                "match": [{"subsystem": "misc", "sysname": "kvm"}],
                "lanes": {"legacy": "50%", "dra": "50%"},
                "deviceClass": {"name": "kvm", "extendedResourceName": "example.com/kvm-by-claim"},
            }
        ],
    },
    "image": {"repository": "registry.example.com/drabridge", "digest": "sha256:" + "a" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "extraHostPaths": ["/opt/firmware"],
    "nvml": {"enabled": True, "mig": True},
    "http": {"onNodeAddress": True},
    "serviceAccount": {"annotations": {"a": "b"}},
    "podLabels": {"team": "hardware"},
    "podAnnotations": {"note": "x"},
    "nodeSelector": {"gpu": "yes"},
    "affinity": {"nodeAffinity": {}},
    "migration": {"reportRole": True},
    "capabilities": ["SYS_PTRACE", "SYS_ADMIN"],
    "hostPID": True,
    "seLinuxOptions": {"type": "spc_t"},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
    "maxSurge": "10%",
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}],
    "podSecurityContext": {"supplementalGroups": [44]},
    "securityContext": {"procMount": "Default"},
}


NETWORK_POLICY: Json = {"networkPolicy": {"enabled": True, "scrapers": [{"namespaceSelector": {}}]}}


VARIANTS = {
    "defaults": {},
    "udev": UDEV,
    "legacy only": LEGACY_ONLY,
    "everything": EVERYTHING,
    "network policy": NETWORK_POLICY,
}


def by_identity(objects: list[Json]) -> dict[tuple[str, str], Json]:
    found = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
    assert len(found) == len(objects)
    return found


def default_render() -> list[Json]:
    return [without_helm(obj) for obj in manifests(name="drabridge", namespace="drabridge")]
