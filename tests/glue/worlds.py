"""What the nodes of the stories have: plain devices, wholes and parts, shares; lanes, leases and a coordinator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from drabridge.inventory.devices import Device

DRIVER, NODE, NAMESPACE, CONTROL = "glue.example.com", "node-a", "default", "kube-system"
DEVICE, WHOLE, PART = "example.com/device", "example.com/whole", "example.com/part"
HEAD = f"apiVersion: drabridge/v1alpha1\nkind: AgentConfig\ndriver: {DRIVER}\n"
Lanes = Mapping[str, Any]


class World(Struct, frozen=True):
    """A node and what people do there.

    ``lanes``: what an operator may ask for; first what the configuration has. ``most``: how many devices a pod may ask
    for, which there are in each lane of the first. ``elsewhere``: another node has devices of the driver, too.
    ``groups``: claims are reserved for pod groups as well. ``graces``: seconds that pods may have to end. ``rough``:
    the disk is slow now and then, and another plugin registers a resource.
    """

    name: str
    config: str
    devices: tuple[Device, ...]
    lanes: tuple[Lanes, ...]
    resources: tuple[str, ...] = (DEVICE,)
    most: int = 1
    shareable: bool = False
    admin: bool = False
    coordinator: bool = False
    elsewhere: bool = False
    groups: bool = False
    graces: tuple[int, ...] = (5,)
    rough: bool = False


def _plain(count: int) -> tuple[Device, ...]:
    return tuple(_device(f"d{n}", DEVICE) for n in range(count))


def _device(name: str, resource: str, root: str = "", **more: Any) -> Device:
    return Device(name, name, resource, syspath=f"/sys/devices/{root}/{name}", root=root, **more)


def _resource(name: str, more: str) -> str:
    return f"- name: {name}\n  match: [{{subsystem: mem}}]\n  id: ['{{sysname}}']\n  nodes: []\n  {more}\n"


def _config(*resources: str, head: str = "") -> str:
    return f"{HEAD}{head}resources:\n{''.join(resources)}"


SHARED = World(
    "shared",
    _config(_resource(DEVICE, 'lanes: {shared: "*"}')),
    _plain(3),
    ({"shared": "*"}, {"shared": 2, "dra": 1}, {"legacy": "*"}, {"shared": 1, "legacy": "*"}),
    most=2,
)
LANES = World(
    "lanes",
    _config(_resource(DEVICE, "lanes: {legacy: 2, dra: 2}")),
    _plain(4),
    ({"legacy": 2, "dra": 2}, {"legacy": 1, "dra": "*"}, {"legacy": "*", "dra": 1}),
    most=2,
    rough=True,
)
MIXED = World(
    "mixed",
    _config(_resource(DEVICE, "lanes: {shared: 2, dra: 1}")),
    _plain(4),
    ({"shared": 2, "dra": 1}, {"shared": "*", "dra": 1}, {"legacy": 2, "dra": 2}),
    admin=True,
    elsewhere=True,
    groups=True,
)
COORDINATOR = World(
    "coordinator",
    _config(_resource(DEVICE, 'lanes: {shared: "*"}'), head=f"dra: {{leases: {{coordinator: {CONTROL}}}}}\n"),
    _plain(3),
    ({"shared": "*"}, {"shared": 2, "dra": 1}),
    most=2,
    coordinator=True,
    elsewhere=True,
    groups=True,
)
PARTS = World(
    "parts",
    _config(
        _resource(WHOLE, "lanes: {legacy: 1, dra: 1}"),
        _resource(PART, f"partition: {{of: {WHOLE}, by: parent}}"),
    ),
    (
        *(_device(whole, WHOLE) for whole in ("w0", "w1")),
        *(_device(f"{whole}-{part}", PART, whole) for whole in ("w0", "w1") for part in "ab"),
    ),
    ({"legacy": 1, "dra": 1}, {"legacy": 2, "dra": 0}, {"legacy": 0, "dra": 2}),
    resources=(WHOLE, PART),
    rough=True,
)
SHARES = World(
    "shares",
    _config(
        _resource(
            DEVICE,
            'lanes: {shared: "*"}\n'
            "  replicas: {count: 2, maxPerRequest: 1}\n"
            "  sharing: {allowMultipleAllocations: true}\n"
            "  capacity: {shares: {value: 2, requestPolicy: {default: 1, validRange: {min: 1, max: 1}}}}",
        )
    ),
    tuple(_device(f"d{n}", DEVICE, replicas=2, capacity={"shares": 2}) for n in range(2)),
    ({"shared": "*"}, {"legacy": 1, "dra": 1}),
    shareable=True,
    graces=(1, 5, 60),
)
WORLDS = (SHARED, LANES, MIXED, COORDINATOR, PARTS, SHARES)
