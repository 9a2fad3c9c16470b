"""The coordinator as a process, with a simulated API server: what it writes, and who writes."""

from __future__ import annotations

import contextlib
import math
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.coordinator.pages import CoordinatorState, not_ready
from drabridge.kube.claim_hints import MOST_CLAIMS, MOST_NAME, hints_name, hints_object, lock_name
from drabridge.offers.slices import lease_condition, lease_denied_condition
from drabridge.sim.apiserver import http
from drabridge.sim.apiserver.server import SimApiServer
from tests.support.agent_process import DRIVER
from tests.support.coordinators import NAMESPACE, CoordinatorProcess, hinted, running, settle, waiting_claim
from tests.support.waiting import short_directory, until

pytest.importorskip("kubernetes.leaderelection.resourcelock.leaselock", reason="needs kubernetes 37 or later")


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[tuple[SimApiServer, Path, Path]]:
    with short_directory() as root:
        async with SimApiServer() as api:
            yield api, root, api.kubeconfig(root / "kubeconfig")


def holder(api: SimApiServer) -> str:
    found = api.objects.find("leases", lock_name(DRIVER), NAMESPACE) or {}
    return str(found.get("spec", {}).get("holderIdentity", ""))


async def test_it_names_waiting_claims_and_empties_what_waits_no_more() -> None:
    async with server() as (api, root, kubeconfig):
        objects, one = api.objects, CoordinatorProcess(root, kubeconfig)
        objects.create(hints_object(DRIVER, "stale", '[{"name":"gone"}]'), namespace=NAMESPACE)
        waiting_claim(objects, "younger", allocated="2026-01-01T00:00:09Z")
        waiting_claim(objects, "older")
        waiting_claim(objects, "elsewhere", pool="rack/b")
        async with running(one):
            await until(lambda: hinted(objects) == ["older", "younger"], 10, one.text)
            await until(lambda: hinted(objects, "rack/b") == ["elsewhere"], 10, one.text)
            await until(lambda: hinted(objects, "stale") == [], 10, one.text)
            settle(objects, "older", lease_condition(DRIVER))
            await until(lambda: hinted(objects) == ["younger"], 10, one.text)
            settle(objects, "younger", lease_denied_condition(DRIVER))
            await until(lambda: hinted(objects) == [], 10, one.text)
            objects.delete("resourceclaims", "elsewhere", "default")
            await until(lambda: hinted(objects, "rack/b") == [], 10, one.text)
            claims = [request for request in api.requests if request.resource == "resourceclaims"]
            assert {request.verb for request in claims} == {"list", "watch"}
            writes = [request for request in api.requests if request.is_write and request.resource == "configmaps"]
            assert len(writes) <= 8, "each change is one write, and nothing else is"
            assert await one.stop() == 0


async def test_a_flood_is_bounded_and_a_claim_that_cannot_be_read_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    dump = http.dump
    monkeypatch.setattr(http, "dump", lambda value: dump(value).replace(b'"device":"broken"', b'"device":[[7]]'))
    async with server() as (api, root, kubeconfig):
        objects, one = api.objects, CoordinatorProcess(root, kubeconfig)
        for number in range(MOST_CLAIMS + 5):
            waiting_claim(objects, f"c{number:04}")
        waiting_claim(objects, "bad", device="broken")
        async with running(one):
            await until(lambda: len(hinted(objects) or ()) == MOST_CLAIMS, 20, one.text)
            assert (hinted(objects) or [])[0] == "c0000"
            assert "bad" in one.text()
            waiting_claim(objects, "bad-too", device="broken")
            waiting_claim(objects, "after", pool="b")
            await until(lambda: hinted(objects, "b") == ["after"], 10, one.text)
            settle(objects, "c0000", lease_condition(DRIVER))
            await until(lambda: "c1000" in (hinted(objects) or ()), 10, one.text)


async def test_a_write_that_fails_is_repeated_and_what_others_wrote_is_overwritten() -> None:
    async with server() as (api, root, kubeconfig):
        objects, one = api.objects, CoordinatorProcess(root, kubeconfig)
        async with running(one):
            await until(lambda: "leading" in one.text(), 10, one.text)
            api.faults.fail(2, 409, verb="patch", resource="configmaps")
            waiting_claim(objects, "c")
            await until(lambda: hinted(objects) == ["c"], 10, one.text)
            assert "hints not written" in one.text()
            name = hints_name(DRIVER, "node-a")
            objects.modify("configmaps", name, lambda it: it["data"].update(claims="[]"), namespace=NAMESPACE)
            waiting_claim(objects, "d")
            await until(lambda: hinted(objects) == ["c", "d"], 10, one.text)


async def test_another_one_takes_over_from_a_leader_that_is_killed_and_one_that_lost_the_lease_ends() -> None:
    async with server() as (api, root, kubeconfig):
        objects = api.objects
        one, two = CoordinatorProcess(root, kubeconfig), CoordinatorProcess(root, kubeconfig, "two")
        async with running(one):
            await until(lambda: holder(api) == "one", 10, one.text)
            async with running(two):
                waiting_claim(objects, "c")
                await until(lambda: hinted(objects) == ["c"], 10, one.text)
                await one.stop(signal.SIGKILL)
                objects.delete("resourceclaims", "c", "default")
                waiting_claim(objects, "d", pool="b")
                await until(lambda: hinted(objects) == [] and hinted(objects, "b") == ["d"], 10, two.text)
                assert holder(api) == "two"
                api.faults.fail(1_000_000, 503, resource="leases")
                assert await two.ended() == 1
                assert "leadership lost" in two.text()


async def test_its_pages_say_whether_it_leads_and_works() -> None:
    async with server() as (api, root, kubeconfig):
        one, two = CoordinatorProcess(root, kubeconfig), CoordinatorProcess(root, kubeconfig, "two")

        async def metric(name: str, of: CoordinatorProcess = one) -> float:
            status, text = await of.page("/metrics")
            assert status == 200
            (line,) = (line for line in text.splitlines() if line.startswith(f"drabridge_coordinator_{name} "))
            return float(line.partition(" ")[2])

        async def writes(*expected: float) -> bool:
            """Tell whether so many writes are counted as OK and as failed: that is after the server has them."""
            results = ("OK", "failed")
            return [await metric(f'hint_writes_total{{result="{result}"}}') for result in results] == list(expected)

        async with running(one):
            waiting_claim(api.objects, "c")
            await until(lambda: hinted(api.objects) == ["c"], 10, one.text)
            assert await one.page("/healthz") == (200, "ok\n")
            assert await one.page("/readyz") == (200, "ok\n")
            assert (await one.page("/"))[0] == 404
            assert [await metric(name) for name in ("leading", "following", "pending_claims")] == [1, 1, 1]
            await until(lambda: writes(1, 0), 10, one.text)
            api.faults.fail(2, 409, verb="patch", resource="configmaps")
            waiting_claim(api.objects, "d")
            await until(lambda: hinted(api.objects) == ["c", "d"], 10, one.text)
            await until(lambda: writes(2, 2), 10, one.text)
            async with running(two):
                await until(lambda: "msg=listening" in two.text(), 10, two.text)
                await until(lambda: ready(two), 10)
                assert [await metric(name, two) for name in ("leading", "following", "pending_claims")] == [0, 0, 0]
                await one.stop(signal.SIGKILL)
                api.faults.fail(1_000_000, 503, resource="leases")
                await until(lambda: said(two, "the API server does not show the Lease"), 10)
                assert (await two.page("/healthz"))[0] == 200, "a restart would not help it"


async def ready(one: CoordinatorProcess) -> bool:
    return (await one.page("/readyz"))[0] == 200


async def said(one: CoordinatorProcess, reason: str) -> bool:
    status, text = await one.page("/readyz")
    return status == 503 and text.startswith(f"not ready: {reason}")


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({}, []),
        ({"unheard_seconds": math.inf}, ["the API server does not show the Lease of the election"]),
        ({"unheard_seconds": 15.5}, ["the API server does not show the Lease of the election"]),
        ({"unfollowed_seconds": 9.0, "unwritten_seconds": 9.0}, []),
        ({"unfollowed_seconds": 11.0}, ["the claims have not been followed for 11 s"]),
        ({"unwritten_seconds": 11.0}, ["some node's hints could not be written for 11 s"]),
        ({"leads": False, "unfollowed_seconds": 900.0, "unwritten_seconds": 900.0}, []),
    ],
)
def test_readiness_is_given_reasons_in_words(change: dict[str, Any], reasons: list[str]) -> None:
    well = CoordinatorState(
        leads=True, claims=3, unheard_seconds=2.0, lease_seconds=15, unfollowed_seconds=0.0, unwritten_seconds=0.0
    )
    assert list(not_ready(replace(well, **change))) == reasons


async def test_a_port_that_is_taken_or_makes_no_sense_is_said_at_once() -> None:
    async with server() as (_, root, kubeconfig):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            for listen in (f"127.0.0.1:{taken.getsockname()[1]}", "9400"):
                one = CoordinatorProcess(root, kubeconfig, listen=listen)
                async with running(one):
                    assert await one.ended() == 2
                    assert "listen" in one.text()


def test_every_pool_has_a_name_that_an_object_can_have() -> None:
    assert hints_name("gpu.example.com", "node-a") == "drabridge-claims.3.gpu.example.com.node-a"
    names = [hints_name(DRIVER, pool) for pool in ("a/b", "a.b", "x" * 253, "x" * 252, "A", "")]
    assert len(set(names)) == len(names)
    assert all(len(name) <= MOST_NAME and "/" not in name for name in names)


def test_no_two_drivers_give_their_pools_one_name() -> None:
    labels = ["1", "b", "2", "1", "c", "n"]
    split = [(".".join(labels[:at]), ".".join(labels[at:])) for at in range(1, len(labels))]
    assert len({hints_name(*one) for one in split}) == len(split)
