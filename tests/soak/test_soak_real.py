"""The judge of a soak on a real node, with histories that were made up; and what is said where there is no node."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.soak.real import bed, judge, run
from tests.soak.real.judge import STUCK_SECONDS, KubeletRecord, Sample, Verdict, Waiting, Waits
from tests.soak.real.load import pools_of, sample_of
from tests.soak.real.starts import Starts
from tests.support.waiting import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[2]
NO_RECORD = KubeletRecord()
BOOKED = frozenset({("zero", "u2")})
CLEAN = "soak: cluster=real pods=5 refusals=2 double_holds=0 leaks=0 stuck=0 seconds=180"


def journal(*lines: str) -> list[judge.Line]:
    """``at verb pod device``; the UID is u and the pod's number."""
    words = [line.split() for line in lines]
    return judge.parse("\n".join(f"{at} {verb} {pod} u{pod[-1]} {device}" for at, verb, pod, device in words))


# --- double holds -----------------------------------------------------------------------------------------------------


def test_holds_in_sequence_are_no_double_hold() -> None:
    history = journal("1 has limits-1 zero", "2 ends limits-1 -", "3 has claim-2 zero", "3 has limits-3 null")
    assert judge.double_holds(history, NO_RECORD) == ([], [])


def test_a_lock_that_is_taken_names_both_pods() -> None:
    history = journal("1 has claim-1 zero", "2 has claim-3 null", "3 taken claim-2 zero")
    (found,), theirs = judge.double_holds(history, NO_RECORD)
    assert str(found) == "zero: claim-2 (u2) found it held by claim-1 (u1)"
    assert theirs == []


@pytest.mark.parametrize(
    ("first", "second", "forced_at", "rejected_at", "booked", "kubelets"),
    [
        ("limits-1", "limits-2", 4, None, BOOKED, True),  # kubelet forgot the first pod at its forced deletion
        ("limits-1", "limits-2", None, 4, BOOKED, True),  # and here when it admitted its pods again
        ("limits-1", "limits-2", None, 9, BOOKED, True),  # seen late
        ("limits-1", "limits-2", None, None, BOOKED, False),  # nothing happened to the first
        ("limits-1", "limits-2", 6, None, BOOKED, False),  # a later deletion is no excuse
        ("limits-1", "limits-2", None, 11, BOOKED, False),
        ("limits-1", "limits-2", 4, None, frozenset(), False),  # kubelet gave that device to no other pod
        ("limits-1", "limits-2", 4, None, frozenset({("null", "u2"), ("zero", "u1")}), False),
        ("limits-1", "claim-2", 4, None, BOOKED, False),  # the ledger must refuse a claim, whatever kubelet does
        ("claim-1", "limits-2", 4, None, BOOKED, False),
        ("claim-1", "claim-2", 4, None, BOOKED, False),
    ],
)
def test_a_double_hold_is_attributed_to_kubelet_or_to_the_agent(
    first: str,
    second: str,
    forced_at: int | None,
    rejected_at: int | None,
    booked: frozenset[tuple[str, str]],
    kubelets: bool,
) -> None:
    lines = [f"1 has {first} zero", f"5 taken {second} zero"]
    if forced_at is not None:
        lines.insert(1 if forced_at < 5 else 2, f"{forced_at} forced {first} -")
    record = KubeletRecord(booked, {} if rejected_at is None else {"u1": float(rejected_at)})
    ours, theirs = judge.double_holds(journal(*lines), record)
    assert (len(ours), len(theirs)) == ((0, 1) if kubelets else (1, 0))


def test_a_forced_deletion_counts_from_when_it_was_first_asked() -> None:
    """The API server may do what the first request asks and not answer: a later one comes too late to count from."""
    history = journal("1 has limits-1 zero", "4 forced limits-1 -", "5 taken limits-2 zero", "9 forced limits-1 -")
    ours, theirs = judge.double_holds(history, KubeletRecord(BOOKED, {}))
    assert (len(ours), len(theirs)) == (0, 1)


def test_a_double_hold_is_explained() -> None:
    history = journal("1 has limits-1 zero", "2 has limits-3 null", "5 taken limits-2 zero", "6 forced limits-1 -")
    record = KubeletRecord(BOOKED, {})
    (found,), _ = judge.double_holds(history, record)
    assert judge.explain(found, history, record) == [
        "not kubelet's own: at 5 kubelet still counted limits-1 (force-deleted: 6.0, refused: never)",
        "1 has limits-1 u1 zero",
        "5 taken limits-2 u2 zero",
        "6 forced limits-1 u1 -",
    ]
    assert "never gave zero" in judge.explain(found, history, KubeletRecord())[0]


def test_each_apis_time_ends_with_its_pod_or_with_the_next_one() -> None:
    history = journal(
        "1 has limits-1 zero", "4 ends limits-1 -", "9 has claim-2 zero", "11 has limits-3 zero", "12 has claim-4 null",
        "15 has claim-5 null",
    )  # fmt: skip
    assert judge.device_seconds(history) == {"limits": 3 + 4, "claim": 2 + 3}
    assert judge.device_seconds([]) == {}


def test_an_unknown_holder_excuses_nothing() -> None:
    (found,), _ = judge.double_holds(journal("5 taken limits-2 zero"), KubeletRecord(BOOKED, {"": 1.0}))
    assert found.holder == "nobody"


def test_a_container_that_could_not_look_is_a_failure_and_no_double_hold() -> None:
    history = journal("1 has limits-1 zero", "2 broken claim-2 zero", "3 nothing claim-3 -", "4 nothing limits-4 -")
    assert judge.double_holds(history, NO_RECORD) == ([], [])
    assert judge.broken(history) == [
        "claim-2: its lock could not be tried (zero)",
        "claim-3: it has no device (-)",
        "limits-4: it has no device (-)",
    ]


@pytest.mark.parametrize(("pod", "excused"), [("limits-1", True), ("claim-1", False)])
def test_kubelet_starts_a_pod_that_was_force_deleted_without_its_device(pod: str, excused: bool) -> None:
    assert bool(judge.broken(journal(f"1 forced {pod} -", f"2 nothing {pod} -"))) is not excused
    assert judge.broken(journal(f"1 forced {pod} -", f"2 broken {pod} zero")), "a lock that fails is never excused"
    assert judge.broken(journal("1 forced limits-2 -", f"2 nothing {pod} -")), "another pod was deleted"


def test_torn_lines_are_left_out() -> None:
    assert judge.parse("1 has limits-1\n\n2 taken claim-2 u2 zero extra\nx has a b c\n7 ends limits-1 u1 -\n") == [
        judge.Line(7.0, "ends", "limits-1", "u1", "-")
    ]


# --- stuck pods -------------------------------------------------------------------------------------------------------


def waits(
    *moments: tuple[float, int, dict[str, int]],
    excused: float = -1.0,
    bound_at: float = math.inf,
    unbound_seconds: float = STUCK_SECONDS,
) -> dict[str, str]:
    """Return who is stuck after moments of (at, devices that pod p needs, free devices)."""
    waiting = Waits(unbound_seconds)
    for at, needs, free in moments:
        marks = {"p-uid"} if at == excused else set()
        waiting.observe(Sample(at, (Waiting("p", "p-uid", "dra", needs, at >= bound_at),), free, marks))
    return waiting.stuck


def test_a_pod_that_waits_for_what_is_free_is_stuck_after_150_seconds() -> None:
    moments = [(float(at), 1, {"dra": 1}) for at in range(153)]
    assert waits(*moments[:151]) == {}
    assert waits(*moments) == {"p-uid": "p waits for 152 s, with devices 1 free (dra)"}


def test_a_pod_that_has_its_device_and_does_not_run_is_stuck() -> None:
    moments = [(float(at), 0, {"dra": 0}) for at in range(153)]
    assert "its own" in waits(*moments)["p-uid"]
    assert "its own" in waits(*moments, bound_at=0.0, unbound_seconds=60.0)["p-uid"]
    assert waits(*moments[:151], bound_at=0.0, unbound_seconds=60.0) == {}


def test_a_pod_that_is_not_bound_is_stuck_earlier_where_devices_are_shared() -> None:
    """Also one whose claim is allocated and denied in turn."""
    moments = [(float(at), at // 5 % 2, {"dra": 1}) for at in range(62)]
    assert waits(*moments[:61], unbound_seconds=60.0) == {}
    assert "waits for 61 s" in waits(*moments, unbound_seconds=60.0)["p-uid"]
    assert waits(*moments) == {}


@pytest.mark.parametrize("free", [{"dra": 0, "legacy": 6}, {}, {"dra": 1}])
def test_a_pod_that_waits_for_devices_that_are_not_free_is_not_stuck(free: dict[str, int]) -> None:
    assert waits(*((float(at), 2, free) for at in range(400))) == {}


def test_an_interruption_restarts_the_count_of_a_wait() -> None:
    """When nothing was free, when the pod got its device, when this run's own fault hit it, and after a blind time."""
    long = [(float(at), 1, {"dra": 1}) for at in range(200)]
    nothing_free = [(at, needs, {"dra": 0} if at == 100 else free) for at, needs, free in long]
    blind = [moment for moment in long if not 80 <= moment[0] < 160]
    assert waits(*long)
    assert waits(*nothing_free) == {}
    assert waits(*long, bound_at=100.0) == {}
    assert waits(*long, excused=100.0) == {}
    assert waits(*blind) == {}


def test_a_pod_that_ran_meanwhile_is_forgotten() -> None:
    waiting = Waits()
    for at in range(300):
        there = (Waiting("p", "p-uid", "dra", 1),) if at != 150 else ()
        waiting.observe(Sample(float(at), there, {"dra": 1}))
    assert waiting.stuck == {}


# --- what the API shows -----------------------------------------------------------------------------------------------


def pod(name: str, *, limit: int = 0, claim: str = "", node: str = "", phase: str = "Pending") -> dict[str, Any]:
    resources = {"limits": {bed.RESOURCE: str(limit)}} if limit else {}
    spec: dict[str, Any] = {"containers": [{"resources": resources}]}
    if claim:
        spec["resourceClaims"] = [{"name": "device", "resourceClaimName": claim}]
    if node:
        spec["nodeName"] = node
    return {"metadata": {"name": name, "uid": f"{name}-uid"}, "spec": spec, "status": {"phase": phase}}


def test_a_pod_that_waits_for_kubelet_to_unprepare_another_claim_is_not_stuck() -> None:
    waiting = Waits()
    for at in range(400):
        waiting.observe(Sample(float(at), (Waiting("p", "p-uid", "dra", 0, blocked=at % 100 == 0),), {"dra": 1}))
    assert waiting.stuck == {}


@pytest.mark.parametrize(
    ("message", "forgotten"),
    [
        ("internal error: unable to get claim info for ResourceClaim shared-621 in namespace drabridge-test", True),
        ("internal error: CDI device injection failed: unresolvable CDI devices", False),
        ("", False),
    ],
)
def test_kubelet_says_that_it_has_unprepared_a_claim_for_another_pod(message: str, forgotten: bool) -> None:
    waits = pod("shared-621-0", claim="shared-621", node="n")
    waits["status"]["containerStatuses"] = [{"state": {"waiting": {"message": message}}}, {"state": {"running": {}}}]
    assert judge.unprepared_by_kubelet(waits) is forgotten
    assert not judge.unprepared_by_kubelet(pod("shared-621-1", claim="shared-621"))


STATE = (  # as kubelet 1.36.2 writes it: JSON inside JSON
    {"ClaimUID": "given-uid", "DriverState": {bed.DRIVER: {"Devices": [{"DeviceName": "a"}]}}},
    {"ClaimUID": "gone-uid", "DriverState": {bed.DRIVER: {"Devices": [{"DeviceName": "b"}]}}},
    {"ClaimUID": "asked-uid", "DriverState": {bed.DRIVER: {"Devices": None}}},
)


def test_kubelets_record_says_what_is_prepared_for_whom() -> None:
    text = json.dumps({"Data": json.dumps({"ClaimInfoStateList": STATE}), "Checksum": 1})
    assert judge.prepared(text) == {"a": {"given-uid"}, "b": {"gone-uid"}}
    assert judge.prepared(json.dumps({"Data": json.dumps({"ClaimInfoStateList": None})})) == {}
    for text in ("", "{}", '{"Data": ""}', "[]"):
        assert judge.prepared(text) == {}


def claim(name: str, count: int, *devices: str) -> dict[str, Any]:
    results = {"devices": {"results": [{"device": device} for device in devices]}}
    return {
        "metadata": {"name": name, "uid": f"{name}-uid"},
        "spec": {"devices": {"requests": [{"exactly": {"count": count}}]}},
        "status": {"allocation": results} if devices else {},
    }


def test_waiting_pods_and_free_devices_are_read_from_the_api() -> None:
    pods = {
        one["metadata"]["name"]: one
        for one in (
            pod("l1", limit=2),
            pod("l2", limit=1, node="n", phase="Running"),
            pod("l3", limit=1, node="n", phase="Failed"),
            pod("l4", limit=1, node="n"),
            pod("c1", claim="two"),
            pod("c2", claim="given"),
            pod("c3", claim="given", node="n"),
            pod("c4", claim="refused", node="n"),
        )
    }
    pods["going"] = pod("going", limit=1)
    pods["going"]["metadata"]["deletionTimestamp"] = "now"
    slices = ({"spec": {"devices": [{"name": "a"}, {"name": "b"}, {"name": "c", "taints": [{}]}]}},)
    node = {"status": {"allocatable": {bed.RESOURCE: "3"}}}
    claims = (claim("two", 2), claim("given", 1, "a"), claim("refused", 1, "c"))
    prepared = {"a": {"given-uid"}, "c": {"gone-uid"}}
    found = sample_of(7.0, pods, claims, slices, node, {"x"}, prepared)
    assert found == Sample(
        7.0,
        (
            Waiting("l1", "l1-uid", "legacy", 2),
            Waiting("l4", "l4-uid", "legacy", 0, bound=True),
            Waiting("c1", "c1-uid", "dra", 2),
            Waiting("c2", "c2-uid", "dra", 0),
            Waiting("c3", "c3-uid", "dra", 0, bound=True),
            Waiting("c4", "c4-uid", "dra", 0, bound=True, blocked=True),
        ),
        {"legacy": 1, "dra": 1},
        frozenset({"x"}),
    )


# --- times ------------------------------------------------------------------------------------------------------------


def test_times_are_told_for_each_api_with_the_pods_that_never_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, found = iter(range(100)), Starts()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    shapes = ("limits-one-1", "limits-init-2", "claim-one-3", "shared-4-0", "template-5", "template-6")
    for name in shapes:  # at 0, 1, 2, 3, 4, 5
        found.changed("ADDED", pod(name))
    for name in (*shapes[:4], *shapes[:4]):  # at 6, 7, 8, 9; a second time they are not timed
        found.changed("MODIFIED", pod(name, phase="Running"))
    found.changed("MODIFIED", pod("template-5", phase="Failed"))
    found.changed("DELETED", pod("template-5"))
    found.changed("DELETED", pod("template-6"))
    found.changed("DELETED", pod("claim-one-3"))
    found.changed("MODIFIED", pod("limits-7", phase="Running"))
    assert list(found.lines()) == [
        f"create to Running, {api}: 2 pods, median 6.00 s, p99 6.00 s, fastest 6.00 s, slowest 6.00 s; {never} ended "
        "before they ran"
        for api, never in (("claims", 2), ("limits", 0))
    ]


# --- leaks and the verdict --------------------------------------------------------------------------------------------

FREE = [{"name": "a", "owner": "none", "offered": ["dra"]}, {"name": "b", "owner": "none", "offered": ["legacy"]}]
SHARED = [
    {"name": "a", "lane": "shared", "owner": "none", "offered": ["legacy", "dra"]},
    {"name": "b", "lane": "dra", "owner": "none", "offered": ["dra"]},
]


@pytest.mark.parametrize(
    ("rows", "locked", "files", "objects", "leak"),
    [
        ([*FREE[:1], {"name": "b", "owner": "legacy", "offered": []}], [], [], [], "b is still legacy"),
        ([*FREE[:1], {"name": "b", "owner": "none", "offered": []}], [], [], [], "b is offered to nobody"),
        (
            [*FREE[:1], {"name": "b", "owner": "none", "offered": ["legacy", "dra"]}],
            [],
            [],
            [],
            "b is offered to legacy and dra",
        ),
        (FREE[:1], [], [], [], "1 devices are known, 2 exist"),
        (FREE, ["zero"], [], [], "the lock of zero is still held"),
        (FREE, [], ["/run/cdi/x.json"], [], "/run/cdi/x.json was left behind"),
        (FREE, [], [], ["pods p"], "pods p is still there"),
    ],
)
def test_state_left_on_the_node_is_a_leak(
    rows: list[dict[str, Any]], locked: list[str], files: list[str], objects: list[str], leak: str
) -> None:
    assert judge.left_over(FREE, 2, [], [], []) == []
    (found,) = judge.left_over(rows, 2, locked, files, objects)
    assert found.startswith(leak)


def test_a_shared_device_is_offered_to_both_sides_or_lent_to_claims() -> None:
    assert judge.left_over(SHARED, 2, [], [], [], shared=True) == []
    (found,) = judge.left_over([SHARED[0] | {"offered": ["dra"]}, SHARED[1]], 2, [], [], [], shared=True)
    assert found.startswith("a is offered to dra")


def test_a_run_without_an_agent_leaks_everything() -> None:
    assert judge.left_over([], 2, [], [], []) == ["0 devices are known, 2 exist"]


def test_the_last_line_counts_and_any_finding_fails_the_run() -> None:
    clean = Verdict(pods=5, refusals=2, seconds=180.2)
    assert str(clean) == CLEAN
    assert clean.ok
    assert str(Verdict(5, 2, ["x"], ["x"] * 2, ["x"] * 3, [], 180.2)) == (
        "soak: cluster=real pods=5 refusals=2 double_holds=1 leaks=2 stuck=3 seconds=180"
    )
    for bad in (Verdict(double_holds=["x"]), Verdict(leaks=["x"]), Verdict(stuck=["x"]), Verdict(failures=["x"])):
        assert not bad.ok


@pytest.mark.parametrize(
    ("grown_kib", "restarted", "refused"), [(1000, False, False), (1100, False, True), (1100, True, False)]
)
def test_memory_may_not_grow_by_more_than_a_mebibyte_in_an_hour(grown_kib: int, restarted: bool, refused: bool) -> None:
    clock, seen = [0.0], [7, 30_000]
    memory = run.Memory(lambda: (seen[0], seen[1]), lambda: clock[0])
    for second in range(0, 3910, 10):
        clock[0] = float(second)
        seen[1] = 30_000 if second < 200 else 31_500 if second < 3000 else 31_500 + grown_kib  # the start is its own
        if restarted and second >= 2000:
            seen[0] = 8
        memory.look()
    assert memory.last().startswith("grew by")
    assert bool(memory.grown) is refused


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (200, "no agent ran for long enough to be judged"),
        (1200, "grew by 256 KiB in 900 s, from 31500 to 31756: +1.00 MiB an hour"),
        (2100, "grew by 256 KiB in 1800 s, from 31500 to 31756: +0.50 MiB an hour"),
    ],
)
def test_a_short_run_is_told_how_fast_memory_grew_and_does_not_fail(seconds: int, told: str) -> None:
    clock, kib = [0.0], [31_500]
    memory = run.Memory(lambda: (7, kib[0]), lambda: clock[0])
    for second in range(0, seconds + 1, 10):
        clock[0] = float(second)
        kib[0] = 31_500 if second <= 300 else 31_756
        memory.look()
    assert memory.last() == told
    assert not memory.grown


def test_an_agent_that_grew_for_an_hour_is_judged_though_another_follows_it() -> None:
    clock, seen = [0.0], [7, 30_000]
    memory = run.Memory(lambda: (seen[0], seen[1]), lambda: clock[0])
    for second in range(0, 4500, 10):
        clock[0] = float(second)
        seen[:] = [7, 30_000 if second < 3000 else 32_000] if second < 4000 else [8, 29_000]
        memory.look()
    assert memory.last().startswith("grew by 0 KiB")
    (told,) = memory.grown
    assert "grew by 2000 KiB" in told


def test_memory_counts_anonymous_pages_only() -> None:
    assert bed.anonymous_kib("Rss:   67156 kB\nAnonymous:          47328 kB\nLazyFree: 0 kB\n") == 47328
    assert bed.anonymous_kib(Path("/proc/self/smaps_rollup").read_text()) > 0
    with pytest.raises(ValueError, match="no line"):
        bed.anonymous_kib("")


def test_a_soak_of_several_nodes_has_an_agent_on_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in bed.NEEDED:
        monkeypatch.setenv(name, "registry.example.com/x:1")
    monkeypatch.delenv("DRABRIDGE_TEST_CLUSTER")
    node = {"metadata": {"name": "b", "labels": {"kubernetes.io/hostname": "b"}}}
    api: Any = None
    one = bed.RealNode(api, node, "/tmp", print)
    of_two = bed.RealNode(api, node, "/tmp", print, of=("a", "b"))
    specs = [
        daemon_set["spec"]["template"]["spec"]
        for found in (one, of_two)
        for daemon_set in found.objects
        if daemon_set["kind"] == "DaemonSet"
    ]
    assert [spec.get("nodeSelector") for spec in specs] == [{"kubernetes.io/hostname": "b"}, None]
    assert [spec.get("affinity") for spec in specs] == [None, bed.on_nodes(("a", "b"))]
    assert (one.suffix, of_two.suffix) == ("", "-b")


@pytest.mark.parametrize(
    ("phase", "rebooted_at", "now", "left"),
    [
        ("Pending", 1060.0, 1161.0, True),
        ("Pending", 1060.0, 1159.0, False),  # kubelet may try once more
        ("Pending", 999.0, 1161.0, False),  # it came after the reboot
        ("Running", 1060.0, 1161.0, False),
        ("Pending", 0.0, 1161.0, False),  # there was none
    ],
)
def test_a_pod_that_was_starting_when_the_power_went_is_kubelets_to_end(
    phase: str, rebooted_at: float, now: float, left: bool
) -> None:
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:16:40Z"}
    assert judge.left_at_boot({"status": {"phase": phase, "conditions": [bound]}}, rebooted_at, now) is left


def test_a_pod_that_is_not_bound_was_not_left_by_kubelet() -> None:
    waits = {"type": "PodScheduled", "status": "False", "lastTransitionTime": "1970-01-01T00:16:40Z"}
    assert not judge.left_at_boot({"status": {"phase": "Pending", "conditions": [waits]}}, 2000.0, 3000.0)


@pytest.mark.parametrize(
    ("pods", "node", "now", "left"),
    [(2, {}, 1100, True), (1, {}, 1100, False), (2, {"nodeName": "a"}, 1100, False), (2, {}, 1030, False)],
)
def test_a_denied_claim_that_several_waiting_pods_have_reserved_is_left(
    pods: int, node: dict[str, str], now: float, left: bool
) -> None:
    denied = {
        "type": "lease-denied",
        "status": "True",
        "reason": "Denied",
        "lastTransitionTime": "1970-01-01T00:16:40Z",
    }
    claim = {"status": {"reservedFor": [{}] * pods, "devices": [{"conditions": [denied]}]}}
    assert judge.left_reserved({"spec": node}, claim, now) is left


def test_devices_of_other_nodes_claims_are_not_counted() -> None:
    results = [{"driver": bed.DRIVER, "pool": pool, "device": "zero", "request": "r"} for pool in ("a", "b")]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    assert pools_of(claim) == {"a", "b"}
    assert pools_of({}) == set()


def test_without_a_cluster_the_missing_settings_are_named() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in bed.NEEDED}
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--real", "--minutes", "1"],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT), "KUBECONFIG": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=5 * HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "KUBECONFIG" not in done.stdout
    for name in ("DRABRIDGE_TEST_IMAGE", "DRABRIDGE_TEST_BUSYBOX", "DRABRIDGE_TEST_CLUSTER"):
        assert name in done.stdout
