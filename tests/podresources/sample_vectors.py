"""Samples of the exporter and of DCGM, and what an expression of a dashboard makes of them."""

from __future__ import annotations

from tests.support.promql import Vector, evaluate, parse


def series(name: str, value: float, **labels: str) -> Vector:
    return {frozenset({"__name__": name, **labels}.items()): value}


def held(pod_name: str, device_id: str, **labels: str) -> Vector:
    holder = {"namespace": "ml", "pod": pod_name, "container": "main", "instance": "n1"}
    return series("podresources_device_allocation_info", 1, api="deviceplugin", device=device_id, **holder, **labels)


GPU0, GPU1 = "GPU-5f9a3c1e-0000-4000-8000-00000000000a", "GPU-5f9a3c1e-0000-4000-8000-00000000000b"


DCGM = series("DCGM_FI_DEV_GPU_UTIL", 80, UUID=GPU0, gpu="0", modelName="H200", pod="odd-label-of-dcgm") | series(
    "DCGM_FI_DEV_GPU_UTIL", 15, UUID=GPU1, gpu="1", modelName="H200"
)


def resolved(pod_name: str, **labels: str) -> Vector:
    """One series of ``podresources_device_resolved_info``."""
    holder = {"namespace": "ml", "pod": pod_name, "container": "main", "instance": "n1"}
    return series("podresources_device_resolved_info", 1, **holder, **labels)


AMD = {
    labels: value
    for partition, value in (("0", 61.0), ("1", 12.0))
    for labels, value in series(
        "gpu_gfx_activity",
        value,
        gpu_id=partition,
        gpu_partition_id=partition,
        serial_number="692409005408",
        card_model="102-G30211-0C",
        pod="of-amd",
    ).items()
}

INTEL = (
    series("hw_gpu_utilization_ratio", 0.52, pci_bdf="0000:83:00.0", node="n1", hw_gpu_task="all")
    | series("hw_gpu_utilization_ratio", 0.9, pci_bdf="0000:83:00.0", node="n1", hw_gpu_task="copy-all")
    | series("hw_gpu_utilization_ratio", 0.07, pci_bdf="0000:83:00.0", node="n2", hw_gpu_task="all")
)

KUBE_POD_INFO = series(
    "kube_pod_info", 1, namespace="ml", pod="web-0", uid="u-2", created_by_kind="StatefulSet", created_by_name="web"
) | series("kube_pod_info", 1, namespace="ml", pod="old-0", uid="u-1", created_by_kind="Job", created_by_name="x")


DCGM_MIG = (
    series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.8, UUID=GPU0, gpu="0", modelName="H200")
    | series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.25, UUID=GPU1, gpu="1", GPU_I_ID="5", GPU_I_PROFILE="1g.18gb")
    | series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.9, UUID=GPU1, gpu="1", GPU_I_ID="6", GPU_I_PROFILE="1g.18gb")
)


def joined(expression: str, samples: Vector) -> dict[tuple[str, str, str], float]:
    """``(pod, device, gpu)`` to value."""
    found = {}
    for labels, value in evaluate(parse(expression), samples).items():
        named = dict(labels)
        assert named["namespace"] == "ml"
        found[named["pod"], named["device"], named["gpu"]] = value
    return found
