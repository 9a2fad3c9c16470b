"""The cluster of docs/migration.md and docs/migration-plan.md: three nodes, four namespaces, no drabridge."""

from __future__ import annotations

from typing import Any

from tests.migrate.cluster_objects import GPU, custom, node, pod, pod_spec, quota, workload

Json = dict[str, Any]


def moved(obj: Json, namespace: str) -> Json:
    """The same object in another namespace."""
    return {
        **obj,
        "metadata": {**obj["metadata"], "namespace": namespace, "uid": f"{namespace}-{obj['metadata']['name']}"},
    }


def example_cluster() -> list[Json]:
    label = {
        "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    }
    chat = moved(workload("Deployment", "chat", replicas=4), "inference")
    chat_set = moved(workload("ReplicaSet", "chat-7f9c", owner=chat), "inference")
    selecting = pod_spec(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    search = moved(workload("StatefulSet", "search", spec=selecting), "search")
    ray = moved(custom("ray.io/v1", "RayCluster", "train"), "research")
    nightly = moved(workload("CronJob", "nightly", spec=pod_spec(2)), "research")
    jobs = moved(custom("jobset.x-k8s.io/v1alpha2", "JobSet", "sweep"), "batch")
    sweep = moved(workload("Job", "sweep-0", owner=jobs, spec=pod_spec(2)), "batch")
    return [
        *(node(f"gpu-{letter}", labels=label) for letter in "abc"),
        chat,
        chat_set,
        *(pod(f"chat-7f9c-{index}", owner=chat_set, namespace="inference", node="gpu-a") for index in range(4)),
        search,
        *(pod(f"search-{index}", owner=search, namespace="search", node="gpu-b", spec=selecting) for index in range(2)),
        *(pod(f"train-{index}", owner=ray, namespace="research", node="gpu-c", spec=pod_spec(4)) for index in range(2)),
        nightly,
        sweep,
        pod("sweep-0-x2k", owner=sweep, namespace="batch", node="gpu-b", spec=pod_spec(2)),
        pod("sweep-0-p7d", owner=sweep, namespace="batch", node=None, spec=pod_spec(2)),
        moved(quota("devices", **{f"requests.{GPU}": "8"}), "research"),
    ]
