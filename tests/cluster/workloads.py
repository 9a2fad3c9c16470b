"""Pods, claims and Jobs of the scenarios. Each container locks its device for its life: exclusively, or shared."""

from __future__ import annotations

import os
from typing import Any

from tests.cluster.bed import CLASS, NAMESPACE, RESOURCE, Json

LOCKS = os.environ.get("DRABRIDGE_TEST_LOCKS", "/tmp/drabridge-cluster-test-locks")
"""A directory of the node. Clusters whose nodes share a machine's /tmp need one each."""
TAKEN = 42  # the exit status of a container that found its device's lock taken
NO_LOCK = 43  # of one that could not try: its image has no flock
NO_DEVICE = 44
UNLOCKED = "-u"  # a mode: takes no lock
SHARED = "shared"
"""Claims whose name begins so are used by several pods at a time, whose locks are therefore shared ones."""
LOOKING = "looking"
"""Claims whose name begins so have admin access: their pods take no lock."""
HAS = "has device "
"""Begins the line that a container writes when it has a device's lock; its name follows."""
CONFLICTS = ".conflicts"
"""The file beside the locks with a line for each that was taken: it is there when the pod is gone."""
READY = "has all it wants"
"""The line after those, and after what else the container says."""
_PROGRAM = """\
number=2
for path in /dev/test-*; do
  [ -e $path ] || {{ echo "no device"; exit {none}; }}
  number=$((number + 1))
  name=${{path#/dev/test-}}
  eval "exec $number>/locks/$name"
  flock -n {mode} $number
  case $? in
  0) ;;
  1) echo "device $name is taken"; echo "$(hostname): device $name was taken" >>/locks/{conflicts}; exit {taken};;
  *) echo "flock does not work here"; exit {no_lock};;
  esac
  echo "{has}$name"
done
{more}
echo "{ready}"
trap 'exit 0' TERM
sleep {seconds} & wait
"""


def meta(name: str, **more: Any) -> Json:
    return {"name": name, "namespace": NAMESPACE, **more}


def container(
    image: str,
    resources: Json,
    *,
    name: str = "main",
    mode: str = "-x",
    seconds: int = 3600,
    then: str = "",
    **more: Any,
) -> Json:
    """Locks its devices and stays; ``then`` is a line of shell that it runs when it has the locks."""
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", program(mode, seconds, then)],
        "resources": resources,
        "volumeMounts": [{"name": "locks", "mountPath": "/locks"}],
        **more,
    }


def program(mode: str = "-x", seconds: int = 3600, then: str = "") -> str:
    return _PROGRAM.format(
        mode=mode,
        seconds=seconds,
        more=then,
        taken=TAKEN,
        no_lock=NO_LOCK,
        none=NO_DEVICE,
        has=HAS,
        conflicts=CONFLICTS,
        ready=READY,
    )


def spec_of(node: str, *containers: Json, **more: Any) -> Json:
    """A pod's spec. Without a node it is for any."""
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
        "tolerations": [{"operator": "Exists"}],
        "containers": list(containers),
        "volumes": [{"name": "locks", "hostPath": {"path": LOCKS, "type": "DirectoryOrCreate"}}],
        **more,
    }


def pod_spec(
    image: str, node: str, resources: Json, *, seconds: int = 3600, mode: str = "-x", then: str = "", **more: Any
) -> Json:
    return spec_of(node, container(image, resources, mode=mode, seconds=seconds, then=then), **more)


def pod(name: str, spec: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta(name), "spec": spec}


def legacy_pod(name: str, image: str, node: str, **more: Any) -> Json:
    return pod(name, pod_spec(image, node, {"limits": {RESOURCE: "1"}}, **more))


def with_claim(image: str, node: str, source: Json, **more: Any) -> Json:
    """The spec of a pod with one claim: ``{resourceClaimName: ...}`` or ``{resourceClaimTemplateName: ...}``."""
    claims = [{"name": "device", **source}]
    return pod_spec(image, node, {"claims": [{"name": "device"}]}, resourceClaims=claims, **more)


def request(name: str = "one", device_class: str = CLASS, **more: Any) -> Json:
    return {"name": name, "exactly": {"deviceClassName": device_class, **more}}


def _devices(requests: tuple[Json, ...], config: tuple[Json, ...]) -> Json:
    return {"devices": {"requests": list(requests) or [request()], **({"config": list(config)} if config else {})}}


def claim(name: str, *requests: Json, config: tuple[Json, ...] = ()) -> Json:
    """For one device of the class, where no requests say otherwise."""
    spec = _devices(requests, config)
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta(name), "spec": spec}


def template(name: str, *requests: Json, config: tuple[Json, ...] = ()) -> Json:
    spec = {"spec": _devices(requests, config)}
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
