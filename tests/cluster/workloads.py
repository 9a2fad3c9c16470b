"""Pods, claims and Jobs of the scenarios. Each container locks its device for its life: exclusively, or shared."""

from __future__ import annotations

from typing import Any

from tests.cluster.bed import CLASS, NAMESPACE, RESOURCE, Json

LOCKS = "/tmp/drabridge-cluster-test-locks"
TAKEN = 42  # the exit status of a container that found its device's lock taken
NO_LOCK = 43  # of one that could not try: its image has no flock
SHARED = "shared"
"""Claims whose name begins so are used by several pods at a time, whose locks are therefore shared ones."""
HAS = "has device "
"""Begins the line that a container writes when it has its lock; the device's name follows."""
_PROGRAM = """\
exec 9>/locks/${{DEVICE:?no device in the environment}}
flock -n {mode} 9
case $? in
0) ;;
1) echo "device $DEVICE is taken"; exit {taken};;
*) echo "flock does not work here"; exit {no_lock};;
esac
echo "{has}$DEVICE"
trap 'exit 0' TERM
sleep {seconds} & wait
"""


def meta(name: str, **more: Any) -> Json:
    return {"name": name, "namespace": NAMESPACE, **more}


def pod_spec(image: str, node: str, resources: Json, *, seconds: int = 3600, mode: str = "-x", **more: Any) -> Json:
    program = _PROGRAM.format(mode=mode, taken=TAKEN, no_lock=NO_LOCK, seconds=seconds, has=HAS)
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", program],
        "resources": resources,
        "volumeMounts": [{"name": "locks", "mountPath": "/locks"}],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "locks", "hostPath": {"path": LOCKS, "type": "DirectoryOrCreate"}}],
        **more,
    }


def pod(name: str, spec: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta(name), "spec": spec}


def legacy_pod(name: str, image: str, node: str, **more: Any) -> Json:
    return pod(name, pod_spec(image, node, {"limits": {RESOURCE: "1"}}, **more))


def with_claim(image: str, node: str, source: Json, **more: Any) -> Json:
    """The spec of a pod with one claim: ``{resourceClaimName: ...}`` or ``{resourceClaimTemplateName: ...}``."""
    claims = [{"name": "device", **source}]
    return pod_spec(image, node, {"claims": [{"name": "device"}]}, resourceClaims=claims, **more)


def _request() -> Json:
    return {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": CLASS}}]}}


def claim(name: str) -> Json:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta(name), "spec": _request()}


def template(name: str) -> Json:
    spec = {"spec": _request()}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": meta(name), "spec": spec}


def job(name: str, spec: Json, *, parallelism: int, completions: int) -> Json:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta(name),
        "spec": {
            "parallelism": parallelism,
            "completions": completions,
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"job": name}}, "spec": spec},
        },
    }
