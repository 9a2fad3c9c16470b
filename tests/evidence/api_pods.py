"""Pods as the API server gives them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from drabridge.ledger.entries import Ledger

GPU, FPGA = "example.com/gpu", "example.com/fpga"


def service_of(ledger: Ledger) -> Any:
    """Stand in for the ledger's service: there is this ledger."""
    return SimpleNamespace(ledger=ledger)


def container(name: str, **limits: int) -> dict[str, Any]:
    names = {"gpu": GPU, "fpga": FPGA, "cpu": "cpu", "huge": "hugepages-2Mi"}
    return {"name": name, "image": "x", "resources": {"limits": {names[k]: str(v) for k, v in limits.items()}}}


def pod(name: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"nodeName": "node-a", "containers": list(containers), "initContainers": list(init)},
        "status": {"phase": "Running", **status},
    }
