"""A store with a scheduler beside it, without sockets: what scheduling tests need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.store import Store
from drabridge.sim.releases import DEFAULT, RELEASES
from drabridge.sim.scheduler.scheduler import Scheduler, SchedulerTimings

DRIVER = "d.example.com"


def device(name: str, **fields: Any) -> Any:
    """``attributes`` and ``capacity`` in short form: python values, semver as ``v:1.2.3``."""
    body: dict[str, Any] = {"name": name, **fields}
    if "attributes" in body:
        body["attributes"] = {key: _attribute(value) for key, value in body["attributes"].items()}
    if "capacity" in body:
        body["capacity"] = {
            key: value if isinstance(value, dict) else {"value": value} for key, value in body["capacity"].items()
        }
    return body


def _attribute(value: Any) -> Any:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"version": value[2:]} if value.startswith("v:") else {"string": value}


class World:
    """Nodes, classes, slices, claims and pods; ``step`` is one pass of the scheduler."""

    def __init__(
        self,
        *,
        release: str = DEFAULT,
        gates: Mapping[str, bool] | None = None,
        nodes: Iterable[str] = ("node-a",),
    ) -> None:
        merged = RELEASES[release].gates_with(gates)
        self.objects = Objects(Store(), merged, RELEASES[release])
        self.scheduler = Scheduler(self.objects, merged, SchedulerTimings.fast())
        for name in nodes:
            self.objects.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    def device_class(self, name: str = "gpu", *selectors: str, **spec: Any) -> None:
        listed = [{"cel": {"expression": one}} for one in selectors]
        body = {**({"selectors": listed} if listed else {}), **spec}
        self._create("DeviceClass", name, body)

    def slice(self, *devices: Any, name: str = "s0", node: str = "node-a", pool: str = "", **spec: Any) -> None:
        listed = [device(one) if isinstance(one, str) else one for one in devices]
        meta = {"name": pool or node, "generation": 1, "resourceSliceCount": 1, **spec.pop("pool_fields", {})}
        where = {} if {"allNodes", "nodeSelector", "perDeviceNodeSelection"} & spec.keys() else {"nodeName": node}
        body = {"driver": DRIVER, "pool": meta, **where, **spec, **({"devices": listed} if listed else {})}
        self._create("ResourceSlice", name, body)

    def claim(self, name: str = "c", *requests: Any, constraints: Any = (), config: Any = (), **exactly: Any) -> None:
        listed = list(requests) or [{"name": "r", "exactly": {"deviceClassName": "gpu", **exactly}}]
        spec = {"requests": listed, "constraints": list(constraints), "config": list(config)}
        self._create("ResourceClaim", name, {"devices": spec})

    def template(self, name: str, *requests: Any) -> None:
        self._create("ResourceClaimTemplate", name, {"spec": {"devices": {"requests": list(requests)}}})

    def pod(
        self, name: str, *claims: str, limits: Mapping[str, Any] | None = None, template: str = "", **spec: Any
    ) -> None:
        """Each claim by name; ``template`` makes one claim ``g`` from a template."""
        entries = [{"name": one, "resourceClaimName": one} for one in claims]
        if template:
            entries.append({"name": "g", "resourceClaimTemplateName": template})
        container: dict[str, Any] = {"name": "c", "resources": {"limits": dict(limits)} if limits else {}}
        spec = {"containers": [container], **({"resourceClaims": entries} if entries else {}), **spec}
        self.objects.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def _create(self, kind: str, name: str, spec: Any) -> None:
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.objects.create(body)

    def step(self) -> None:
        self.scheduler.step()

    def get(self, plural: str, name: str) -> Any:
        return self.objects.get(plural, name, "default")

    def node_of(self, pod: str) -> str:
        return str(self.get("pods", pod)["spec"].get("nodeName", ""))

    def results(self, claim: str = "c") -> list[Any]:
        status = self.get("resourceclaims", claim)["status"]
        return list(status.get("allocation", {}).get("devices", {}).get("results", []))

    def devices(self, claim: str = "c") -> list[str]:
        return [one["device"] for one in self.results(claim)]

    def why(self, pod: str) -> str:
        """Message of the pod's PodScheduled condition."""
        conditions = self.get("pods", pod)["status"].get("conditions", [])
        return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")

    def end(self, pod: str, phase: str = "Succeeded") -> None:
        self.objects.modify(
            "pods", pod, lambda o: o["status"].update(phase=phase), namespace="default", subresource="status"
        )

    def allocatable(self, node: str = "node-a", **amounts: str) -> None:
        """``example_com__gpu="2"`` stands for ``example.com/gpu``."""
        listed = {key.replace("__", "/").replace("_", "."): value for key, value in amounts.items()}
        self.objects.modify(
            "nodes", node, lambda o: o.update(status={"capacity": listed, "allocatable": listed}), subresource="status"
        )
        self.scheduler.see_node(self.objects.get("nodes", node))
