"""Answers of 20 MB, as kubelets before 1.37 give them: the same devices again and again (kubernetes #141335)."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from asyncio.subprocess import PIPE

import pytest

from podresources.model import SocketIdentity
from podresources.normalise import snapshot
from podresources.shrink import LARGE_BYTES, shrink
from podresources.wire import v1_pb2 as wire
from tests.podresources.clients import MakeClient
from tests.podresources.command import ROOT
from tests.support.podresources_server import (
    claim,
    claim_device,
    container,
    device,
    kubelet,
    large_listing,
    listing,
    pod,
    says,
)
from tests.support.waiting import HANG_SECONDS

SOCKET = SocketIdentity(1, 2, 3)
CDI = "k8s.gpu.nvidia.com/claim=c8593c85-440d-4156-b199-aea592ff83df"
TWENTY_MB = 20_000_000


def repeated(size: int) -> wire.ListPodResourcesResponse:
    """One pod's claim with eight devices, repeated until the answer has ``size`` bytes, beside a pod with limits."""
    devices = [
        claim_device(f"gpu-{n}", *(f"{CDI}-gpu-{k}" for k in range(n + 1)), driver="gpu.nvidia.com") for n in range(8)
    ]
    times = size // sum(one.ByteSize() for one in devices) + 1
    many = claim("c", *(one for _ in range(times) for one in devices))
    train = pod("train", container("main", device("nvidia.com/gpu", "GPU-1", numa=(0,))))
    return listing(pod("infer", container("main", claims=(many,))), train)


async def test_twenty_megabytes_of_repetitions_are_eight_devices(connect: MakeClient) -> None:
    answer = repeated(TWENTY_MB)
    assert answer.ByteSize() > TWENTY_MB
    async with kubelet({"List": says(answer)}) as server:
        client = connect(server.path, timeout_seconds=HANG_SECONDS)
        found = await client.list()
    assert sorted(held.device or held.device_ids[0] for held in found.allocations) == [
        "GPU-1",
        *(f"gpu-{n}" for n in range(8)),
    ]
    (of_claim,) = (of_claim for pod in found.pods for box in pod.containers for of_claim in box.claims)
    assert len(of_claim.devices) == 8, "what is kept in memory is small too"
    last = next(held for held in found.allocations if held.device == "gpu-7")
    assert len(last.cdi_ids) == 8


async def test_memory_stays_flat_over_many_such_answers() -> None:
    """The peak of a process that asks ten times; decoding the repetitions would take 260 MiB."""
    program = """
import re, sys
from podresources import SyncClient
with SyncClient(sys.argv[1], timeout_seconds=60) as client:
    for _ in range(10):
        assert len(client.list().allocations) == 9
with open("/proc/self/status") as status:
    print(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1])
"""
    async with kubelet({"List": says(repeated(TWENTY_MB))}) as server:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-W", "error", "-c", program, str(server.path), stdout=PIPE, stderr=PIPE, env=environment
        )
        out, err = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
    assert err.decode() == ""
    assert int(out) / 1024 < 190


def _random_answer(seed: int) -> wire.ListPodResourcesResponse:
    """Containers, claims and devices of every shape, with repeats of which some are longer."""
    rng = random.Random(seed)
    answer = large_listing(pods=3, devices=9)
    for number in range(rng.randint(1, 4)):
        claims = []
        for name in "ab"[: rng.randint(1, 2)]:
            devices = [
                claim_device(
                    f"d{rng.randrange(4)}",
                    *(f"x.com/y=z{k}" for k in range(rng.randint(0, 5))),
                    pool=rng.choice(["p", "q"]),
                    share=rng.choice([None, "", "s"]),
                )
                for _ in range(rng.randint(0, 12))
            ]
            claims.append(claim(name, *devices))
        answer.pod_resources.append(pod(f"p{number}", container("c", device("a.com/x", "1"), claims=tuple(claims))))
    answer.pod_resources[0].cpu_ids.extend([1, 300])
    return answer


@pytest.mark.parametrize("seed", range(25))
def test_a_large_answer_means_the_same_without_its_repetitions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("podresources.shrink.LARGE_BYTES", 0)
    answer = _random_answer(seed)
    data = answer.SerializeToString()
    smaller = wire.ListPodResourcesResponse.FromString(shrink(data))
    whole, found = snapshot(answer, SOCKET), snapshot(smaller, SOCKET)
    assert sorted(found.allocations, key=repr) == sorted(whole.allocations, key=repr)
    assert [one.name for one in found.pods] == [one.name for one in whole.pods]
    assert found.pods[0].cpu_ids == (1, 300)
    for one in found.pods:
        for box in one.containers:
            for of_claim in box.claims:
                keys = [(part.pool, part.device, part.share_id) for part in of_claim.devices]
                assert len(keys) == len(set(keys))


def test_a_small_answer_is_not_touched() -> None:
    data = repeated(1000).SerializeToString()
    assert len(data) < LARGE_BYTES
    assert shrink(data) is data


@pytest.mark.parametrize("seed", range(20))
def test_what_is_no_protobuf_is_left_for_the_decoder_to_refuse(seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(repeated(LARGE_BYTES + 1000).SerializeToString())
    for _ in range(rng.randint(1, 50)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    shrink(bytes(data[: rng.randrange(LARGE_BYTES, len(data))]))
    assert shrink(b"\xff" * (LARGE_BYTES + 1)) == b"\xff" * (LARGE_BYTES + 1)
    assert shrink(b"\x0b" * (LARGE_BYTES + 1)) == b"\x0b" * (LARGE_BYTES + 1)
