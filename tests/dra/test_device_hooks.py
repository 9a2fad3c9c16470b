"""Profile hooks: initialisation at prepare, clean-up at unprepare, what happens when they fail."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.config.container import Hook
from drabridge.containers.hooks import run_hook
from drabridge.dra.planning import Planner
from drabridge.dra.records import RecordState, RecordStore
from drabridge.errors import HostError
from drabridge.inventory.devices import Device, DeviceNode, Presence
from drabridge.ledger.entries import ClaimRef, Owner, PodRef
from drabridge.ledger.events import Observed
from tests.support.dra_node import CONFIG, a_node, gpu, text_of, with_profile
from tests.support.waiting import PATIENCE, until


def script(text: str, seconds: int = 60) -> str:
    return f"{{command: [/bin/sh, -c, '{text}'], timeoutSeconds: {seconds}}}"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


async def test_hooks_run_around_a_claim_and_know_their_device(log: Path) -> None:
    line = f"echo $DRABRIDGE_PHASE $DRABRIDGE_DEVICE $DRABRIDGE_CLAIM $DRABRIDGE_NODES >> {log}"
    async with a_node(with_profile(f"prepare: {script(line)}, unprepare: {script(line)}")) as node:
        claim = node.claims.add("cl", "gpu-1", "gpu-2")
        await node.prepared(claim)
        await node.prepared(claim)  # a replay does nothing twice
        await node.unprepare(claim)
    assert log.read_text().splitlines() == [
        "prepare gpu-1 default/cl /dev/null",
        "prepare gpu-2 default/cl /dev/null",
        "unprepare gpu-2 default/cl /dev/null",
        "unprepare gpu-1 default/cl /dev/null",
    ]


async def test_a_failed_prepare_hook_is_undone_and_its_output_is_in_the_message(log: Path) -> None:
    prepare = script('[ "$DRABRIDGE_DEVICE" = gpu-1 ] || { echo no firmware; exit 7; }')
    undo = script(f"echo undone $DRABRIDGE_DEVICE >> {log}")
    quoted = with_profile(f"prepare: {prepare}, unprepare: {undo}").replace("'[ ", '"[ ').replace("; }'", '; }"')
    quoted = quoted.replace('"$DRABRIDGE_DEVICE"', "$DRABRIDGE_DEVICE")
    async with a_node(quoted) as node:
        error = await node.refused(node.claims.add("cl", "gpu-1", "gpu-2"))
        assert "failed for gpu-2 with status 7: no firmware" in error
        assert log.read_text().splitlines() == ["undone gpu-2", "undone gpu-1"]
        assert node.records() == []
        assert node.cdi_files() == []
        assert node.owner("gpu-1") is Owner.DRA_GRANTED


async def test_only_the_end_of_a_hooks_output_is_kept_in_memory() -> None:
    """Only the last part is kept: a process that the hook leaves running may write for ever."""
    text = "head -c 5000000 /dev/zero | tr '\\0' x; readlink /proc/self/fd/1"
    said = await run_hook(Hook(command=("/bin/sh", "-c", text), timeout_seconds=300), None, "gpu")
    assert len(said) <= 2_000
    assert "xxxpipe:[" in said


async def test_a_process_that_a_hook_leaves_running_may_go_on_to_write(tmp_path: Path) -> None:
    done, gate = tmp_path / "done", tmp_path / "gate"
    later = f"(while [ ! -e {gate} ]; do sleep 0.01; done; head -c 300000 /dev/zero && touch {done}) & echo now"
    assert await run_hook(Hook(command=("/bin/sh", "-c", later)), None, "gpu") == "now"
    gate.touch()
    await until(done.exists)


async def test_a_hook_that_does_not_end_is_killed() -> None:
    async with a_node(with_profile(f"prepare: {script('sleep 60', 1)}")) as node:
        assert "did not end for gpu-1 within 1 s; it was killed" in await node.refused(node.claims.add("cl", "gpu-1"))


async def test_a_claim_gets_its_device_as_the_hook_left_it(log: Path) -> None:
    """The hook binds a driver, which makes another device node. The inventory sees it before the claim is prepared."""
    hook = script(f"echo ran >> {log}; while [ -s {log} ]; do sleep 0.01; done", 60)
    async with a_node(with_profile(f"prepare: {hook}")) as node:
        claim = node.claims.add("cl", "gpu-1")
        preparing = asyncio.ensure_future(node.prepared(claim))
        await until(log.read_text, why="the hook")
        await node.set_devices(gpu(0), gpu(1, nodes=(DeviceNode("/dev/zero", "/dev/gpu1", "rw", "c", 1, 5),)))
        await asyncio.sleep(0.1)  # the files of claims follow the inventory
        log.write_text("")
        await preparing
        assert "/dev/zero" in text_of(node, claim)


@pytest.mark.parametrize("env", [{}, {"GPU": "1"}], ids=["nothing", "variables"])
async def test_a_hook_may_make_the_first_node_of_a_device(log: Path, env: dict[str, str]) -> None:
    """Before it there was nothing that a CDI file could say, or nothing but variables."""
    hook = script(f"echo ran >> {log}; while [ -s {log} ]; do sleep 0.01; done")
    made = DeviceNode("/dev/zero", "/dev/gpu1", "rw", "c", 1, 5)
    async with a_node(with_profile(f"prepare: {hook}")) as node:
        await node.set_devices(gpu(0), gpu(1, nodes=(), env=env))
        claim = node.claims.add("cl", "gpu-1")
        preparing = asyncio.ensure_future(node.prepared(claim))
        await until(log.read_text, why="the hook")
        await node.set_devices(gpu(0), gpu(1, nodes=(made,), env=env))
        log.write_text("")
        (device,) = await preparing
        assert any(f'"{one.rpartition("=")[2]}"' in text_of(node, claim) for one in device.cdi_device_ids)
        assert "/dev/gpu1" in text_of(node, claim)
        assert await node.prepared(claim) == [device]


async def test_a_device_is_given_to_nobody_else_before_its_cleaning_has_ended(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prepare exceeds its deadline and is undone. Its pod was deleted, so kubelet unprepares the claim."""
    prepare, undo = script("sleep 60", 60), script(f"echo begin >> {log}; sleep 0.5; echo end >> {log}", 60)
    async with a_node(with_profile(f"prepare: {prepare}, unprepare: {undo}")) as node:
        monkeypatch.setattr("drabridge.dra.prepare.BUDGET_SECONDS", 2)
        claim = node.claims.add("cl", "gpu-1")
        preparing = asyncio.ensure_future(node.prepare(claim))
        await until(log.read_text, why="the roll-back")
        monkeypatch.setattr("drabridge.dra.prepare.BUDGET_SECONDS", 60)
        node.claims.delete("cl")
        unpreparing = asyncio.ensure_future(node.unprepare(claim))
        await until(lambda: node.owner("gpu-1") is Owner.NONE, why="the release")
        words = log.read_text().split()
        assert words.count("begin") == words.count("end")
        await asyncio.gather(preparing, unpreparing)
        assert log.read_text().split() == words


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_process_that_escapes_from_a_killed_hook_delays_nobody(tmp_path: Path, *, cancelled: bool) -> None:
    """For example a daemon in its own session: it goes on running and keeps the hook's output open."""
    pid = tmp_path / "pid"
    daemon = f"echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 7654"  # it tells its number when it has escaped
    escape = f"setsid sh -c '{daemon}' & sleep 7654"
    hook = Hook(command=("/bin/sh", "-c", escape), timeout_seconds=300 if cancelled else 3)
    running = asyncio.create_task(run_hook(hook, None, "gpu-1"))
    await until(pid.exists)
    if cancelled:
        running.cancel()
    try:
        done, _ = await asyncio.wait({running}, timeout=5 * PATIENCE)
        assert done, "run_hook waits for a process that it cannot kill"
        assert running.cancelled() if cancelled else "it was killed" in str(running.exception())
    finally:
        running.cancel()
        os.kill(int(pid.read_text()), signal.SIGKILL)


async def test_hooks_of_one_device_never_overlap(log: Path) -> None:
    """Two claims share a device: their hooks run one after the other. Hooks of different devices may run at once."""
    others = f"while [ $(grep -c begin {log}) -lt 2 ]; do sleep 0.01; done"  # else the first one would wait in vain
    body = script(f"echo begin $DRABRIDGE_DEVICE >> {log}; {others}; sleep 0.2; echo end $DRABRIDGE_DEVICE >> {log}")
    profile = (
        f"  claimConfig: {{defaultProfile: hooked, profiles: {{hooked: {{prepare: {body}, unprepare: {body}}}}}}}\n"
    )
    one, two = (replace(gpu(n), name=f"shared-{n}", id=f"S{n}", resource="example.com/shared") for n in range(2))
    async with a_node(CONFIG + profile, (one, two)) as node:
        claims = [
            node.claims.add(f"cl{n}", {"device": device, "shareID": str(uuid.uuid4())})
            for n, device in enumerate(("shared-0", "shared-0", "shared-1"))
        ]
        await asyncio.gather(*map(node.prepared, claims))
        await asyncio.gather(*map(node.unprepare, claims))
    lines = [line.split() for line in log.read_text().splitlines()]
    of_one = [word for word, device in lines if device == "shared-0"]
    assert of_one == ["begin", "end"] * 4
    assert [word for word, _ in lines] != ["begin", "end"] * 6  # the other device did not wait


async def test_admin_access_runs_no_hooks(log: Path) -> None:
    body = script(f"echo ran >> {log}")
    async with a_node(with_profile(f"prepare: {body}, unprepare: {body}")) as node:
        claim = node.claims.add("cl", {"device": "gpu-1", "adminAccess": True})
        await node.prepared(claim)
        await node.unprepare(claim)
    assert log.read_text() == ""


async def test_a_refused_claim_causes_no_cleaning(log: Path) -> None:
    """The record is written before the refusal. It stays when the agent is killed or its answer is lost."""
    async with a_node(with_profile(f"unprepare: {script(f'echo $DRABRIDGE_CLAIM >> {log}')}")) as node:
        holder, claim = node.claims.add("holder", "gpu-1"), node.claims.add("claim", "gpu-1")
        await node.prepared(holder)
        records = RecordStore(node.state / "claims")
        record = records.load(holder.uid)
        assert record
        begun = replace(record, claim=ClaimRef(claim.uid, "default", "claim"), state=RecordState.STARTED)
        records.save(begun)
        assert "held by claim default/holder" in await node.refused(claim)
        records.save(begun)
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert log.read_text() == ""
        await node.unprepare(holder)
    assert log.read_text() == "default/holder\n"


async def test_a_claim_that_ends_in_a_conflict_runs_no_cleaning_while_the_pod_has_the_device(log: Path) -> None:
    """The pod has the device open and a reset would destroy its work; the device stays held."""

    async def in_use(names: set[str]) -> dict[str, str]:
        return dict.fromkeys(names, "process 7 (python)")

    async with a_node(with_profile(f"unprepare: {script(f'echo cleaned >> {log}')}"), start=False) as node:
        await node.start(in_use=in_use)
        claim = node.claims.add("claim", "gpu-1")
        await node.prepared(claim)
        facts = node.ledger_service.ledger.entries["gpu-1"].device
        listed = {(facts.resource, facts.units[0]): (PodRef("default", "pod", "main"),)}
        await node.ledger_service.apply(Observed(time.time(), node.ledger_service.ledger.seq, listed))
        assert node.owner("gpu-1") is Owner.CONFLICT
        assert await node.unprepare(claim) == {claim.uid: ""}
        assert node.ledger_service.ledger.entries["gpu-1"].hold is not None
    assert log.read_text() == ""


async def test_a_device_that_was_unplugged_needs_no_cleaning() -> None:
    async with a_node(with_profile(f"unprepare: {script('exit 1')}")) as node:
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        await node.change(gpu_1=(Presence.GONE, "unplugged"))
        assert await node.unprepare(claim) == {claim.uid: ""}


async def test_after_a_reboot_a_replay_initialises_again_and_unprepare_does_not_clean(log: Path) -> None:
    body = f"echo $DRABRIDGE_PHASE >> {log}"
    async with a_node(with_profile(f"prepare: {script(body)}, unprepare: {script(body)}")) as node:
        claim, other = node.claims.add("cl", "gpu-1"), node.claims.add("other", "gpu-2")
        await node.prepared(claim)
        await node.prepared(other)
        await node.reboot()
        await node.prepared(claim)
        await node.unprepare(other)
        await node.unprepare(claim)
    assert log.read_text().split() == ["prepare", "prepare", "prepare", "unprepare"]


@pytest.mark.parametrize(("hooks", "times"), [("env: {A: b}", 1), ("prepare: {command: [/bin/true]}", 2)])
async def test_a_claim_is_planned_once_and_again_only_after_a_hook(
    monkeypatch: pytest.MonkeyPatch, hooks: str, times: int
) -> None:
    """A hook that binds a driver makes other nodes. A replay without a reboot runs no hook."""
    planned: list[str] = []
    original = Planner._planned

    def counted(self: Planner, uid: str, *more: Any) -> Any:
        planned.append(uid)
        return original(self, uid, *more)

    monkeypatch.setattr(Planner, "_planned", counted)
    async with a_node(with_profile(hooks)) as node:
        claim = node.claims.add("cl", "gpu-1")
        await node.prepared(claim)
        assert planned == [claim.uid] * times
        planned.clear()
        await node.prepared(claim)
        assert planned == [claim.uid]


async def test_a_device_is_bound_once_its_claim_is_recorded_and_granted_before_hook_and_files(
    log: Path,
) -> None:
    config = with_profile(f"prepare: {script(f'echo hook >> {log}')}")
    async with a_node(config, start=False) as node:
        fails: list[HostError] = [HostError("0000:3b:00.0 is mounted")]

        async def bind(device: Device) -> None:
            assert (len(node.records()), node.cdi_files()) == (1, [])
            assert node.owner(device.name) is Owner.DRA_PREPARED
            log.write_text(f"{log.read_text()}bind {device.name}\n")
            if fails:
                raise fails.pop()

        await node.start(bind=bind)
        claim = node.claims.add("cl", "gpu-1")
        assert "0000:3b:00.0 is mounted" in await node.refused(claim)
        assert (node.records(), node.owner("gpu-1")) == ([], Owner.DRA_GRANTED)
        await node.prepared(claim)
        assert log.read_text().splitlines() == ["bind gpu-1", "bind gpu-1", "hook"]


async def test_a_device_that_is_taken_for_another_while_its_claim_is_granted_waits(log: Path) -> None:
    config = with_profile(f"prepare: {script(f'echo hook >> {log}')}")
    async with a_node(config, start=False) as node:
        answers: list[dict[str, str]] = [{}, {"gpu-1": "0000:3b:00.0, which is bound to vfio-pci"}]
        bound: list[int] = []

        async def bind(device: Device) -> None:
            bound.append(len(answers))

        await node.start(bind=bind, paused=lambda: answers.pop(0) if answers else {})
        await node.prepared(node.claims.add("cl", "gpu-1"))
        assert bound == [0], "not before it was free"
        assert log.read_text().splitlines() == ["hook"]
