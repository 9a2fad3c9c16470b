"""Callers that are not kubelet on the agent's sockets: noise, floods, readers that do not read.

The noise is random with a fixed seed: what failed once fails again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio

from deviceplugin.wire import v1beta1_pb2 as pb
from deviceplugin.wire import v1beta1_pb2_grpc as pb_grpc
from drabridge.sim.kubelet.pods import Phase
from drabridge.wire import dra_v1_pb2 as dra
from drabridge.wire import pluginregistration_pb2 as registration
from tests.support.agent_checks import RECOVERY_SECONDS, alive, holding, owners, plugin_socket, unharmed
from tests.support.agent_on_cluster import bridge, claim_pod, limits_pod
from tests.support.agent_process import AgentProcess, pod
from tests.support.hostile_callers import call, connect, frozen_stream

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BIG = 5 << 20  # bytes: gRPC's default limit for a message is 4 MiB
METHODS = ("GetDevicePluginOptions", "ListAndWatch", "GetPreferredAllocation", "Allocate", "PreStartContainer", "No")


def noise(seed: int) -> list[bytes]:
    """Random bytes as they come, and behind HTTP/2's opening words: whole frames of random types and lengths."""
    rng = random.Random(seed)
    frames = []
    for _ in range(20):
        body = rng.randbytes(rng.randrange(64))
        kind, flags, stream = rng.randrange(12), rng.randrange(256), rng.randrange(5)
        length = rng.choice([len(body), len(body), 0xFFFFFF, 0])
        frames.append(length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body)
    plain = [rng.randbytes(rng.randrange(1, 2000)) for _ in range(10)]
    settings = b"\0\0\0\4\0\0\0\0\0"
    return [*plain, *(HTTP2 + settings + frame for frame in frames), HTTP2, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 65536]


async def send(path: Path, data: bytes) -> None:
    """Write, read whatever comes for a moment, hang up."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    with contextlib.suppress(OSError, TimeoutError):
        writer.write(data)
        await asyncio.wait_for(reader.read(4096), 0.02)
    writer.close()


async def test_noise_on_the_device_plugin_socket() -> None:
    async with holding() as (agent, kubelet, held):
        path = plugin_socket(agent)
        for data in noise(1):
            await send(path, data)
        rng = random.Random(2)
        for method in METHODS:
            for body in (rng.randbytes(50), rng.randbytes(3), b"\x0a\xff\xff\xff\xff\x0f"):
                code = await call(path, f"/v1beta1.DevicePlugin/{method}", body)
                assert code not in ("OK", "DEADLINE_EXCEEDED"), (method, body)
        assert await call(path, "/no.Such/Service", b"") == "UNIMPLEMENTED"
        await unharmed(agent, kubelet, held)


def random_requests(rng: random.Random, known: list[str]) -> list[tuple[str, Any]]:
    """Valid messages that make no sense."""
    ids = [rng.choice([*known, "", "no-such", "x" * 300, "\u202e", "../../etc"]) for _ in range(rng.randrange(6))]
    container = pb.ContainerAllocateRequest(devices_ids=ids)
    wish = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=ids,
        must_include_deviceIDs=rng.sample(ids, len(ids) // 2),
        allocation_size=rng.choice([-1, 0, 1, 2, 2**31 - 1]),
    )
    return [
        ("Allocate", pb.AllocateRequest(container_requests=[container] * rng.randrange(3))),
        ("GetPreferredAllocation", pb.PreferredAllocationRequest(container_requests=[wish] * rng.randrange(3))),
        ("PreStartContainer", pb.PreStartContainerRequest(devices_ids=ids)),
    ]


async def test_valid_messages_that_make_no_sense() -> None:
    async with holding() as (agent, kubelet, held):
        path, rng = plugin_socket(agent), random.Random(3)
        # Ids of devices that pods hold only: an Allocate of a free one is a valid one, whoever sends it.
        known = [row["id"] for row in (await agent.status())["devices"] if row["name"] in held]
        for _ in range(40):
            for method, message in random_requests(rng, known):
                code = await call(path, f"/v1beta1.DevicePlugin/{method}", message.SerializeToString())
                assert code not in ("DEADLINE_EXCEEDED", "UNKNOWN"), (method, message)
        await unharmed(agent, kubelet, held)


async def test_huge_messages() -> None:
    async with holding() as (agent, kubelet, held):
        path = plugin_socket(agent)
        many = pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=["x" * 64] * (BIG // 66))]
        )
        assert len(many.SerializeToString()) > 4 << 20
        code = await call(path, "/v1beta1.DevicePlugin/Allocate", many.SerializeToString())
        assert code == "RESOURCE_EXHAUSTED"
        less = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["x" * 64] * 50_000)])
        assert await call(path, "/v1beta1.DevicePlugin/Allocate", less.SerializeToString()) == "NOT_FOUND"
        assert max(map(len, agent.text().splitlines())) < 20_000  # neither does the log take it all
        status, answer = await _post(agent, b"x" * BIG)
        assert status in (0, 413), answer
        await unharmed(agent, kubelet, held)


async def _post(agent: AgentProcess, body: bytes) -> tuple[int, bytes]:
    """(0, b"") when the agent hangs up while the body is still being sent."""
    try:
        return await agent.ask("/lanes", body)
    except (OSError, IndexError):
        return 0, b""


async def test_a_thousand_connections_to_each_socket() -> None:
    async with holding() as (agent, kubelet, held):
        address = re.search(r"msg=listening address=(\S+):(\d+)", agent.text())
        assert address
        for family, target in (
            (socket.AF_UNIX, str(plugin_socket(agent))),
            (socket.AF_UNIX, str(agent.control)),
            (socket.AF_INET, (address[1], int(address[2]))),
        ):
            clients = connect(family, target)
            assert len(clients) > 50, "the flood did not happen"
            await asyncio.sleep(0.3)
            assert alive(agent)
            held_now = kubelet.resources["example.com/mem"]
            assert held_now.streams == 1, "kubelet lost its stream to the flood"
            for client in clients:
                client.close()
        await unharmed(agent, kubelet, held)


async def test_readers_that_do_not_read() -> None:
    """Streams that nobody iterates, and streams whose client allows not one byte, while the list changes."""
    async with holding() as (agent, kubelet, held):
        path = plugin_socket(agent)
        async with contextlib.AsyncExitStack() as stack:
            streams = []
            for _ in range(20):
                channel = await stack.enter_async_context(grpc.aio.insecure_channel(f"unix:{path}"))
                streams.append(pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty()))
            frozen = [await frozen_stream(path) for _ in range(20)]
            for number in range(3):
                assert (await kubelet.run_pod(pod(f"refused-{number}", 9))).phase is Phase.FAILED
            await unharmed(agent, kubelet, await owners(agent), "meanwhile")
            for stream in streams:
                stream.cancel()
            for writer in frozen:
                writer.close()
        assert alive(agent)
        assert held.items() <= (await owners(agent)).items()


# --- HTTP ------------------------------------------------------------------------------------------------------------


def _json(rng: random.Random, depth: int = 0) -> Any:
    if depth > 3 or rng.random() < 0.4:
        return rng.choice(
            [None, True, 0, -1, 1.5, 10**400, "", "*", "50%", "200%", "\ud800", "x" * 5000, "example.com/mem", [], {}]
        )
    if rng.random() < 0.3:
        return [_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ["resource", "legacy", "dra", "reset", "select", "", "\0", "apiVersion"]
    return {rng.choice(keys): _json(rng, depth + 1) for _ in range(rng.randrange(5))}


async def test_noise_on_the_control_socket() -> None:
    async with holding() as (agent, kubelet, held):
        rng = random.Random(4)
        before = (await agent.status())["resources"]
        for data in noise(5):
            await send(agent.control, data)
        bodies = [json.dumps(_json(rng)).encode() for _ in range(150)]
        bodies += [b"[" * 60_000, b'{"resource":' * 4_000, rng.randbytes(100), b"", b"NaN", b'{"resource":["a"]}']
        # What is wrong in a wish for a resource that there is.
        bodies += [
            json.dumps({"resource": "example.com/mem", rng.choice(["legacy", "dra"]): _json(rng), "x": 1}).encode()
            for _ in range(50)
        ]
        for path in ("/lanes", "/release"):
            for body in bodies:
                code, answer = await agent.ask(path, body)
                assert code == 400, (path, body[:200], code, answer[:200])
                assert json.loads(answer)["error"]
        assert (await agent.status())["resources"] == before
        assert "Traceback" not in agent.text()
        await unharmed(agent, kubelet, held)


# --- the DRA side ----------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def both_sides() -> AsyncIterator[AgentProcess]:
    """A claim and a pod with limits hold a device each; afterwards they still do, and the next claim is served."""
    async with bridge() as (agent, cluster, _):
        await cluster.apply(claim_pod("c") + "---\n" + limits_pod("l"))
        await cluster.wait_pod("c")
        await cluster.wait_pod("l")
        held = await owners(agent)
        assert sorted(held.values()) == ["dra-prepared", "legacy"]
        yield agent
        assert alive(agent), agent.text()[-3000:]
        await agent.ready(RECOVERY_SECONDS)
        assert await owners(agent) == held
        await cluster.apply(claim_pod("after"))
        await cluster.wait_pod("after")


async def test_noise_on_the_dra_sockets() -> None:
    async with both_sides() as agent:
        service = agent.root / "plugins" / agent.driver / "dra.sock"
        (enrolment,) = (agent.root / "plugins_registry").glob("*-reg.sock")
        records = sorted(path.name for path in (service.parent / "claims").iterdir())
        assert records
        rng = random.Random(6)
        for data in noise(7):
            await send(service, data)
            await send(enrolment, data)
        package = dra.DESCRIPTOR.package
        uids = ["", "no-such", "../../etc/passwd", "x" * 5000, "\u202e", "a/b", "."]
        claims = [dra.Claim(uid=rng.choice(uids), name=rng.choice(uids), namespace=rng.choice(uids)) for _ in range(12)]
        for kind in ("Prepare", "Unprepare"):
            method = f"/{package}.DRAPlugin/Node{kind}Resources"
            message = getattr(dra, f"Node{kind}ResourcesRequest")(claims=claims)
            # An error for a claim is an answer; none of these claims exists, so none may be prepared.
            assert await call(service, method, message.SerializeToString()) == "OK"
            assert await call(service, method, rng.randbytes(60)) not in ("OK", "DEADLINE_EXCEEDED")
            assert await call(service, method, b"\x0a\x80\x80\xc0\x02" + b"x" * BIG) == "RESOURCE_EXHAUSTED"
        assert await call(service, f"/{package}.DRAPlugin/NoSuch", b"") == "UNIMPLEMENTED"
        told = registration.RegistrationStatus(plugin_registered=False, error="x" * 100_000)
        await call(enrolment, "/pluginregistration.Registration/NotifyRegistrationStatus", told.SerializeToString())
        told = registration.RegistrationStatus(plugin_registered=True)
        await call(enrolment, "/pluginregistration.Registration/NotifyRegistrationStatus", told.SerializeToString())
        assert sorted(path.name for path in (service.parent / "claims").iterdir()) == records


async def test_a_thousand_connections_to_the_dra_sockets() -> None:
    async with both_sides() as agent:
        (enrolment,) = (agent.root / "plugins_registry").glob("*-reg.sock")
        for path in (agent.root / "plugins" / agent.driver / "dra.sock", enrolment):
            clients = connect(socket.AF_UNIX, str(path))
            assert len(clients) > 50
            await asyncio.sleep(0.3)
            assert alive(agent)
            for client in clients:
                client.close()
