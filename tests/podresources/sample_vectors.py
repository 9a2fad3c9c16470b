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


def joined(expression: str, samples: Vector) -> dict[tuple[str, str, str], float]:
    """``(pod, device, gpu)`` to value."""
    found = {}
    for labels, value in evaluate(parse(expression), samples).items():
        named = dict(labels)
        assert named["namespace"] == "ml"
        found[named["pod"], named["device"], named["gpu"]] = value
    return found
