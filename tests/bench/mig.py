"""A MIG server that somebody divides anew: from what NVML says to the lists for kubelet and the API server.

Everything between is measured but the disk: instances as devices, names of resources, devices, the ledger's steps, the
lists of all resources as they go on the wire, and the slices.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from pathlib import Path

from deviceplugin.wire import v1beta1_pb2 as wire
from drabridge.config.loader import load
from drabridge.inventory.nvidia import MigInstance
from drabridge.ledger.events import Forgotten
from drabridge.offers.device_list import legacy_list
from drabridge.offers.pool import pool_of
from drabridge.offers.slices import desired_slices
from tests.bench.core import Benchmark
from tests.support.inventory_and_ledger import Machine
from tests.support.machines import gpu_address
from tests.support.mig import MIG_UUID, facts, gpu, instance, nodes

GPUS, INSTANCES, ROUNDS = 8, 7, 20
EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "nvidia-mig.yaml"


def _divided(turn: int) -> tuple[MigInstance, ...]:
    """All instances of the server, made anew: no UUID is one of before."""
    return tuple(
        instance(index, 1 + number, uuid=MIG_UUID.format(index, turn * 100 + number), start=number)
        for index in range(GPUS)
        for number in range(INSTANCES)
    )


def mig_8x7_list_ms() -> float:
    """The median over several divisions of the whole server, half of whose GPUs are for claims."""
    machine = Machine(load(EXAMPLE), nodes(_divided(0), GPUS))
    gpus = [gpu(index) for index in range(GPUS)]
    machine.nvidia = facts((), GPUS)
    for_claims = {gpu_address(index) for index in range(0, GPUS, 2)}
    machine.see(*gpus)
    taken = []
    for turn in range(1, ROUNDS + 1):
        machine.now += 2 * machine.policy.tombstone_seconds
        machine.nvidia = facts(instances := _divided(turn), GPUS)
        moved = [one.uuid.lower() for one in instances if one.gpu in for_claims]
        start = time.perf_counter()
        devices = machine.see(*gpus)
        for name in moved:
            machine.to_claims(name)
        size = sum(len(answer) for answer in _lists(machine))
        pool = pool_of(machine.tracker.current, machine.ledger, machine.names.config, "node", machine.now)
        published = sum(len(one.get("devices", ())) for one in desired_slices(pool).slices.values())
        taken.append(1000 * (time.perf_counter() - start))
        assert len(devices) == GPUS * INSTANCES, devices
        assert size > 1000, size
        assert published >= GPUS * INSTANCES // 2, published
        gone = tuple(machine.ledger.entries.keys() - devices.keys())  # as maintenance does, after a minute
        machine.do(Forgotten(gone, machine.now))
    return statistics.median(taken)


def _lists(machine: Machine) -> Iterable[bytes]:
    devices = machine.tracker.current.by_name()
    for resource in machine.names.config.resources:
        units = legacy_list(machine.ledger, devices, resource.name, at=machine.now, policy=machine.policy)
        listed = [wire.Device(ID=unit.id, health="Healthy" if unit.healthy else "Unhealthy") for unit in units]
        yield wire.ListAndWatchResponse(devices=listed).SerializeToString()


def benchmarks() -> list[Benchmark]:
    """The benchmark of this module."""
    return [Benchmark("mig_8x7_list_ms", "ms", 60.0, mig_8x7_list_ms)]
