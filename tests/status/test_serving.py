"""Where a real agent serves the page, to whom, and that it shows what ``status`` shows."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest

from deploy.helm import manifests, one
from drabridge.agent.endpoints import is_local_name
from drabridge.status import page
from tests.support.agent_process import AgentProcess, address_of, fetch, node, pod
from tests.support.servers import free_port
from tests.support.waiting import short_directory, until


def outside() -> str:
    """An address of this machine that is not a loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1; nothing is sent
        except OSError:
            pytest.skip("this machine has loopback addresses alone")
        return str(probe.getsockname()[0])


async def test_on_localhost_it_is_served_and_shows_what_status_shows() -> None:
    async with node() as (agent, kubelet):
        await kubelet.run_pod(pod("a"))
        for _ in range(50):  # both are of one second, unless that ends in between
            _, before = await agent.ask("/status")
            status, headers, body = await fetch(address_of(agent))
            if body == page.render(json.loads(before)):
                break
        assert status == 200
        assert body == page.render(json.loads(before))
        assert b"default/a/main" in body or b"a pod, not yet seen" in body
        assert headers.items() >= page.HEADERS.items()
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert (await agent.ask("/"))[0] == 200  # on the socket too
        assert b"http-equiv" not in (await fetch(address_of(agent), "/?refresh=off"))[2]


async def test_a_web_site_whose_name_means_127_0_0_1_does_not_get_it() -> None:
    async with node() as (agent, _):
        status, _, body = await fetch(address_of(agent), host="evil.example:9400")
        assert status == 421
        assert b"mem" not in body
        assert (await fetch(address_of(agent), "/readyz", host="evil.example"))[0] == 200


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("localhost", True), ("LOCALHOST:9400", True), ("127.0.0.1:1", True), ("127.8.9.1", True), ("[::1]:9400", True),
        ("", False), ("evil.example", False), ("localhost.evil.example", False), ("10.0.0.1:9400", False),
        ("127.0.0.1.nip.io", False),
    ],
)  # fmt: skip
def test_names_of_this_machine(name: str, local: bool) -> None:
    assert is_local_name(name) is local


@pytest.mark.parametrize("flag", [False, True])
async def test_the_page_is_served_beyond_localhost_only_when_asked_for(flag: bool) -> None:
    with short_directory() as root:
        agent = AgentProcess(root, arguments=("--listen", "0.0.0.0:0", *(["--page"] if flag else [])))
        await agent.start()
        try:
            await agent.up()
            await until(lambda: "msg=listening" in agent.text(), 5, agent.text)
            address = address_of(agent).replace("0.0.0.0", outside())
            status, _, body = await fetch(address, host="node-a.example:9400")
            assert status == (200 if flag else 404)
            assert (b"<html" in body) is flag
            for path in ("/status", "/lanes", "/?refresh=off"):
                code, _, text = await fetch(address, path)
                assert code == (200 if flag and path.startswith("/?") else 404), path
                assert flag or b"devices" not in text
            within = address_of(agent).replace("0.0.0.0", "127.0.0.1")  # as by kubectl port-forward
            assert (await fetch(within))[0] == 200
            assert (await fetch(within, host="evil.example"))[0] == (200 if flag else 421)
            assert (await fetch(address, "/healthz"))[0] == 200
            assert (await fetch(address, "/metrics"))[0] == 200
        finally:
            await agent.stop(signal.SIGKILL)


@pytest.mark.parametrize(("events", "page_is_served"), [("kernel", True), ("udev", False)])
async def test_with_the_chart_s_defaults_the_page_is_for_port_forward_alone(events: str, page_is_served: bool) -> None:
    """``kubectl port-forward`` connects to the pod's loopback address and passes on the Host header of the browser."""
    (container,) = one(manifests({"config": {"udevEvents": events}}), "DaemonSet")["spec"]["template"]["spec"][
        "containers"
    ]
    port = free_port()  # not 0: on all addresses the kernel would choose one for each family
    flags = [text.replace(":9400", f":{port}") for text in container["args"] if text.startswith(("--listen", "--page"))]
    with short_directory() as root:
        agent = AgentProcess(root, arguments=tuple(flags))
        await agent.start()
        try:
            await agent.up()
            await until(lambda: "msg=listening" in agent.text(), 5, agent.text)
            for host in ("localhost:9400", "127.0.0.1:9400", "[::1]:9400"):
                status, _, body = await fetch(f"127.0.0.1:{port}", host=host)
                assert (status, b"<html" in body) == ((200, True) if page_is_served else (404, False)), host
            assert (await fetch(f"127.0.0.1:{port}", host="evil.example"))[0] == (421 if page_is_served else 404)
            for path in ("/status", "/lanes", "/release", "/drain"):
                assert (await fetch(f"127.0.0.1:{port}", path))[0] == 404, "never more than status"
            if page_is_served:
                assert b"<html" not in (await fetch(f"{outside()}:{port}"))[2], "never to other tenants"
        finally:
            await agent.stop(signal.SIGKILL)


async def test_a_refusal_is_shown_with_its_words(tmp_path: Path) -> None:
    """The message names the holder: without it a refusal is a riddle."""
    from tests.support.agent_on_cluster import bridge, claim_pod, devices_in_slices

    async with bridge() as (agent, cluster, _):
        await until(lambda: len(devices_in_slices(cluster)) == 2, 10)
        await cluster.apply(claim_pod("c"))
        await cluster.wait_pod("c")
        held = next(row for row in (await agent.status())["devices"] if row["owner"] == "dra-prepared")
        # Kubelet would not ask for it: it is not on its list as healthy. Somebody else on the socket might.
        from tests.support.hostile_callers import allocate

        socket = next((agent.root / "device-plugins").glob("drabridge-*.sock"))
        code, _ = await allocate(socket, [held["id"]])
        assert code == "FAILED_PRECONDITION"
        refusals = (await agent.status())["refusals"]
        assert refusals
        assert "claim default/c" in refusals[-1]["message"]
        assert "claim default/c" in (await agent.ask("/"))[1].decode()
