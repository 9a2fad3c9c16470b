"""Both clients against real sockets whose servers answer well, badly, late, or not at all."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from podresources import Client, Support, SyncClient, errors
from podresources.model import Api
from podresources.transport import Attempt
from tests.podresources.clients import MakeClient, refused
from tests.support.podresources_server import (
    Answer,
    Kubelet,
    capacity,
    claim,
    claim_device,
    container,
    device,
    fails,
    get_answer,
    hangs,
    kubelet,
    listing,
    pod,
    raw_server,
    says,
    socket_directory,
    truncated_answer,
)
from tests.support.waiting import PATIENCE

POD = pod("train-0", container("main", device("nvidia.com/gpu", "GPU-1", numa=(0,))), namespace="training")
RATE_LIMITED = fails(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")


async def test_three_methods_answer(connect: MakeClient) -> None:
    answers = {
        "List": says(listing(POD, pod("idle"))),
        "GetAllocatableResources": says(capacity(device("nvidia.com/gpu", "GPU-1"))),
        "Get": get_answer(POD),
    }
    async with kubelet(answers) as server:
        client = connect(server.path)
        listed = await client.list()
        assert [found.name for found in listed.pods] == ["train-0", "idle"]
        assert [held.device_ids for held in listed.allocations] == [("GPU-1",)]
        assert (await client.allocatable()).count_by_resource() == {"nvidia.com/gpu": 1}
        assert (await client.get("training", "train-0")).allocations == listed.allocations
        assert server.requests == ["List", "GetAllocatableResources", "Get"]


async def test_the_authority_is_localhost_and_not_the_escaped_path(connect: MakeClient) -> None:
    async with socket_directory() as directory:
        async with raw_server(directory / "kubelet.sock", b"") as seen:
            client = connect(directory / "kubelet.sock")
            for _ in range(PATIENCE):
                with pytest.raises((errors.KubeletUnavailable, errors.KubeletTimeout)):
                    await client.list(timeout_seconds=0.3)
                if b"localhost" in bytes(seen):
                    break
        assert b"localhost" in bytes(seen)
        assert b"%2F" not in bytes(seen)


async def test_a_pod_that_kubelet_does_not_have(connect: MakeClient) -> None:
    async with kubelet({"Get": get_answer(POD), "List": says(listing(POD))}) as server:
        client = connect(server.path)
        with pytest.raises(errors.PodNotFound, match="nope in namespace training") as caught:
            await client.get("training", "nope")
        assert caught.value.fault is errors.FaultParty.CALLER
        assert client.features.get is Support.YES
        assert server.requests == ["Get"]


@pytest.mark.parametrize(
    "refusal",
    [None, fails(grpc.StatusCode.UNKNOWN, "PodResources API Get method disabled")],
    ids=["1.26", "gate off"],
)
async def test_get_on_an_old_kubelet_uses_list_and_says_so(connect: MakeClient, refusal: Answer | None) -> None:
    answers = {"List": says(listing(POD))} | ({"Get": refusal} if refusal else {})
    async with kubelet(answers) as server:
        client = connect(server.path)
        assert [found.name for found in (await client.get("training", "train-0")).pods] == ["train-0"]
        assert client.features.get is Support.NO
        assert client.features.active_pods_only is Support.NO
        assert any("1.34" in note for note in client.features.notes())
        assert any("DRA" in note for note in client.features.notes())
        with pytest.raises(errors.PodNotFound):
            await client.get("training", "nope")
        assert server.requests == ["Get", "List", "List"], "a known refusal is not asked for again"


async def test_seeing_a_claim_outweighs_what_an_old_kubelet_suggests(connect: MakeClient) -> None:
    held = pod("p", container("c", claims=(claim("x", claim_device("gpu-0")),)))
    async with kubelet({"List": says(listing(held))}) as server:
        client = connect(server.path)
        assert (await client.probe()).dynamic_resources is Support.NO
        assert (await client.list()).allocations[0].api is Api.DRA
        assert client.features.dynamic_resources is Support.YES
        assert not any("DRA" in note for note in client.features.notes())


async def test_allocatable_on_a_kubelet_without_it_is_a_fact_not_an_empty_list(connect: MakeClient) -> None:
    async with kubelet({}) as server:
        client = connect(server.path)
        with pytest.raises(errors.NotSupported) as caught:
            await client.allocatable()
        assert caught.value.rpc == "GetAllocatableResources"
        assert client.features.allocatable is Support.NO


async def test_probe_costs_one_request_once(connect: MakeClient) -> None:
    async with kubelet({"Get": get_answer(POD)}) as server:
        client = connect(server.path)
        assert (await client.probe()).get is Support.YES
        await client.probe()
        assert server.requests == ["Get"]


async def test_the_limiter_is_waited_for(connect: MakeClient) -> None:
    async with kubelet({"List": RATE_LIMITED}) as server:
        client = connect(server.path)

        async def relent() -> None:
            await asyncio.sleep(0.3)
            server.answers["List"] = says(listing(POD))

        started = time.monotonic()
        relenting = asyncio.ensure_future(relent())
        assert (await client.list()).allocations
        await relenting
        assert time.monotonic() - started >= 1.0, "a refused client leaves the others a second"
        assert server.requests == ["List", "List"]


async def test_a_limiter_that_never_relents_is_named_as_such(connect: MakeClient) -> None:
    seconds = []
    async with kubelet({"List": RATE_LIMITED}) as server:
        for number in range(1, 6):
            started = time.monotonic()
            with pytest.raises((errors.RateLimited, errors.KubeletTimeout)) as caught:  # on a machine that stood still
                await connect(server.path).list(timeout_seconds=0.95)
            if isinstance(caught.value, errors.RateLimited):
                assert "rejected by rate limit" in str(caught.value)
                seconds.append(time.monotonic() - started)
            assert server.requests == ["List"] * number
    assert min(seconds) < 0.5, "a second is not left, so it is not waited for"


async def test_an_answer_beyond_the_limit_says_which_limit(connect: MakeClient) -> None:
    async with kubelet({"List": says(b"\x0a" + b"x" * 18_000_000)}) as server:
        with pytest.raises(errors.TooLarge, match=r"18,000,001 bytes, limit 16,777,216") as caught:
            await connect(server.path, receive_limit_bytes=16 * 1024 * 1024).list()
        assert (caught.value.size, caught.value.limit) == (18_000_001, 16_777_216)
        assert caught.value.fault is errors.FaultParty.CALLER
        assert server.requests == ["List"], "asking again cannot help"


@pytest.mark.parametrize(
    "nonsense",
    [b"\xff\xff\xff\xff nonsense", b"\x0a\x7f", b"\x0a\x04\x0a\x02\xff\xfe"],
    ids=["bytes", "cut short", "not UTF-8"],
)
async def test_an_answer_that_does_not_decode_is_not_an_empty_node(connect: MakeClient, nonsense: bytes) -> None:
    async with kubelet({"List": says(nonsense)}) as server:
        with pytest.raises(errors.ProtocolViolation, match="does not decode"):
            await connect(server.path).list()


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 64, b"SSH-2.0-OpenSSH_9.6\r\n"])
async def test_a_server_that_does_not_speak_grpc(connect: MakeClient, greeting: bytes) -> None:
    async with socket_directory() as directory, raw_server(directory / "kubelet.sock", greeting):
        started = time.monotonic()
        with pytest.raises(errors.ProtocolViolation, match="does not speak gRPC") as caught:
            await connect(directory / "kubelet.sock").list(timeout_seconds=60)
        assert caught.value.fault is errors.FaultParty.KUBELET
        assert time.monotonic() - started < 30, "asking again cannot help"


async def test_a_server_that_dies_in_the_middle_of_its_answer(connect: MakeClient) -> None:
    async with socket_directory() as directory, raw_server(directory / "kubelet.sock", truncated_answer()):
        await refused(connect(directory / "kubelet.sock"), errors.KubeletUnavailable, 0.5)


async def test_a_server_that_hangs_costs_the_deadline_and_no_more(connect: MakeClient) -> None:
    async with kubelet({"List": hangs}) as server:
        started = time.monotonic()
        with pytest.raises(errors.KubeletTimeout, match="List"):
            await connect(server.path).list(timeout_seconds=0.3)
        assert 0.25 < time.monotonic() - started < 0.3 * PATIENCE


async def test_a_socket_that_accepts_and_says_nothing(connect: MakeClient) -> None:
    async with socket_directory() as directory, raw_server(directory / "kubelet.sock", None):
        with pytest.raises((errors.KubeletTimeout, errors.KubeletUnavailable)):
            await connect(directory / "kubelet.sock").list(timeout_seconds=0.4)


async def test_other_errors_keep_kubelets_code_and_words(connect: MakeClient) -> None:
    async with kubelet({"List": fails(grpc.StatusCode.PERMISSION_DENIED, "no")}) as server:
        with pytest.raises(errors.KubeletFailed, match="PERMISSION_DENIED: no") as caught:
            await connect(server.path).list()
        assert caught.value.code == "PERMISSION_DENIED"


async def test_every_request_is_observed_with_its_status(connect: MakeClient) -> None:
    seen: list[Attempt] = []
    async with kubelet({"List": says(b"\xff"), "Get": get_answer(POD)}) as server:
        client = connect(server.path, observe=seen.append)
        with pytest.raises(errors.ProtocolViolation):
            await client.list()
        await client.get("training", "train-0")
        with pytest.raises(errors.NotSupported):
            await client.allocatable()
    assert [(attempt.rpc, attempt.code) for attempt in seen] == [
        ("List", "INTERNAL"),
        ("Get", "OK"),
        ("GetAllocatableResources", "UNIMPLEMENTED"),
    ]
    assert all(0 < attempt.seconds < 5 * PATIENCE for attempt in seen)


async def test_calls_take_turns(connect: MakeClient) -> None:
    running = most = 0

    async def slow(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return b""

    async with kubelet({"List": slow}) as server:
        client = connect(server.path)
        await asyncio.gather(*(client.list() for _ in range(5)))
        assert (most, len(server.requests)) == (1, 5)


async def test_waiting_for_ones_turn_counts_towards_the_deadline(connect: MakeClient) -> None:
    async with kubelet({"List": hangs}) as server:
        client = connect(server.path)
        slow = asyncio.ensure_future(client.list(timeout_seconds=6))
        await asyncio.sleep(0.1)
        with pytest.raises(errors.KubeletTimeout):
            await client.list(timeout_seconds=0.2)
        assert not slow.done()
        with pytest.raises(errors.KubeletTimeout):
            await slow


async def test_closing_ends_calls_under_way_and_refuses_new_ones(connect: MakeClient) -> None:
    async with kubelet({"List": hangs}) as server:
        client = connect(server.path)
        call = asyncio.ensure_future(client.list())
        await asyncio.sleep(0.2)
        await client.close()
        with pytest.raises(errors.ClientClosed):
            await asyncio.wait_for(call, 2 * PATIENCE)
        with pytest.raises(errors.ClientClosed):
            await client.list()


async def test_cancelling_a_call_is_a_cancellation_and_the_client_lives_on() -> None:
    async with kubelet({"List": hangs}) as server:
        async with Client(server.path) as client:
            call = asyncio.ensure_future(client.list())
            await asyncio.sleep(0.1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            server.answers["List"] = says(listing(POD))
            assert (await client.list()).pods


async def test_context_managers_close(tmp_path: Path) -> None:
    async with Client(tmp_path / "x") as client:
        pass
    with pytest.raises(errors.PodResourcesError):
        await client.list()
    async with kubelet({"List": says(b"")}) as server:
        with SyncClient(server.path) as other:
            await asyncio.to_thread(other.list)
        with pytest.raises(errors.ClientClosed):
            await asyncio.to_thread(other.list)


async def test_restarted_kubelet_is_met_without_old_facts(connect: MakeClient) -> None:
    async with kubelet({"List": says(listing(POD))}) as old:
        client = connect(old.path)
        assert (await client.probe()).get is Support.NO
        new = Kubelet(old.path, {"List": says(b""), "Get": get_answer(POD)})
        await old.stop()
        await new.start()
        try:
            await client.list()
            assert client.features.get is Support.UNKNOWN
            assert (await client.probe()).get is Support.YES
        finally:
            await new.stop()
