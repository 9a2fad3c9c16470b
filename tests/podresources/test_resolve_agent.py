"""An agent's socket that hangs, dribbles, lies or is nobody's costs a second at most, and no answer of kubelet."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads

import pytest
from msgspec.structs import replace

from podresources.model import Api, PodAllocation
from podresources.resolve.agent import MOST_BYTES, Agents, sockets
from podresources.resolve.cdi import CdiFiles
from podresources.resolve.resolver import NodePaths, Resolved, Resolver
from tests.podresources.metrics_page import Scraped, count, value
from tests.podresources.resolve_node import NodeFiles, agent, strange_agent
from tests.support.podresources_server import container, device, kubelet, listing, pod, says, socket_directory
from tests.support.status_documents import NOW, by_pod, gpu, many, status
from tests.support.waiting import PATIENCE

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
HELD = PodAllocation("ml", "t", "main", Api.DEVICE_PLUGIN, resource="nvidia.com/gpu", device_ids=(gpu(1).id,))


@pytest.fixture
async def path() -> AsyncIterator[Path]:
    async with socket_directory() as directory:
        yield directory / "control.sock"


@pytest.mark.parametrize(
    ("answer", "every_seconds", "said"),
    [
        (b"", 0, "no answer in time"),
        (HEAD, 0, "no answer in time"),
        (HEAD + b"Content-Length: 1000\r\n\r\n" + b" " * 900, 0.02, "no answer in time"),
    ],
    ids=["silent", "half a head", "one byte at a time"],
)
async def test_an_agent_that_hangs_costs_its_time_and_no_more(
    path: Path, answer: bytes, every_seconds: float, said: str
) -> None:
    async with strange_agent(path, answer, every_seconds=every_seconds):
        started = time.monotonic()
        (problem,) = await asyncio.to_thread(Agents().ask, [path], 0.3)
        assert time.monotonic() - started < 0.3 + PATIENCE
    assert said in problem
    assert str(path) in problem


async def test_all_agents_together_have_one_time(path: Path) -> None:
    others = [path.with_name(f"{number}.sock") for number in range(5)]
    async with strange_agent(path, b""):
        for other in others:
            other.symlink_to(path)
        started = time.monotonic()
        problems = await asyncio.to_thread(Agents().ask, [path, *others], 0.3)
        assert time.monotonic() - started < 0.3 + PATIENCE
    assert len(problems) == 6


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"SSH-2.0-x\r\n", "SSH-2.0-x"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answered 404"),
        (HEAD + b"Content-Length: 3\r\n\r\n{]}", "malformed"),
        (HEAD + b"Content-Length: 2\r\n\r\n[]", "Expected `object`"),
        (HEAD + b'Content-Length: 25\r\n\r\n{"driver": 1, "devices":1}', "Expected `str`"),
        (HEAD + b"Content-Length: 500\r\n\r\n{}", "IncompleteRead"),
        (HEAD + b'Content-Length: 3008\r\n\r\n{"more":' + b"[" * 3000, "recursion"),
    ],
)
async def test_an_answer_that_is_no_status_document_is_named(path: Path, answer: bytes, said: str) -> None:
    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = asyncio.create_task(asyncio.to_thread(serve, listener))
        (problem,) = await asyncio.to_thread(Agents().ask, [path], 5.0 * PATIENCE)
        await thread
    assert said in problem


async def test_an_answer_without_an_end_is_cut(path: Path) -> None:
    def serve(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)
            try:
                for _ in range(MOST_BYTES // (1 << 20) + 8):
                    peer.sendall(b" " * (1 << 20))
            except OSError:
                return

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = asyncio.create_task(asyncio.to_thread(serve, listener))
        (problem,) = await asyncio.to_thread(Agents().ask, [path], 5.0 * PATIENCE)
        await thread
    assert "larger than 33,554,432 bytes" in problem


async def test_a_socket_of_nobody_is_named(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(path))
    (problem,) = Agents().ask([path])
    assert "Connection refused" in problem


async def test_agents_are_found_in_kubelets_plugins_and_files_of_that_name_are_not(path: Path) -> None:
    plugins = path.parent / "plugins"
    (plugins / "a").mkdir(parents=True)
    (plugins / "b").mkdir()
    (plugins / "b/control.sock").write_text("no socket")
    async with agent(plugins / "a/control.sock", many(3)):
        assert sockets(plugins) == [plugins / "a/control.sock"]
    assert sockets(path.parent / "none") == []


async def test_a_document_of_thousands_of_devices_is_read(path: Path) -> None:
    document = many(4096)
    assert len(json.dumps(document)) < MOST_BYTES / 4
    async with agent(path, document):
        agents = Agents()
        assert await asyncio.to_thread(agents.ask, [path], 5.0 * PATIENCE) == []
    assert agents.facts(HELD, gpu(1).id).pci_bus_id == gpu(1).pci_bus_id


async def test_one_agent_that_hangs_hides_no_other(path: Path) -> None:
    good = path.with_name("good.sock")
    async with strange_agent(path, b""), agent(good, status([gpu(1)], [by_pod(gpu(1), "ml/t/main", NOW)])):
        agents = Agents()
        (problem,) = await asyncio.to_thread(agents.ask, [good, path], 0.5)
    assert str(path) in problem
    assert agents.facts(HELD, gpu(1).id).uuid == gpu(1).id


async def test_an_earlier_pod_of_the_same_name_on_another_device_is_not_taken_for_this_one(path: Path) -> None:
    """Its hold waits for evidence; a StatefulSet's next pod has the name meanwhile."""
    rows = [by_pod(gpu(number), "ml/t/main", NOW) for number in (1, 2)]
    document = status([gpu(1), gpu(2)], rows)
    for row, uid in zip(document["devices"], ("uid-of-now", "uid-of-before"), strict=True):
        row["holders"][0]["podUID"] = uid
    async with agent(path, document):
        agents = Agents()
        assert await asyncio.to_thread(agents.ask, [path], 5.0 * PATIENCE) == []
        assert agents.pod_uid(HELD, gpu(1).id) == "uid-of-now"
        document["devices"][0]["holders"] *= 2
        document["devices"][0]["holders"][1] = {**document["devices"][0]["holders"][0], "podUID": "uid-of-before"}
        assert await asyncio.to_thread(agents.ask, [path], 5.0 * PATIENCE) == []
        assert agents.pod_uid(HELD, gpu(1).id) == "", "two pods of that name: nobody knows which"


async def test_what_is_known_is_not_asked_for_again_until_something_else_is_held(path: Path) -> None:
    """The agent's loop is not ours to use up: while all is known and nothing changes, it is asked once."""
    asked = 0
    document = status([gpu(1)], [by_pod(gpu(1), "ml/t/main", NOW)])
    document["devices"][0]["holders"][0]["podUID"] = "0b6ad0a3-3bd6-4f8e-9a0c-4c8a0f1f6a11"

    class Counted(dict[str, object]):
        def items(self):  # type: ignore[no-untyped-def] # json.dumps asks for them once a request
            nonlocal asked
            asked += 1
            return super().items()

    async with agent(path, Counted(document)):
        resolver = Resolver(NodePaths(path.parent, (path,)))
        for _ in range(5):
            found = await asyncio.to_thread(resolver.resolve, [HELD])
        assert asked == 1
        assert found.of(HELD).facts.uuid == gpu(1).id
        await asyncio.to_thread(resolver.resolve, [])
        assert asked == 2


async def test_a_scrape_goes_on_with_an_agent_that_hangs(path: Path) -> None:
    held = pod("t", container("main", device("nvidia.com/gpu", gpu(1).id)), namespace="ml")
    async with strange_agent(path, b""), kubelet({"List": says(listing(held))}) as server:
        scraped = Scraped(server.path, resolver=Resolver(NodePaths(path.parent, (path,)), agent_seconds=0.3))
        series = await scraped.scrape()
        again = await scraped.scrape()
        scraped.exporter.close()
    assert value(series, "podresources_resolve_problems", source="agent") == 1
    assert value(series, "podresources_up") == 1
    assert count(again, "podresources_device_resolved_info") == 1


async def test_a_disk_that_hangs_costs_its_time_and_what_was_known_stays(path: Path) -> None:
    """The thread that reads is stuck as in an uninterruptible read; scrapes go on with what was found before."""
    stuck, go_on = Event(), Event()

    class OnHangingDisk(Resolver):
        def _resolve(self, allocations: Sequence[PodAllocation]) -> Resolved:
            if len(allocations) > 1:
                stuck.set()
                go_on.wait()
            return super()._resolve(allocations)

    other = replace(HELD, pod="other")
    async with agent(path, status([gpu(1)], [by_pod(gpu(1), "ml/t/main", NOW)])):
        resolver = OnHangingDisk(NodePaths(path.parent, (path,)))
        before = await asyncio.to_thread(resolver.resolve, [HELD], 5.0 * PATIENCE)
        assert "host" not in before.problems
        started = time.monotonic()
        for _ in range(3):
            found = await asyncio.to_thread(resolver.resolve, [HELD, other], 0.1)
            assert "a disk hangs" in found.problems["host"][0]
        assert time.monotonic() - started < 0.3 + PATIENCE
        assert stuck.is_set()
        assert found.of(HELD).facts.uuid == gpu(1).id
        assert sum(thread.name == "resolve" for thread in enumerate_threads()) == 1, (
            "one thread waits, not one a scrape"
        )
        go_on.set()
        after = await asyncio.to_thread(resolver.resolve, [HELD, other], 5.0 * PATIENCE)
    assert "host" not in after.problems
    assert after.of(other).facts.uuid == gpu(1).id


def test_files_are_read_again_when_they_changed_and_only_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that cannot be read: a large one would be parsed at every look."""
    files = NodeFiles(tmp_path)
    read: list[str] = []

    def counted(path: Path) -> bytes:
        read.append(path.name)
        return path.read_bytes()

    monkeypatch.setattr("podresources.resolve.cdi.read", counted)
    torn = files.cdi("torn.json", "x.com/y", {"name": "a", "containerEdits": {}})
    torn.write_text("{")
    files.cdi("good.json", "x.com/y", {"name": "b", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=GPU-12345678"]}})
    found = CdiFiles(tmp_path)
    assert [len(found.refresh()) for _ in range(3)] == [1, 1, 1]
    assert sorted(read) == ["good.json", "torn.json"]
    assert found.edits("x.com/y=b").uuids == ("GPU-12345678",)
    files.cdi("torn.json", "x.com/y", {"name": "a", "containerEdits": {}})
    (tmp_path / "var/run/cdi/good.json").unlink()
    assert found.refresh() == []
    assert read[2:] == ["torn.json"]
    assert found.edits("x.com/y=b").uuids == ()
