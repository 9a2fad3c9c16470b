"""A minute of soak, and whether the judge notices a broken agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from drabridge.sim.kubelet.pods import Container, PodSpec
from drabridge.sim.kubelet.runtime import ContainerStartError, RunOptions
from tests.soak.judge import OPENS, Judge
from tests.soak.run import kind_of

ROOT = Path(__file__).resolve().parents[2]
LEAST_PODS = 30


@pytest.mark.deep
def test_a_minute_of_load_and_faults_causes_no_double_hold_and_no_leak() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--seconds", "60", "--seed", "1", "--least-pods", str(LEAST_PODS)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1] if done.stdout else ""
    assert done.returncode == 0, done.stdout + done.stderr
    pods, refusals, double_holds, leaks, seconds = (int(word.partition("=")[2]) for word in last.split()[1:])
    assert last.startswith("soak: pods=")
    assert (double_holds, leaks) == (0, 0)
    assert pods >= LEAST_PODS, "too little load: the run proves nothing"
    assert refusals > 0, "no start was refused: the run proves little"
    assert seconds >= 60


@pytest.mark.parametrize(
    ("holder", "refused", "forced", "unprepared", "ours"),
    [
        # kubelet forgets a force-deleted pod; the agent answered correctly
        ("limits-one-1", "limits-one-2", True, False, False),
        ("limits-one-1", "limits-one-2", False, False, True),
        (
            "limits-one-1",
            "claim-one-2",
            True,
            False,
            True,
        ),  # the ledger must refuse the other side, whatever kubelet does
        ("claim-one-1", "claim-one-2", True, True, False),  # kubelet said that no container uses it
        ("claim-one-1", "claim-one-2", True, False, True),
        ("claim-one-1", "limits-one-2", True, False, True),
        (f"claim-one-{OPENS}1", "claim-one-2", True, True, True),  # but its device node is still open
    ],
)
async def test_a_conflict_is_attributed_to_kubelet_or_to_the_agent(
    tmp_path: Path, holder: str, refused: str, forced: bool, unprepared: bool, ours: bool
) -> None:
    judge = Judge(tmp_path)
    judge.unprepared = lambda pod: unprepared
    if forced:
        judge.force_deleted.add(f"default/{holder}")
    main, options = Container("main"), RunOptions(device_ids=(("r", "d0"),))
    await judge.start_container(PodSpec("default", holder, uid="1"), main, options)
    with pytest.raises(ContainerStartError):
        await judge.start_container(PodSpec("default", refused, uid="2"), main, options)
    assert bool(judge.double_holds()) is ours
    assert bool(judge.kubelet_double_bookings()) is not ours
    await judge.stop_container("1", "main")
    await judge.start_container(PodSpec("default", refused, uid="2"), main, options)
    await judge.stop_container("2", "main")
    await asyncio.sleep(0)


@pytest.mark.parametrize("deleted_first", [True, False])
async def test_kubelets_later_actions_do_not_excuse_a_conflict(tmp_path: Path, deleted_first: bool) -> None:
    judge = Judge(tmp_path)
    main, options = Container("main"), RunOptions(device_ids=(("r", "d0"),))
    await judge.start_container(PodSpec("default", "claim-one-1", uid="1"), main, options)
    if deleted_first:
        judge.force_deleted.add("default/claim-one-1")
    second = PodSpec("default", "claim-one-2", uid="2")
    with pytest.raises(ContainerStartError):
        await judge.start_container(second, main, options)
    judge.force_deleted.add("default/claim-one-1")
    judge.unprepared = lambda pod: True
    with pytest.raises(ContainerStartError):
        await judge.start_container(second, main, options)
    assert len(judge.double_holds()) == 1
    assert not judge.kubelet_double_bookings()
    await judge.stop_container("1", "main")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (
            "UnexpectedAdmissionError: Allocate failed due to rpc error: code = FailedPrecondition desc = "
            "d0 is held by claim default/c (uid 1), prepared 10:00 UTC; wait for it",
            "held by a claim",
        ),
        (
            "UnexpectedAdmissionError: Allocate failed due to no healthy devices present; cannot allocate",
            "no healthy device",
        ),
        (
            "FailedPrepareDynamicResources: d0 is held by pod default/p (container c), allocated 10:00 UTC",
            "held by a pod",
        ),
    ],
)
def test_kinds_of_refusals(message: str, kind: str) -> None:
    assert kind_of(message) == kind


@pytest.mark.parametrize("overlap", [True, False])
async def test_a_list_during_allocate_excuses_only_conflicts_between_pods(tmp_path: Path, overlap: bool) -> None:
    judge = Judge(tmp_path)
    judge.raced = lambda device: overlap
    main, options = Container("main"), RunOptions(device_ids=(("r", "d0"),))
    await judge.start_container(PodSpec("default", "limits-one-1", uid="1"), main, options)
    for uid, refused in (("2", "limits-one-2"), ("3", "claim-one-3")):
        with pytest.raises(ContainerStartError):
            await judge.start_container(PodSpec("default", refused, uid=uid), main, options)
    assert len(judge.double_holds()) == (1 if overlap else 2)
    await judge.stop_container("1", "main")
