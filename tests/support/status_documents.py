"""Status documents made by the agent's own function: a busy node, a node with trouble, many devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from drabridge.inventory.devices import PCI_BUS_ID, Collision, Device, DeviceNode, Presence, Snapshot
from drabridge.ledger.entries import (
    ClaimHold,
    ClaimPhase,
    ClaimRef,
    Entry,
    HeldBecause,
    Hold,
    Lane,
    Ledger,
    LedgerDevice,
    Move,
    MoveStep,
    Owner,
    PodRef,
)
from drabridge.ledger.policy import LedgerPolicy
from drabridge.status.document import (
    AgentInfo,
    Document,
    Findings,
    KubeletConnection,
    NodeDevices,
    RecentRefusal,
    document,
)

GPU = "nvidia.com/gpu"
NOW = 1_795_230_000.0
HOUR = 3600.0


def gpu(number: int, **more: Any) -> Device:
    """One GPU, two to a NUMA node's root."""
    bus = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)[number % 8]
    identity = f"4f1c{number:04x}-91d2-5a07"
    return Device(
        name=f"gpu-{identity}",
        id=f"GPU-{identity}",
        resource=GPU,
        nodes=(DeviceNode(f"/dev/nvidia{number}", f"/dev/nvidia{number}"),),
        numa_nodes=(number // 4 % 2,),
        standard={PCI_BUS_ID: f"0000:{bus:02x}:00.0"},
        **more,
    )


def by_pod(device: Device, pod: str, since: float, **more: Any) -> Entry:
    """Held by a pod that kubelet has shown."""
    namespace, name, container = pod.split("/")
    ref = PodRef(namespace, name, container)
    hold = Hold((device.id,), NOW - since, True, NOW - 4, pods=(ref,), because=HeldBecause.RUNNING)
    return Entry(LedgerDevice.of(device), Owner.LEGACY, Lane.LEGACY, hold=hold, since=NOW - since, **more)


def by_claim(device: Device, claim: str, since: float, phase: ClaimPhase = ClaimPhase.PREPARED) -> Entry:
    """Held by a claim."""
    namespace, name = claim.split("/")
    held = ClaimHold(ClaimRef(f"uid-{name}", namespace, name), phase, NOW - since)
    owner = Owner.DRA_PREPARED if phase is ClaimPhase.PREPARED else Owner.DRA_GRANTED
    return Entry(LedgerDevice.of(device), owner, Lane.DRA, claims=(held,), since=NOW - since)


def free(device: Device, lane: Lane, since: float, because: str = "") -> Entry:
    """Held by nobody."""
    return Entry(LedgerDevice.of(device), lane=lane, since=NOW - since, released_because=because)


def status(
    devices: Sequence[Device],
    entries: Sequence[Entry],
    *,
    not_ready: Sequence[str] = (),
    refusals: Sequence[RecentRefusal] = (),
    notes: Sequence[str] = (),
    collisions: Sequence[Collision] = (),
    endpoints: Sequence[KubeletConnection] = (),
    wanted: Mapping[str, Mapping[str, str]] | None = None,
) -> Document:
    return document(
        AgentInfo("gpu-node-07", "gpu.example.com", "0.1.0", NOW - 12.4 * 24 * HOUR),
        NodeDevices(
            Ledger.of(entries),
            Snapshot(1, tuple(devices), tuple(collisions)),
            LedgerPolicy(),
            desired=wanted or {},
        ),
        Findings(endpoints, not_ready, refusals, notes),
        now=NOW,
    )


def busy() -> Document:
    """Eight GPUs in the middle of a migration: pods, claims, one moving, one faulty, one refusal. All is well."""
    broken = gpu(3, presence=Presence.FAULTY, reason="/dev/nvidia3 does not open: Input/output error")
    gpus = [gpu(0), gpu(1), gpu(2), broken, *map(gpu, range(4, 8))]
    entries = [
        by_pod(gpus[0], "vision/train-resnet-0/worker", 2.2 * 24 * HOUR),
        by_pod(gpus[1], "vision/train-resnet-1/worker", 2.2 * 24 * HOUR),
        by_pod(
            gpus[2],
            "search/embedder-6c9f7-x2x8q/main",
            5.3 * HOUR,
            move=Move(
                Lane.LEGACY, Lane.DRA, MoveStep.WAITING, NOW - 260, NOW - 260, "5 of 8 are wanted in the dra lane"
            ),
        ),
        free(broken, Lane.LEGACY, 1500, "its pod ended"),
        Entry(
            LedgerDevice.of(gpus[4]),
            lane=Lane.LEGACY_TO_DRA,
            move=Move(Lane.LEGACY, Lane.DRA, MoveStep.REVOKING, NOW - 2, NOW - 2),
            since=NOW - 2,
            released_because="its pod ended",
        ),
        by_claim(gpus[5], "chat/llama-shard-a", 9.1 * HOUR),
        by_claim(gpus[6], "chat/llama-shard-b", 95, ClaimPhase.GRANTED),
        free(gpus[7], Lane.DRA, 3.1 * HOUR, "its claim was unprepared"),
    ]
    message = (
        f"{gpus[5].name} is held by claim chat/llama-shard-a since 17:54 UTC; delete the pod, "
        "its replacement gets another device"
    )
    return status(
        gpus,
        entries,
        refusals=[RecentRefusal(NOW - 340, "legacy", gpus[5].name, "held-by-claim", message)],
        notes=["device events: udev"],
        endpoints=[
            KubeletConnection("deviceplugin", GPU, "streaming", True, NOW - 2.2 * 24 * HOUR),
            KubeletConnection("dra", "gpu.example.com", "ready", True, 0),
        ],
        wanted={GPU: {"legacy": "3", "dra": "*", "source": "annotation"}},
    )


def troubled() -> Document:
    """Everything that must be loud at once."""
    gpus = list(map(gpu, range(4)))
    conflict = Hold((gpus[1].id,), NOW - 90, True, NOW - 3, pods=(PodRef("vision", "stray", "main"),))
    claim = ClaimHold(ClaimRef("uid-a", "chat", "llama"), ClaimPhase.PREPARED, NOW - 600)
    entries = [
        Entry(LedgerDevice.of(gpus[0]), Owner.QUARANTINE, Lane.LEGACY, since=NOW - 700),
        Entry(LedgerDevice.of(gpus[1]), Owner.CONFLICT, Lane.DRA, hold=conflict, claims=(claim,), since=NOW - 90),
        free(gpus[2], Lane.LEGACY, 700),
        free(gpus[3], Lane.LEGACY, 700),
    ]
    return status(
        gpus,
        entries,
        not_ready=[f"{GPU}: serving (/var/lib/kubelet/device-plugins/kubelet.sock does not exist)"],
        notes=["kubelet does not tell who holds devices: UNAVAILABLE: connection refused", "device events: udev"],
        collisions=[Collision("gpu-a", GPU, ("/devices/a", "/devices/b"), "Give one of them another id.")],
        endpoints=[KubeletConnection("deviceplugin", GPU, "serving", False, NOW - 61, "kubelet.sock does not exist")],
    )


def many(count: int) -> Document:
    """A node with far more devices than a page can show; every third one is held, one in doubt, one faulty."""
    devices = [gpu(number) for number in range(count - 1)]
    devices.append(gpu(count - 1, presence=Presence.FAULTY, reason="it fell off the bus"))
    entries = [
        by_pod(device, f"team/pod-{number}/main", 60.0 * number) if number % 3 == 0 else free(device, Lane.DRA, 60)
        for number, device in enumerate(devices)
    ]
    entries[count - 2] = Entry(LedgerDevice.of(devices[count - 2]), Owner.QUARANTINE, Lane.LEGACY, since=NOW - 700)
    return status(devices, entries)


HOSTILE = "<script>alert('x')</script>\"'><img src=//evil.example onerror=alert(1)>"


def _poisoned(value: Any) -> Any:
    """Every text of the document is hostile; what the page switches on stays."""
    kept = {"lane", "owner", "presence", "api", "at", "since", "startedAt", "wanted"}
    if isinstance(value, dict):
        return {key: item if key in kept else _poisoned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_poisoned(item) for item in value]
    return HOSTILE if isinstance(value, str) and value else value
