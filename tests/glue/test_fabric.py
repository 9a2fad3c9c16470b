"""What schedulers see of devices that several nodes reach, while the file, the devices and the API server change."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.glue.coordinator_life import Life, play  # isort: skip  # first: it brings the clock
from drabridge.offers.slices import slice_name
from tests.glue.worlds import DRIVER

Json = dict[str, Any]
POOL = f"{DRIVER}/fabric"
HEAD = f"""\
apiVersion: drabridge/v1alpha1
kind: AgentConfig
driver: {DRIVER}
resources: [{{name: example.com/kvm, match: [{{sysname: kvm}}]}}]
"""
KEY = f"{DRIVER}/unreachable"


class Hall:
    """The configuration file, and hosts: what happens to those who connect to a port of theirs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = root / "config.yaml"
        self.hosts: dict[str, BaseException | float | None] = {}  # an error, or the seconds that it takes
        self.connections: list[str] = []
        self.open = 0  # connections
        self.logged: list[logging.LogRecord] = []
        monkeypatch.setattr(asyncio, "open_connection", self._connect)

    def write(self, *devices: str) -> None:
        self.file.write_text(HEAD + ("fabric:\n" + "".join(f"- {one}\n" for one in devices) if devices else ""))

    async def _connect(self, host: str, port: int) -> tuple[None, Any]:
        self.connections.append(f"{host}:{port}")
        answer = self.hosts[host]
        if isinstance(answer, BaseException):
            raise answer
        await asyncio.sleep(answer or 0.0)
        return None, _Writer(self)


class _Kept(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


class _Writer:
    def __init__(self, hall: Hall) -> None:
        self._hall = hall
        hall.open += 1

    @property
    def transport(self) -> _Writer:
        return self

    def abort(self) -> None:
        self._hall.open -= 1


@pytest.fixture
def hall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hall:
    return Hall(tmp_path, monkeypatch)


def tell(hall: Hall, script: Callable[[Life], Awaitable[None]]) -> None:
    """Run a script beside a coordinator that leads."""

    async def leading(one: Life) -> None:
        one.begins()
        await script(one)

    handler = _Kept(hall.logged)
    logging.getLogger().addHandler(handler)
    try:
        play(leading, hall.file)
    finally:
        logging.getLogger().removeHandler(handler)
    assert [record.getMessage() for record in hall.logged if record.levelno >= logging.ERROR] == []


def slices(one: Life, pool: str = POOL) -> list[Json]:
    found = one.objects.list("resourceslices")
    return sorted(
        (dict(it) for it in found if it["spec"]["pool"]["name"] == pool), key=lambda it: it["metadata"]["name"]
    )


def devices(one: Life, pool: str = POOL) -> dict[str, list[str]]:
    """The devices that a pool offers, each with the values of its taints."""
    rows = [device for it in slices(one, pool) for device in it["spec"].get("devices", ())]
    return {row["name"]: [taint["value"] for taint in row.get("taints", ())] for row in rows}


def test_only_the_leader_publishes_and_nothing_is_written_without_a_difference(hall: Hall) -> None:
    hall.write("{name: a}", "{name: b, pool: hall}")

    async def script(one: Life) -> None:
        await asyncio.sleep(30.0)
        assert slices(one) == []
        one.begins()
        await asyncio.sleep(10.0)
        assert (devices(one), devices(one, f"{POOL}/hall")) == ({"a": []}, {"b": []})
        revision, lists = one.objects.store.revision, one.connection.lists["resourceslices"]
        asked = one.connection.reads, one.connection.questions
        await asyncio.sleep(100.0)
        assert (one.connection.reads, one.connection.questions) == asked
        assert one.objects.store.revision == revision
        assert 15 <= one.connection.lists["resourceslices"] - lists <= 22
        one.heard()
        assert one.ready() == []

    play(script, hall.file)


def test_what_the_file_says_and_what_people_delete_is_there_again_within_seconds(hall: Hall) -> None:
    hall.write(*(f"{{name: d{number:03}}}" for number in range(70)))

    async def script(one: Life) -> None:
        foreign: Json = {
            "driver": DRIVER,
            "nodeName": "n",
            "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        }
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "n"}, "spec": foreign}
        one.objects.create(body)
        everywhere = {**foreign, "pool": {**foreign["pool"], "name": "another"}, "allNodes": True}
        del everywhere["nodeName"]
        one.objects.create({**body, "metadata": {"name": "everywhere"}, "spec": everywhere})
        theirs = {**everywhere, "driver": "other.example.com", "pool": {**foreign["pool"], "name": "other/fabric"}}
        one.objects.create({**body, "metadata": {"name": "theirs"}, "spec": theirs})
        await asyncio.sleep(10.0)
        assert len(devices(one)) == 70
        assert [it["spec"]["pool"]["resourceSliceCount"] for it in slices(one)] == [2, 2]
        hall.write("{name: x}")
        await asyncio.sleep(15.0)
        assert devices(one) == {"x": []}
        one.objects.delete("resourceslices", slices(one)[0]["metadata"]["name"])
        await asyncio.sleep(6.0)
        assert devices(one) == {"x": []}
        hall.write()
        await asyncio.sleep(15.0)
        assert slices(one) == []
        assert slices(one, "n"), "it belongs to a node"
        assert slices(one, "another"), "it is none of the fabric's"
        assert slices(one, "other/fabric"), "it is another driver's"
        hall.file.write_text(hall.file.read_text().replace(DRIVER, "other.example.com"))
        await asyncio.sleep(15.0)
        assert any(f"this coordinator runs for {DRIVER}" in str(vars(record)) for record in hall.logged)
        hall.logged.clear()

    tell(hall, script)


def test_a_slice_that_somebody_mends_while_it_is_deleted_stays(hall: Hall) -> None:
    hall.write("{name: a}")

    async def script(one: Life) -> None:
        pool = {"name": "another", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "allNodes": True, "pool": pool, "devices": [{"name": "good"}]}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "strange"},
            "spec": spec,
        }

        def mend() -> None:
            one.connection.before_delete = lambda: None
            one.objects.delete("resourceslices", "strange")
            one.objects.create(body)

        one.objects.create(body)
        stored = next(it for it in one.objects.peek("resourceslices") if it["metadata"]["name"] == "strange")
        stored["spec"]["devices"] = [{"name": 7}]
        one.connection.before_delete = mend
        await asyncio.sleep(30.0)
        assert devices(one, "another") == {"good": []}

    tell(hall, script)


def test_what_a_webhook_of_the_cluster_adds_is_not_written_again_and_again(hall: Hall) -> None:
    hall.write("{name: a}")

    async def script(one: Life) -> None:
        def admit(body: Json) -> None:
            for device in body["spec"]["devices"]:
                device.setdefault("attributes", {})["site"] = {"string": "north"}

        one.connection.admit = admit
        await asyncio.sleep(10.0)
        assert devices(one) == {"a": []}
        await asyncio.sleep(30.0)
        assert one.connection.replaced == 0

    tell(hall, script)


def test_what_an_earlier_file_had_is_deleted_when_there_are_no_such_devices_any_more(hall: Hall) -> None:
    hall.write()

    async def script(one: Life) -> None:
        pool = {"name": POOL, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "allNodes": True, "pool": pool, "devices": [{"name": "old"}]}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "old"}, "spec": spec}
        one.objects.create(body)
        await asyncio.sleep(6.0)
        assert slices(one) == []

    tell(hall, script)


def test_a_leader_that_cannot_publish_says_so_and_tries_ever_less_often(hall: Hall) -> None:
    hall.write("{name: a}")

    async def script(one: Life) -> None:
        await asyncio.sleep(10.0)
        one.trouble.deaf_to.add("resourceslices")
        reads = one.connection.reads
        await asyncio.sleep(8.0)
        one.heard()
        assert one.ready() == []
        await asyncio.sleep(52.0)
        one.heard()
        (why,) = one.ready()
        assert 53 <= int(why.removeprefix("fabric devices could not be published for ").removesuffix(" s")) <= 60
        await asyncio.sleep(40.0)
        assert one.healthy(), "another one would have the same trouble, and claims are served"
        assert 5 <= one.connection.reads - reads <= 14, "it may be another server now"
        one.trouble.deaf_to.clear()
        hall.write("{name: b}")
        await asyncio.sleep(40.0)
        one.heard()
        assert (devices(one), one.ready()) == ({"b": []}, [])
        one.trouble.deaf_to.add("resourceslices")
        await asyncio.sleep(8.0)
        one.trouble.deaf_to.clear()
        hall.write("{name: c}")
        await asyncio.sleep(12.0)
        assert devices(one) == {"c": []}, "the pauses are short again"

    tell(hall, script)


def test_what_the_server_refuses_or_nobody_can_read_stops_no_other_pool(hall: Hall) -> None:
    hall.write("{name: a, pool: first}", "{name: b, pool: last}")

    async def script(one: Life) -> None:
        pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
        taken = slice_name(DRIVER, f"{DRIVER}.fabric.first", 0)
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": taken}}
        one.objects.create({**body, "spec": {"driver": DRIVER, "nodeName": "n", "pool": pool}})
        strange = {"driver": DRIVER, "allNodes": True, "pool": {**pool, "name": POOL}}
        one.objects.create({**body, "metadata": {"name": "strange"}, "spec": strange})
        stored = next(it for it in one.objects.peek("resourceslices") if it["metadata"]["name"] == "strange")
        stored["spec"]["devices"] = [{"name": 7}]
        await asyncio.sleep(20.0)
        assert devices(one, f"{POOL}/last") == {"b": []}
        assert slices(one) == [], "nobody knows what it offers"
        one.heard()
        assert one.ready()
        one.objects.delete("resourceslices", taken)
        await asyncio.sleep(31.0)
        assert devices(one, f"{POOL}/first") == {"a": []}
        one.heard()
        assert one.ready() == []

    tell(hall, script)


def test_a_device_that_does_not_answer_is_in_no_slice_where_the_server_keeps_no_taints(hall: Hall) -> None:
    hall.write("{name: a, health: {host: 10.0.0.1, port: 9, everySeconds: 5}}")
    hall.hosts["10.0.0.1"] = ConnectionRefusedError()

    async def script(one: Life) -> None:
        one.api.gates["DRADeviceTaints"] = False
        await asyncio.sleep(20.0)
        assert devices(one) == {}
        revision = one.objects.store.revision
        await asyncio.sleep(60.0)
        assert one.objects.store.revision == revision
        hall.hosts["10.0.0.1"] = None
        await asyncio.sleep(12.0)
        assert devices(one) == {"a": []}
        one.api.gates["DRADeviceTaints"] = True
        one.trouble.deaf_to.add("resourceslices")  # a server that is away for a while may be another one
        await asyncio.sleep(8.0)
        one.trouble.deaf_to.clear()
        hall.hosts["10.0.0.1"] = ConnectionRefusedError()
        await asyncio.sleep(40.0)
        assert devices(one) == {"a": ["refused"]}
        one.api.gates["DRADeviceTaints"] = False
        hall.hosts["10.0.0.1"] = None
        await asyncio.sleep(12.0)
        hall.hosts["10.0.0.1"] = ConnectionRefusedError()
        await asyncio.sleep(40.0)
        assert devices(one) == {}, "the server's answer to the write showed it"

    tell(hall, script)


def checked(name: str, more: str = "") -> str:
    return (
        f"{{name: {name}, health: {{host: 10.0.0.1, port: 9, everySeconds: 10, failures: 3, timeoutSeconds: 4{more}}}}}"
    )


def test_a_device_is_for_nobody_new_after_it_did_not_answer_three_times_and_until_it_does(hall: Hall) -> None:
    hall.write(checked("a"))

    async def script(one: Life) -> None:
        await asyncio.sleep(5.0)
        assert devices(one) == {"a": []}
        for trouble, word in ((ConnectionRefusedError(), "refused"), (OSError(), "unreachable"), (5.0, "timeout")):
            hall.hosts["10.0.0.1"] = trouble
            await asyncio.sleep(21.0)
            assert devices(one) == {"a": []}, "twice is no pattern"
            hall.hosts["10.0.0.1"] = None
            await asyncio.sleep(10.0)
            hall.hosts["10.0.0.1"] = trouble
            await asyncio.sleep(21.0)
            assert devices(one) == {"a": []}, "it answered between them"
            await asyncio.sleep(16.0)
            assert devices(one) == {"a": [word]}
            revision = one.objects.store.revision
            hall.hosts["10.0.0.1"] = OSError()
            await asyncio.sleep(40.0)
            assert one.objects.store.revision == revision, "another reason is no news"
            hall.hosts["10.0.0.1"] = 3.0
            await asyncio.sleep(21.0)
            assert devices(one) == {"a": []}

    hall.hosts["10.0.0.1"] = None
    tell(hall, script)


def test_a_new_device_is_for_nobody_until_it_has_answered_and_one_that_was_published_stays_as_it_was(
    hall: Hall,
) -> None:
    """A leader that begins knows of no answer: devices that pods have must not be evicted for that."""
    hall.write(checked("a"))
    hall.hosts["10.0.0.1"] = 3.9

    async def first(one: Life) -> None:
        await asyncio.sleep(2.0)
        assert devices(one) == {"a": ["unchecked"]}
        await asyncio.sleep(4.0)
        assert devices(one) == {"a": []}
        hall.write(checked("a"), checked("b"))
        await asyncio.sleep(11.0)
        assert devices(one)["a"] == []
        hall.hosts["10.0.0.1"] = OSError()
        await asyncio.sleep(60.0)
        assert devices(one) == {"a": ["unreachable"], "b": ["unreachable"]}
        left.extend(slices(one))

    async def second(one: Life) -> None:
        for it in left:
            one.objects.create(
                {key: value for key, value in it.items() if key != "metadata"}
                | {"metadata": {"name": it["metadata"]["name"]}}
            )
        hall.write(checked("a"), checked("b"), checked("c"))
        hall.hosts["10.0.0.1"] = 3.9
        one.begins()
        await asyncio.sleep(3.0)
        assert devices(one) == {"a": ["unreachable"], "b": ["unreachable"], "c": ["unchecked"]}
        await asyncio.sleep(12.0)
        assert devices(one) == {"a": [], "b": [], "c": []}

    left: list[Json] = []
    tell(hall, first)
    play(second, hall.file)


def test_a_check_follows_its_configuration_and_ends_with_its_device(hall: Hall) -> None:
    hall.write(checked("a"))
    hall.hosts |= {"10.0.0.1": OSError(), "10.0.0.2": None}

    async def script(one: Life) -> None:
        await asyncio.sleep(40.0)
        assert devices(one) == {"a": ["unreachable"]}
        hall.write(checked("a").replace("10.0.0.1", "10.0.0.2"))
        await asyncio.sleep(15.0)
        assert devices(one) == {"a": []}
        hall.connections.clear()
        await asyncio.sleep(50.0)
        assert set(hall.connections) == {"10.0.0.2:9"}
        assert len(hall.connections) in (5, 6)
        hall.write("{name: a}")
        await asyncio.sleep(20.0)
        hall.connections.clear()
        await asyncio.sleep(50.0)
        assert hall.connections == []
        hall.hosts["10.0.0.1"] = OSError()
        hall.write(checked("a"))
        await asyncio.sleep(45.0)
        assert devices(one) == {"a": ["unreachable"]}
        hall.write("{name: a}")
        await asyncio.sleep(20.0)
        assert devices(one) == {"a": []}, "nobody checks it any more"
        assert hall.open == 0

    tell(hall, script)


def test_names_are_looked_up_and_each_address_is_tried(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ("10.0.0.1", "10.0.0.2", "10.0.0.2")
    ]
    answer: list[Any] = [rows]

    def resolve(host: str, *_: Any, **more: Any) -> Any:
        assert (host, more) == ("camera.example", {"type": socket.SOCK_STREAM})
        if isinstance(answer[0], Exception):
            raise answer[0]
        return answer[0]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    hall.write(checked("a").replace("10.0.0.1", "camera.example"))
    hall.hosts |= {"10.0.0.1": OSError(), "10.0.0.2": None}

    async def script(one: Life) -> None:
        await asyncio.sleep(8.0)
        assert devices(one) == {"a": []}
        assert hall.connections == ["10.0.0.1:9", "10.0.0.2:9"]
        hall.hosts["10.0.0.2"] = ConnectionRefusedError()
        await asyncio.sleep(40.0)
        assert devices(one) == {"a": ["refused"]}
        for error, word in ((socket.gaierror(), "name-unknown"), (UnicodeError(), "unreachable")):
            answer[0], hall.hosts["10.0.0.2"] = rows, None
            await asyncio.sleep(20.0)
            assert devices(one) == {"a": []}
            answer[0] = error
            await asyncio.sleep(45.0)
            assert devices(one) == {"a": [word]}

    tell(hall, script)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lookup")]
