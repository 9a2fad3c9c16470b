"""The command as a person or a script uses it: a process of its own against a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import yaml

from tests.podresources.command import ROOT, fetch, interrupt, run, start
from tests.podresources.metrics_page import parse, value
from tests.support.podresources_server import (
    Kubelet,
    capacity,
    claim,
    claim_device,
    container,
    device,
    fails,
    get_answer,
    kubelet,
    listing,
    pod,
    says,
)
from tests.support.servers import free_port
from tests.support.waiting import HANG_SECONDS, PATIENCE

TRAIN = pod(
    "train-0", container("main", device("n.com/gpu", "G0", numa=(0,)), device("n.com/gpu", "G1")), namespace="ml"
)
INFER = pod("infer-0", container("a", claims=(claim("c", claim_device("gpu-0", "x=0")),)))
COMMANDS = ("list", "get", "allocatable", "watch", "export", "top")


@asynccontextmanager
async def node() -> AsyncIterator[Kubelet]:
    answers = {
        "List": says(listing(TRAIN, INFER)),
        "GetAllocatableResources": says(capacity(*(device("n.com/gpu", f"G{n}", numa=(n % 2,)) for n in range(4)))),
        "Get": get_answer(TRAIN, INFER),
    }
    async with kubelet(answers) as server:
        yield server


@pytest.mark.parametrize("command", COMMANDS)
async def test_every_commands_help_has_an_example(command: str) -> None:
    done = await run(command, "--help")
    assert done.code == 0
    assert f"Example:\n  podresources {command}" in done.out


async def test_the_version_is_that_of_the_package() -> None:
    done = await run("--version")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"podresources (\d+\.\d+\.\d+\S*|from a checkout that is not installed)\n", done.out)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["list", "-o", "xml"],
        ["watch", "-o", "prom"],
        ["watch", "--interval", "0.5"],
        ["export"],
        ["export", "--listen", "9401"],
        ["export", "--listen", ":99999"],
        ["export", "--listen", ":1", "--textfile", "x"],
        ["get"],
        ["list", "--timeout", "0"],
        ["list", "--timeout", "nan"],
        ["list", "--receive-limit-mib", "-1"],
    ],
    ids=" ".join,
)
async def test_bad_command_lines_exit_2_and_say_why(arguments: list[str]) -> None:
    done = await run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "usage: podresources" in done.err


async def test_list_in_every_format() -> None:
    async with node() as server:
        where = ("--socket", server.path)
        text = (await run("list", *where)).out
        wide = (await run("list", *where, "-o", "wide")).out
        document = json.loads((await run("list", *where, "-o", "json")).out)
        assert yaml.safe_load((await run("list", *where, "-o", "yaml")).out) == document
        series = parse((await run("list", *where, "-o", "prom")).out)
    assert len(text.splitlines()) == 3
    assert len(wide.splitlines()) == 4
    assert [held["device_ids"] for held in document["allocations"]] == [[], ["G0"], ["G1"]]
    assert document["facts"]["dynamic_resources"] == "yes"
    labels = {"namespace": "ml", "pod": "train-0", "container": "main", "api": "deviceplugin", "resource": "n.com/gpu"}
    assert value(series, "podresources_device_allocation_info", **labels, device="G0", numa_node="0") == 1


async def test_an_old_kubelet_is_announced_and_not_taken_for_an_empty_node() -> None:
    async with kubelet({"List": says(listing())}) as server:
        done = await run("list", "--socket", server.path)
        assert done.code == 0
        assert "older than 1.34" in done.err
        assert "held through DRA are not in this answer" in done.err
        document = json.loads((await run("list", "--socket", server.path, "-o", "json")).out)
        assert document["facts"]["get"] == "no"
        assert len(document["facts"]["notes"]) == 2


async def test_get_one_pod() -> None:
    async with node() as server:
        done = await run("get", "train-0", "-n", "ml", "--socket", server.path, "-o", "json")
        assert {held["pod"] for held in json.loads(done.out)["allocations"]} == {"train-0"}
        missing = await run("get", "train-0", "--socket", server.path)
    assert (missing.code, missing.out) == (1, "")
    assert "pod train-0 in namespace default not found" in missing.err


async def test_allocatable_in_every_format() -> None:
    async with node() as server:
        where = ("--socket", server.path)
        assert "n.com/gpu  4      G0,G1,G2,G3  0-1" in (await run("allocatable", *where)).out
        assert len((await run("allocatable", *where, "-o", "wide")).out.splitlines()) == 5
        document = json.loads((await run("allocatable", *where, "-o", "json")).out)
        assert document["devices"][1] == {"resource": "n.com/gpu", "device_id": "G1", "numa_nodes": [1]}
        assert yaml.safe_load((await run("allocatable", *where, "-o", "yaml")).out) == document
        series = parse((await run("allocatable", *where, "-o", "prom")).out)
        assert value(series, "podresources_allocatable_devices", resource="n.com/gpu") == 4
        assert not json.loads((await run("allocatable", *where, "--resource", "x", "-o", "json")).out)["devices"]


@pytest.mark.parametrize("command", ["list", "allocatable", "watch", "top"])
async def test_without_a_socket_the_message_names_path_need_and_mount(command: str, tmp_path: Path) -> None:
    path = tmp_path / "none" / "kubelet.sock"
    done = await run(command, "--socket", path)
    assert (done.code, done.out) == (1, "")
    assert str(path) in done.err
    assert f"a hostPath volume of {path.parent}" in done.err
    assert "Traceback" not in done.err


async def test_errors_of_kubelet_exit_1_with_one_line() -> None:
    async with kubelet({"List": fails(grpc.StatusCode.INTERNAL, "broken")}) as server:
        done = await run("list", "--socket", server.path)
    assert done.code == 1
    assert done.err.startswith("podresources: ")
    assert len(done.err.splitlines()) == 1


async def test_a_reader_that_left_is_no_error() -> None:
    async with kubelet({"List": says(listing(*(pod(f"p{n}", *INFER.containers) for n in range(5000))))}) as server:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = (
            f"{sys.executable} -m podresources list -o wide --socket {server.path} | head -1; echo ${{PIPESTATUS[0]}}"
        )
        process = await asyncio.create_subprocess_exec("bash", "-c", command, stdout=PIPE, stderr=PIPE, env=environment)
        out, err = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
    assert out.decode().splitlines()[-1] == "0"
    assert err.decode() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_watch_prints_what_is_held_then_changes_and_ends_with_0(number: int) -> None:
    async with node() as server:
        process = await start("watch", "--socket", server.path, "--interval", "1", "-o", "json", "-n", "ml")
        assert process.stdout is not None
        lines = [json.loads(await asyncio.wait_for(process.stdout.readline(), HANG_SECONDS)) for _ in range(2)]
        assert [(line["event"], line["device_ids"]) for line in lines] == [("held", ["G0"]), ("held", ["G1"])]
        more = pod("train-1", container("main", device("n.com/gpu", "G2")), namespace="ml")
        server.answers["List"] = says(listing(TRAIN, more, INFER))
        line = json.loads(await asyncio.wait_for(process.stdout.readline(), HANG_SECONDS))
        assert (line["event"], line["pod"]) == ("assigned", "train-1")
        done = await interrupt(process, number)
    assert (done.code, done.err) == (0, "")


async def test_watch_for_people_shows_capacity_and_outages() -> None:
    async with node() as server:
        process = await start("watch", "--socket", server.path, "--interval", "1", "--timeout", "20")
        assert process.stdout is not None
        for _ in range(3):
            assert b"held" in await asyncio.wait_for(process.stdout.readline(), HANG_SECONDS)
        server.answers["GetAllocatableResources"] = says(capacity(device("n.com/gpu", "G0")))
        assert b"n.com/gpu  4 -> 1  -G1 -G2 -G3" in await asyncio.wait_for(process.stdout.readline(), HANG_SECONDS)
        server.answers["List"] = fails(grpc.StatusCode.INTERNAL, "broken")
        assert b"interrupted" in await asyncio.wait_for(process.stdout.readline(), HANG_SECONDS)
        assert (await interrupt(process)).code == 0


async def test_export_serves_prometheus_until_told_to_stop() -> None:
    async with node() as server:
        port = free_port()
        process = await start("export", "--listen", f"127.0.0.1:{port}", "--socket", server.path)
        assert process.stderr is not None
        assert b"serving" in await asyncio.wait_for(process.stderr.readline(), HANG_SECONDS)
        series = parse(await asyncio.to_thread(fetch, port))
        assert value(series, "podresources_up") == 1
        assert value(series, "podresources_allocatable_devices", resource="n.com/gpu") == 4
        second = await run("export", "--listen", f"127.0.0.1:{port}", "--socket", server.path)
        assert (second.code, "Cannot listen" in second.err) == (1, True)
        assert (await interrupt(process)).code == 0


@pytest.mark.parametrize(("host", "outside"), [("", False), ("*", True)])
async def test_export_listens_for_this_machine_unless_it_is_told_otherwise(host: str, outside: bool) -> None:
    async with node() as server:
        port = free_port()
        process = await start("export", "--listen", f"{host}:{port}", "--socket", server.path)
        assert process.stderr is not None
        assert b"serving" in await asyncio.wait_for(process.stderr.readline(), HANG_SECONDS)
        assert "podresources_up 1.0" in await asyncio.to_thread(fetch, port)
        with socket.socket() as other:  # another address of this machine stands for one of the network
            assert (other.connect_ex(("127.0.0.2", port)) == 0) is outside
        assert (await interrupt(process, signal.SIGINT)).code == 0


async def test_idle_connections_cost_a_bounded_number_of_threads_and_end() -> None:
    def threads(pid: int) -> int:
        text = Path(f"/proc/{pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Threads"))

    async with node() as server:
        port = free_port()
        process = await start("export", "--listen", f":{port}", "--socket", server.path)
        assert process.stderr is not None
        await asyncio.wait_for(process.stderr.readline(), HANG_SECONDS)
        before = threads(process.pid)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in idle[-40:])), HANG_SECONDS)
        assert threads(process.pid) <= before + 16
        await asyncio.wait_for(asyncio.gather(*(reader.read() for reader, _ in idle)), HANG_SECONDS)
        assert "podresources_up 1.0" in await asyncio.to_thread(fetch, port)
        for _, writer in idle:
            writer.close()
        assert (await interrupt(process)).code == 0


async def test_export_writes_a_textfile_for_node_exporter(tmp_path: Path) -> None:
    target = tmp_path / "podresources.prom"
    async with node() as server:
        done = await run("export", "--textfile", target, "--socket", server.path)
    assert (done.code, done.err) == (0, "")
    assert value(parse(target.read_text()), "podresources_up") == 1
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [target], "no temporary file is left"


async def test_a_textfile_says_down_when_kubelet_is(tmp_path: Path) -> None:
    target = tmp_path / "podresources.prom"
    done = await run("export", "--textfile", target, "--socket", tmp_path / "kubelet.sock")
    assert done.code == 1
    assert "There is no kubelet.sock" in done.err
    assert value(parse(target.read_text()), "podresources_up") == 0


async def test_a_textfile_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    async with node() as server:
        done = await run("export", "--textfile", tmp_path / "none/x.prom", "--socket", server.path)
    assert done.code == 1
    assert "Its directory must exist" in done.err


async def test_a_textfile_is_replaced_whole_at_every_interval(tmp_path: Path) -> None:
    """A reader that opens it at any moment sees a complete exposition, and each is another file."""
    target = tmp_path / "podresources.prom"
    async with node() as server:
        process = await start("export", "--textfile", target, "--interval", "1", "--socket", server.path)
        inodes = set[int]()
        for look in range(250 * PATIENCE):
            if look >= 250 and len(inodes) >= 2:
                break
            await asyncio.sleep(0.01)
            if target.exists():
                with target.open() as file:
                    inodes.add(os.fstat(file.fileno()).st_ino)
                    assert file.read().endswith("\n")
        assert (await interrupt(process)).code == 0
    assert len(inodes) >= 2, "it was written over in place"


async def test_top_prints_once_into_a_pipe() -> None:
    async with node() as server:
        done = await run("top", "--socket", server.path)
        only = await run("top", "--socket", server.path, "-n", "ml")
    assert done.code == 0
    assert "\x1b" not in done.out
    assert done.out.startswith("n.com/gpu 2/4 held   gpu.example.com 1 held\n")
    assert "ml/train-0/main" in done.out
    assert "gpu-0" not in only.out


async def test_top_refreshes_in_place_on_a_terminal() -> None:
    """On a real pseudo-terminal: alternate screen, two frames of which the second is new, and the screen given back."""
    async with node() as server:
        ours, theirs = os.openpty()
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "70", "LINES": "20"}
        command = (sys.executable, "-m", "podresources", "top", "--interval", "1", "--socket", str(server.path))
        process = await asyncio.create_subprocess_exec(*command, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        os.set_blocking(ours, False)
        seen = b""

        async def shows(text: bytes) -> None:
            nonlocal seen
            for _ in range(500 * PATIENCE):
                try:
                    seen += os.read(ours, 65536)
                except OSError:  # nothing yet, or the other end is closed
                    await asyncio.sleep(0.02)
                if text in seen:
                    return
            raise AssertionError(f"{text!r} is not in {seen!r}")

        await shows(b"n.com/gpu 2/4 held")
        server.answers["List"] = says(listing(INFER))
        await shows(b"n.com/gpu 0/4 held")
        server.answers["List"] = fails(grpc.StatusCode.INTERNAL, "broken")
        await shows(b"broken")
        process.terminate()
        await shows(b"\x1b[?1049l")
        assert await asyncio.wait_for(process.wait(), HANG_SECONDS) == 0
        os.close(ours)
    assert b"\x1b[?1049h" in seen
