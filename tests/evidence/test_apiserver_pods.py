"""Evidence from the API server's pods that kubelet does not give: over HTTP, with watches that break."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from drabridge.evidence import apiserver_pods
from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.evidence.pod_objects import WatchedPod, demand_of
from drabridge.kube.api import UnreachableError
from drabridge.kube.client import KubernetesCluster
from drabridge.kube.json_reader import ObjectIdentity
from drabridge.ledger.entries import ClaimRef, Entry, HeldBecause, Hold, Ledger, LedgerDevice, Owner, PodRef
from drabridge.ledger.events import CheckpointRead, Observed
from drabridge.ledger.proofs import End
from drabridge.sim.apiserver.server import SimApiServer
from tests.evidence.api_pods import FPGA, GPU, container, pod, service_of
from tests.support.waiting import short_directory, until

LEDGER = Ledger.of(
    [Entry(LedgerDevice(f"g{n}", GPU, (f"g{n}",))) for n in range(4)] + [Entry(LedgerDevice("f0", FPGA, ("f0",)))]
)


def _seen(body: dict[str, Any]) -> WatchedPod:
    """As it is read: no field that matters is left out."""
    return PodWatch(None, "node-a", lambda: None).view(json.dumps(body).encode())  # type: ignore[arg-type]


SIDECAR = {"restartPolicy": "Always"}
MIRROR, OWNER = "kubernetes.io/config.mirror", {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid"}
RUNNING, OVER, WAITING = ({"state": {state: dict[str, Any]()}} for state in ("running", "terminated", "waiting"))
NOON = 1_000.0


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (pod("a", container("m", gpu=1)), {GPU: 1}),
        (pod("a", container("m", gpu=1, cpu=4), container("n", gpu=2, fpga=1)), {GPU: 3, FPGA: 1}),
        # what an init container had is taken over
        (pod("a", container("m", gpu=1), container("n", gpu=2), init=(container("i", gpu=1),)), {GPU: 3}),
        (pod("a", container("m"), init=(container("i", gpu=2), container("j", gpu=1))), {GPU: 2}),
        (pod("a", container("m", gpu=1), init=({**container("s", gpu=1), **SIDECAR},)), {GPU: 2}),
        # a plain init container runs beside the sidecars before it; those after it take over what it had
        (pod("a", container("m", gpu=1), init=({**container("s", gpu=1), **SIDECAR}, container("i", gpu=2))), {GPU: 3}),
        (pod("a", container("m", gpu=1), init=(container("i", gpu=1), {**container("s", gpu=1), **SIDECAR})), {GPU: 2}),
        (
            pod(
                "a",
                container("m"),
                init=(container("i", gpu=2), {**container("s", gpu=1), **SIDECAR}, container("j", gpu=2)),
            ),
            {GPU: 3},
        ),
        (pod("a", container("m", cpu=1, huge=1)), None),
        (
            pod("a", container("m", gpu=1), extendedResourceClaimStatus={"requestMappings": [{"resourceName": GPU}]}),
            None,
        ),
        ({"metadata": {}}, None),
    ],
)
def test_what_a_pod_takes(body: dict[str, Any], asked: dict[str, int] | None) -> None:
    demand = demand_of(body)
    assert (dict(demand.asked) if demand else None) == asked


def _watch(*pods: dict[str, Any]) -> PodWatch:
    watch = PodWatch(None, "node-a", lambda: None, lambda: {GPU})  # type: ignore[arg-type]
    watch.listed(tuple(map(_seen, pods)))
    return watch


@pytest.mark.parametrize(
    ("phase", "states", "more", "ended"),
    [
        ("Running", [RUNNING], {}, False),
        ("Running", [OVER], {}, False),  # it is started again
        ("Succeeded", [OVER], {}, True),
        ("Failed", [], {}, True),  # kubelet did not admit it
        ("Failed", [WAITING], {}, True),  # never started
        ("Failed", [RUNNING], {}, False),  # evicted, or the word of the control plane alone
        ("Failed", [OVER, RUNNING], {}, False),
        (
            "Failed",
            [WAITING],
            {"conditions": [{"type": "DisruptionTarget"}]},
            False,
        ),  # what was before the node was cut off
        ("Failed", [OVER], {"conditions": [{"type": "DisruptionTarget"}]}, True),
        # evicted by kubelet itself before its init containers were done: this object stays, and says so for ever
        ("Failed", [WAITING], {"conditions": [{"type": "DisruptionTarget", "reason": "TerminationByKubelet"}]}, True),
        ("Failed", [RUNNING], {"conditions": [{"type": "DisruptionTarget", "reason": "TerminationByKubelet"}]}, False),
        ("Failed", [OVER], {"initContainerStatuses": [RUNNING]}, False),
        ("Failed", [OVER], {"ephemeralContainerStatuses": [RUNNING]}, False),
    ],
)
def test_a_pod_has_ended_when_kubelet_says_so_of_all_of_its_containers(
    phase: str, states: list[dict[str, Any]], more: dict[str, Any], ended: bool
) -> None:
    body = pod("a", container("m", gpu=1), phase=phase, containerStatuses=states, **more)
    demand = _seen(body).demand
    assert demand
    assert demand.ended is ended


DONE, FAILED = ({"state": {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}}} for code in (0, 1))
GUESSED = {"state": {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "finishedAt": None}}}
INIT = {"init": (container("i"),)}


@pytest.mark.parametrize(
    ("states", "more", "spec", "end"),
    [
        ([DONE], {}, {}, End.REPORTED),
        ([FAILED], {"phase": "Failed"}, {}, End.REPORTED),
        ([DONE], {}, {"restartPolicy": "OnFailure"}, End.REPORTED),
        ([FAILED], {"phase": "Failed"}, {"restartPolicy": "OnFailure"}, End.PHASE_ONLY),  # it may be started again
        ([DONE], {}, {"restartPolicy": "Always"}, End.PHASE_ONLY),  # kubelet does not end such a pod: somebody else did
        ([DONE], {}, {"restartPolicy": "Always", "deleted": True}, End.REPORTED),
        ([], {"phase": "Failed"}, {}, End.PHASE_ONLY),  # rejected, or somebody wrote the phase
        ([OVER], {}, {}, End.PHASE_ONLY),
        ([GUESSED], {"phase": "Failed"}, {"deleted": True}, End.PHASE_ONLY),  # kubelet did not find the container
        ([WAITING], {"phase": "Failed"}, {"deleted": True}, End.PHASE_ONLY),
        ([DONE], {"initContainerStatuses": [DONE]}, INIT, End.REPORTED),
        ([DONE], {}, INIT, End.PHASE_ONLY),
        ([DONE], {"initContainerStatuses": [WAITING]}, INIT, End.PHASE_ONLY),
        ([DONE], {"ephemeralContainerStatuses": [DONE]}, {"ephemeralContainers": [{}]}, End.REPORTED),
        ([DONE], {}, {"ephemeralContainers": [{}]}, End.PHASE_ONLY),
        (
            [DONE],
            {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "reason": "DeletionByPodGC"}]},
            {"deleted": True},
            End.PHASE_ONLY,
        ),
        (
            [DONE],
            {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "reason": "EvictionByEvictionAPI"}]},
            {"deleted": True},
            End.REPORTED,
        ),
        ([DONE], {"phase": "Running"}, {"restartPolicy": "Always"}, End.NOT_SEEN),
        ([RUNNING], {"phase": "Failed"}, {}, End.NOT_SEEN),
    ],
)
def test_an_end_is_proven_by_the_states_of_all_containers(
    states: list[dict[str, Any]], more: dict[str, Any], spec: dict[str, Any], end: End
) -> None:
    spec = {"restartPolicy": "Never", **spec}
    status = {"phase": "Succeeded", "containerStatuses": states, **more}
    body = pod("a", container("m", gpu=1), init=spec.pop("init", ()), **status)
    if spec.pop("deleted", False):
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body["spec"] |= spec
    demand = _seen(body).demand
    assert demand
    assert demand.end is end


def test_a_container_that_has_a_restart_policy_of_its_own_may_be_started_again() -> None:
    own = {**container("m", gpu=1), "restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}
    body = pod("a", own, phase="Failed", containerStatuses=[FAILED])
    body["spec"]["restartPolicy"] = "Never"
    demand = _seen(body).demand
    assert demand
    assert demand.end is End.PHASE_ONLY


@pytest.mark.parametrize("kept", [True, False])
def test_a_pod_that_ended_while_nobody_watched_is_found_by_the_next_list_if_its_object_is_left(kept: bool) -> None:
    done = pod("a", container("m", gpu=1), phase="Succeeded", containerStatuses=[DONE])
    done["spec"]["restartPolicy"] = "Never"
    at = At(A)
    at.watch.lost(UnreachableError("no answer"))
    at.watch.listed((_seen(done),) if kept else ())
    assert at.watch.enrich(_observed({})).ends == ({"uid-a": End.REPORTED} if kept else {})


@pytest.mark.parametrize(("states", "ended"), [([OVER], True), ([RUNNING], False), ([WAITING], False), ([], False)])
def test_kubelet_before_1_27_leaves_the_phase_of_a_deleted_pod(states: list[dict[str, Any]], ended: bool) -> None:
    body = pod("a", container("m", gpu=1), containerStatuses=states)
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    demand = _seen(body).demand
    assert demand
    assert demand.ended is ended


@pytest.mark.parametrize(
    ("own", "deletion", "grace"),
    [(None, None, 30), (5, None, 5), (5, 60, 60), (60, 0, 60), (10**9, 0, 3600), (0, 0, 0)],
)
def test_a_pod_s_grace_period_is_the_longest_that_kubelet_may_grant(
    own: int | None, deletion: int | None, grace: float
) -> None:
    body = pod("a", container("m", gpu=1))
    body["spec"]["terminationGracePeriodSeconds"] = own
    body["metadata"]["deletionGracePeriodSeconds"] = deletion
    demand = _seen(body).demand
    assert demand
    assert demand.grace == grace


class At:
    """A watch at a time that the test says."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.now = NOON
        self.watch = PodWatch(None, "node-a", lambda: None, now=lambda: self.now)  # type: ignore[arg-type]
        self.watch.slack = lambda: 10.0
        self.watch.listed(tuple(map(_seen, pods)))

    def unaccounted(self, ledger: Ledger = LEDGER) -> dict[str, tuple[str, ...]] | None:
        return self.watch.unaccounted(ledger, _observed({}))

    def may_run(self, hold: Hold | None = None, owner: Owner = Owner.LEGACY) -> tuple[str, ...]:
        """Who may have g0, held so, though it is gone."""
        entry = Entry(LedgerDevice("g0", GPU, ("g0",)), owner, hold=hold or Hold(("g0",)))
        return self.watch.may_run_yet(Ledger.of([entry])).get("g0", ())


def _ends(body: dict[str, Any]) -> dict[str, Any]:
    return body | {"status": {"phase": "Succeeded", "containerStatuses": [OVER]}}


A, B = pod("a", container("m", gpu=1)), pod("b", container("m", gpu=1))


@pytest.mark.parametrize("listed", [True, False])
def test_a_pod_that_is_gone_and_was_not_seen_to_end_counts_for_its_grace_period(listed: bool) -> None:
    at = At(A)
    if listed:  # it went while nobody watched
        at.watch.lost(UnreachableError("no answer"))
        at.watch.listed(())
    else:
        at.watch.changed("DELETED", _seen(A))
    assert at.unaccounted() == {}
    assert at.may_run() == ("default/a",)
    at.now += 39.9
    assert at.may_run() == ("default/a",)
    assert at.may_run(Hold(("g0",), pods=(PodRef("default", "a", "m", "uid-a"),))) == (), "it waits itself"
    at.now += 0.1
    assert at.may_run() == ()


X, Y = PodRef("default", "x", "m", "uid-x"), PodRef("default", "y", "m", "uid-y")


@pytest.mark.parametrize(
    ("hold", "owner", "in_doubt"),
    [
        (Hold(("g0",), confirmed=True, pods=(X,)), Owner.LEGACY, False),
        (Hold(("g0",), pods=(X,), recorded=(X,)), Owner.LEGACY, False),  # the checkpoint names it
        (Hold(("g0",), confirmed=True, pods=(X,)), Owner.CONFLICT, False),
        (Hold(("g0",)), Owner.LEGACY, True),  # nobody was seen with it
        (Hold(("g0",), confirmed=True, pods=(X,), earlier=(Y,)), Owner.LEGACY, True),  # another one had it before
        (Hold(("g0",), confirmed=True, pods=(X,), retaken=True), Owner.LEGACY, True),
        (Hold(("g0", "g0::1"), confirmed=True, pods=(X, Y)), Owner.LEGACY, True),  # whose is the other unit?
        (Hold(), Owner.QUARANTINE, True),
        (Hold(("g0",), pods=(X,)), Owner.QUARANTINE, True),
    ],
)
def test_a_pod_that_is_gone_delays_nobody_whose_holder_is_known(hold: Hold, owner: Owner, in_doubt: bool) -> None:
    """A tenant's pod, its limits and its grace period must not stop the releases of a resource for an hour."""
    body = pod("a", container("m", gpu=9))
    body["spec"]["terminationGracePeriodSeconds"] = 3600
    at = At(body, pod("b", container("m", fpga=1)))
    at.watch.listed(())
    assert at.may_run(hold, owner) == (("default/a",) if in_doubt else ())


@pytest.mark.parametrize(
    ("hold", "in_doubt"),
    [
        (Hold(("g1::0", "g1::1"), confirmed=True, pods=(X, PodRef(uid="uid-a"))), False),
        (Hold(("g1::0", "g1::1", "g1::2"), confirmed=True, pods=(X,), earlier=(PodRef(uid="uid-a"),)), False),
        (Hold(("g1::0",), confirmed=True, pods=(PodRef(uid="uid-a"),)), True),  # the other unit may be anywhere
        (Hold(("g1::0", "g1::1"), confirmed=True, pods=(X, Y)), True),  # the hold does not wait for it
    ],
)
def test_a_pod_whose_units_are_known_delays_none_that_share_another_device(hold: Hold, in_doubt: bool) -> None:
    body = pod("a", container("m", gpu=2))
    body["spec"]["terminationGracePeriodSeconds"] = 3600
    at = At(body)
    ref = PodRef(container="m", uid="uid-a")
    recorded = {(GPU, unit): (ref,) for unit in ("g1::0", "g1::1")}
    at.watch.unaccounted(LEDGER, replace(_observed({}), recorded=recorded))
    at.unaccounted()  # the checkpoint is not always read
    at.watch.changed("DELETED", _seen(body))
    others = Entry(LedgerDevice("g0", GPU, ("g0",)), Owner.LEGACY, hold=Hold(("g0::0", "g0::1"), pods=(X, Y)))
    own = Entry(LedgerDevice("g1", GPU, ("g1",)), Owner.LEGACY, hold=hold)
    assert ("g0" in at.watch.may_run_yet(Ledger.of([others, own]))) is in_doubt


def test_many_pods_that_are_gone_are_one_that_may_have_anything() -> None:
    """Of the namespace that has most of them; others' pods keep their names, and their claims wait no longer."""
    at = At()
    watch = at.watch
    honest, other = _claim_pod("honest"), ClaimRef("uid", "team-b", "claim")
    watch.changed("ADDED", _seen(honest))
    watch.changed("DELETED", _seen(honest))
    for n in range(2_000):
        body = pod(f"evil-{n}", container("m", fpga=1))
        body["metadata"]["namespace"] = "team-b"
        body["spec"]["terminationGracePeriodSeconds"] = 100 if n == 3 else 1
        watch.changed("ADDED", _seen(body))
        watch.changed("DELETED", _seen(body))
    held = Ledger.of([Entry(LedgerDevice("g0", GPU, ("g0",)), Owner.LEGACY, hold=Hold(("g0",)))])
    assert watch.may_run_yet(held) == {"g0": ("team-b/(many)",)}
    assert len(watch._gone._pods) <= 256
    assert (watch.lingers(CLAIM, 20), watch.lingers(other, 20)) == (30, 110), "no claim in another namespace waits"
    assert watch.unknown_devices_in_use({"vendor/gpu"})
    at.now += 109.9
    assert watch.may_run_yet(held)
    at.now += 0.1
    assert not watch.may_run_yet(held)
    assert not watch.unknown_devices_in_use({"vendor/gpu"})


@pytest.mark.parametrize("ends", ["gone", "lives"])
def test_pods_cost_little_memory_whatever_they_ask_for(ends: str) -> None:
    watch, body = At().watch, pod("a@", container("m"), phase="Running")
    body["spec"]["containers"][0]["resources"]["limits"] = {f"@.{'a' * 240}/{'b' * 50}-{k}": "1" for k in range(64)}
    body["spec"]["resourceClaims"] = [{"resourceClaimName": f"{'c' * 240}-@-{k}"} for k in range(64)]
    text = json.dumps(body).encode()
    tracemalloc.start()
    try:
        for n in range(1_500):
            one = watch.view(text.replace(b"@", b"%d" % n))
            watch.changed("ADDED", one)
            if ends == "gone":
                watch.changed("DELETED", one)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 8 << 20


def test_more_living_pods_than_a_node_can_have_make_it_unknown_who_has_what() -> None:
    watch = At().watch
    for n in range(1_030):
        watch.changed("ADDED", _seen(pod(f"a{n}", container("m", gpu=1))))
    assert len(watch._pods or ()) == 1_024
    assert watch.unaccounted(LEDGER, _observed({})) is None
    for n in range(1_024, 1_030):
        watch.changed("MODIFIED", _seen(pod(f"a{n}", container("m", gpu=1), phase="Failed")))
    assert watch.unaccounted(LEDGER, _observed({})) is not None


@pytest.mark.parametrize("kinds", [("MODIFIED", "DELETED"), ("DELETED",)])
def test_a_pod_that_was_seen_to_end_delays_no_release(kinds: tuple[str, ...]) -> None:
    at = At(A)
    for kind in kinds:
        at.watch.changed(kind, _seen(_ends(A)))
        assert at.unaccounted() == {}
    assert at.watch.enrich(_observed({})).ends.keys() == {"uid-a"}


def test_a_container_that_runs_again_has_not_ended() -> None:
    """Kubelet before 1.27 leaves the phase as it is; here it had begun the container anew before it knew."""
    at = At(A)
    between = {**A, "status": {"phase": "Running", "containerStatuses": [OVER]}}
    between["metadata"] = {**A["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    at.watch.changed("MODIFIED", _seen(between))
    at.watch.changed("MODIFIED", _seen({**between, "status": {"phase": "Running", "containerStatuses": [RUNNING]}}))
    assert not at.watch.enrich(_observed({})).ends
    at.watch.changed("DELETED", _seen({**between, "status": {"phase": "Running", "containerStatuses": [RUNNING]}}))
    assert not at.watch.enrich(_observed({})).ends
    assert at.may_run() == ("default/a",)


def test_a_pod_that_could_not_be_read_is_not_gone() -> None:
    at = At(_claim_pod("a"))
    at.watch.lost(UnreachableError("no answer"))
    at.watch.listed(())
    at.watch.unreadable("ADDED", ObjectIdentity("uid-a", "default", "a"))
    assert at.unaccounted() is None
    at.watch.changed("MODIFIED", _seen(_claim_pod("a")))
    assert at.watch.lingers(CLAIM, 20) == 0
    at.watch.unreadable("MODIFIED", ObjectIdentity("uid-a", "default", "a"))
    at.watch.changed("DELETED", _seen(_claim_pod("a")))
    assert at.watch.lingers(CLAIM, 20) == 30


def test_a_pod_that_is_there_again_is_not_gone() -> None:
    at = At(_claim_pod("a"))
    at.watch.listed(())
    assert at.watch.lingers(CLAIM, 20) == 30
    at.watch.listed((_seen(_claim_pod("a")),))
    at.watch.changed("MODIFIED", _seen(_ends(_claim_pod("a"))))
    assert at.watch.saw_the_end(CLAIM)


def test_a_pod_that_ends_while_kubelet_is_asked_keeps_its_name() -> None:
    """Without it nobody could say of the hold that its pod has ended, and it would wait for a grace period."""
    at = At(A)
    for name in ("a", "a again"):  # of two of that name, the later one
        body = {**_ends(A), "metadata": {**A["metadata"], "uid": f"uid-{name}"}}
        at.watch.changed("MODIFIED", _seen(body))
        shown = at.watch.enrich(_observed({"g0": "a"}))
        assert shown.listed
        assert [pod.uid for pod in shown.listed[GPU, "g0"]] == [f"uid-{name}"]


def test_ended_pods_are_remembered_with_few_fields() -> None:
    """Pods that anybody may bind to a node, and that kubelet refuses, with all the names that one may have."""
    watch, body = At().watch, pod("a@", container("m"), phase="Failed")
    body["spec"]["containers"][0]["resources"]["limits"] = {f"@.{'a' * 240}/{'b' * 50}-{k}": "1" for k in range(64)}
    body["spec"]["resourceClaims"] = [{"resourceClaimName": f"{'c' * 240}-@-{k}"} for k in range(64)]
    text = json.dumps(body).encode()
    tracemalloc.start()
    try:
        for n in range(1_500):
            watch.changed("ADDED", watch.view(text.replace(b"@", b"%d" % n)))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 8 << 20


def test_a_pod_with_too_many_claims_proves_nothing_about_any() -> None:
    watch, many = At().watch, _claim_pod("many")
    many["spec"]["resourceClaims"] = [{"resourceClaimName": f"other-{n}"} for n in range(65)]
    watch.changed("MODIFIED", _seen(_ends(many)))
    assert not watch.saw_the_end(CLAIM)
    assert watch.lingers(CLAIM, 20) == 30


def _claim_pod(name: str, **status: Any) -> dict[str, Any]:
    body = pod(name, container("m"), **status)
    body["spec"] |= {
        "resourceClaims": [{"name": "c", "resourceClaimName": "claim"}],
        "terminationGracePeriodSeconds": 20,
    }
    return body


CLAIM = ClaimRef("uid", "default", "claim")


def test_processes_of_a_claim_linger_where_its_pod_was_not_seen_to_end() -> None:
    at = At(_claim_pod("a"))
    watch = at.watch
    assert (watch.grace(CLAIM), watch.grace(ClaimRef("x", "default", "other"))) == (20, 30)
    assert watch.lingers(CLAIM, 20) == 0, "kubelet unprepares before it reports the end"
    watch.lost(UnreachableError("no answer"))
    assert watch.lingers(CLAIM, 20) == 30, "it may be gone"
    watch.listed((_seen(_claim_pod("a")),))
    watch.changed("DELETED", _seen(_claim_pod("a")))
    at.now += 5
    assert watch.lingers(CLAIM, 20) == 25
    assert watch.lingers(ClaimRef("uid", "elsewhere", "claim"), 0) == 0
    assert not watch.saw_the_end(CLAIM)
    at.now += 25
    assert watch.lingers(CLAIM, 20) == 0


def test_processes_of_a_claim_have_ended_with_their_pod() -> None:
    watch = At(_claim_pod("a")).watch
    assert not watch.saw_the_end(CLAIM)
    watch.changed("MODIFIED", _seen(_ends(_claim_pod("a"))))
    watch.changed("DELETED", _seen(_ends(_claim_pod("a"))))
    assert watch.saw_the_end(CLAIM)
    assert watch.lingers(CLAIM, 20) == 0
    watch.changed("ADDED", _seen(_claim_pod("b")))
    assert not watch.saw_the_end(CLAIM)


def test_a_claim_whose_pod_was_gone_before_anybody_looked_lingers_from_then() -> None:
    at = At()
    assert at.watch.lingers(CLAIM, 20) == 30
    at.now += 12
    assert at.watch.lingers(CLAIM, 20) == 18
    assert at.watch.lingers(CLAIM, 0) == 0, "no pod of it was ever known"
    at.now += 18
    assert at.watch.lingers(CLAIM, 20) == 0


@pytest.mark.parametrize(
    "fake",
    [
        {"annotations": {MIRROR: "x"}},
        {"annotations": {MIRROR: "x"}, "ownerReferences": [{**OWNER, "name": "node-b"}]},
        {"annotations": {MIRROR: "x"}, "ownerReferences": [{**OWNER, "kind": "ReplicaSet"}]},
        {"annotations": {MIRROR: "x"}, "ownerReferences": [OWNER], "deletionTimestamp": "2026-01-01T00:00:00Z"},
    ],
)
def test_a_false_mirror_pod_keeps_nothing_held(fake: dict[str, Any]) -> None:
    """Anybody who may create pods may write the annotation, and a finalizer; kubelet never runs such a pod."""
    at = At({**B, "metadata": {**B["metadata"], **fake}})
    assert at.unaccounted() == {}
    at.watch.changed("DELETED", _seen(B))
    assert at.unaccounted() == {}


def test_a_mirror_cannot_say_another_pod_s_uid() -> None:
    body = pod("evil", container("m", fpga=1))
    body["metadata"] |= {"annotations": {MIRROR: "uid-a"}, "ownerReferences": [OWNER]}
    for at in At(A, body), At(body, A):
        assert at.unaccounted() == {GPU: ("default/a",)}
        shown = at.watch.enrich(_observed({}, CheckpointRead({(GPU, "g0"): (PodRef(uid="uid-a"),)})))
        assert shown.checkpoint
        assert str(shown.checkpoint.pods[GPU, "g0"][0]) == "default/a"
        at.watch.changed("MODIFIED", _seen(_ends(body)))
        at.watch.changed("DELETED", _seen(_ends(body)))
        assert at.unaccounted() == {GPU: ("default/a",)}
        assert not at.watch.enrich(_observed({})).ends


def _observed(listed: dict[str, str], checkpoint: CheckpointRead | None = None) -> Observed:
    shown = {(FPGA if unit[0] == "f" else GPU, unit): (PodRef("default", name, "m"),) for unit, name in listed.items()}
    return Observed(0.0, 0, listed=shown, checkpoint=checkpoint)


def test_a_pod_that_kubelet_shows_with_less_than_it_asks_for_is_unaccounted() -> None:
    watch = _watch(pod("a", container("m", gpu=2)), pod("b", container("m", fpga=1)))
    assert watch.unaccounted(LEDGER, _observed({"g0": "a"})) == {GPU: ("default/a",), FPGA: ("default/b",)}
    assert watch.unaccounted(LEDGER, _observed({"g0": "a", "g1": "a", "f0": "b"})) == {}
    assert watch.unaccounted(LEDGER, _observed({"g0": "x", "g1": "a", "f0": "b"})) == {GPU: ("default/a",)}


async def test_the_pods_that_others_wait_for_are_named_while_they_do() -> None:
    held = Entry(
        LedgerDevice("g0", GPU, ("g0",)), Owner.LEGACY, hold=Hold(("g0",), because=HeldBecause.POD_UNACCOUNTED)
    )
    service = service_of(Ledger.of([held]))
    others = OtherEvidence(service, dict, frozenset)
    others.pods = _watch(*(pod(f"a{n}", container("m", gpu=1)) for n in range(6)), pod("b", container("m", fpga=1)))
    await others.enrich(_observed({}))
    who = "default/a0, default/a1, default/a2, default/a3 and 2 more"
    assert others.notes() == [f"{GPU}: no hold ends while kubelet shows fewer devices than are asked for by {who}"]
    service.ledger = LEDGER
    assert others.notes() == []


def test_a_pod_that_ended_while_nobody_watched_is_noticed_by_the_next_list() -> None:
    ended: list[int] = []
    watch = PodWatch(None, "node-a", lambda: ended.append(1))  # type: ignore[arg-type]
    for pods, count in (("a",), 0), (("a", "b"), 0), (("b",), 1), (("b", "c"), 1):
        watch.listed(tuple(_seen(pod(name, container("m", gpu=1))) for name in pods))
        assert len(ended) == count


def test_another_plugin_s_units_account_for_what_is_asked_of_it_alone() -> None:
    shown = {
        (name, unit): (PodRef("default", "a", "m"),) for name, unit in (("vendor", "g0"), ("vendor", "9"), (GPU, "9"))
    }
    seen = Observed(0.0, 0, listed=shown)
    assert _watch(pod("a", container("m", gpu=1))).unaccounted(LEDGER, seen) == {GPU: ("default/a",)}, "an unknown id"
    asks = pod("a", container("m"))
    asks["spec"]["containers"][0]["resources"]["limits"] = {"vendor/gpu": "2"}
    listed = {("vendor/gpu", unit): (PodRef("default", "a", "m"),) for unit in ("g0", "9")}
    assert _watch(asks).unaccounted(LEDGER, Observed(0.0, 0, listed=listed)) == {}
    assert _watch(asks).unaccounted(LEDGER, seen) == {"vendor/gpu": ("default/a",)}


@pytest.mark.parametrize(("fresh", "missing"), [(True, {}), (False, {GPU: ("default/a",)})])
def test_an_init_container_is_accounted_for_by_a_fresh_checkpoint_alone(fresh: bool, missing: dict[str, Any]) -> None:
    watch = _watch(pod("a", container("m"), init=(container("i", gpu=1),)))
    checkpoint = CheckpointRead({(GPU, "g0"): (PodRef(container="i", uid="uid-a"),)}, barrier=fresh)
    assert watch.unaccounted(LEDGER, _observed({}, checkpoint)) == missing


async def test_a_pod_that_the_checkpoint_alone_shows_has_its_name_and_keeps_it() -> None:
    watch = _watch(pod("a", container("m"), init=(container("i", gpu=1),)))
    others = OtherEvidence(service_of(LEDGER), dict, frozenset)
    others.pods = watch
    shown = {(GPU, "g0"): (PodRef(container="i", uid="uid-a"), PodRef(container="i", uid="uid-x"))}
    for _ in range(2):
        seen = await others.enrich(_observed({}, CheckpointRead(shown)))
        assert seen.checkpoint
        assert list(map(str, seen.checkpoint.pods[GPU, "g0"])) == ["default/a (container i)", "uid uid-x (container i)"]
        watch.lost(UnreachableError("no answer"))


def test_a_static_pod_is_known_to_kubelet_by_the_uid_that_its_mirror_names() -> None:
    mirror = pod("a", container("m"), init=(container("i", gpu=1),))
    mirror["metadata"] |= {"annotations": {MIRROR: "0123abcd"}, "ownerReferences": [OWNER]}
    ended: list[int] = []
    watch = PodWatch(None, "node-a", lambda: ended.append(1))  # type: ignore[arg-type]
    watch.listed((_seen(mirror),))
    checkpoint = CheckpointRead({(GPU, "g0"): (PodRef(container="i", uid="0123abcd"),)}, barrier=True)
    assert watch.unaccounted(LEDGER, _observed({}, checkpoint)) == {}
    assert watch.unaccounted(LEDGER, _observed({})) == {GPU: ("default/a",)}
    watch.changed("MODIFIED", _seen(mirror))
    assert not ended
    watch.changed("DELETED", _seen(mirror))
    assert watch.unaccounted(LEDGER, _observed({})) == {}
    assert ended == [1]


def test_without_a_list_of_pods_there_is_no_evidence() -> None:
    assert _watch().unaccounted(LEDGER, Observed(0.0, 0)) is None
    assert PodWatch(None, "n", lambda: None).unaccounted(LEDGER, _observed({})) is None  # type: ignore[arg-type]


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[SimApiServer, PodWatch, list[int]]]:
    ended: list[int] = []
    with short_directory() as root:
        async with SimApiServer() as api:
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}
            api.objects.create(node)
            cluster = KubernetesCluster.from_kubeconfig(api.kubeconfig(root / "kubeconfig"))
            watch = PodWatch(cluster, "node-a", lambda: ended.append(1))
            task = asyncio.create_task(watch.run())
            try:
                await until(lambda: watch.unaccounted(LEDGER, _observed({})) is not None)
                yield api, watch, ended
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                cluster.close()


def _create(api: SimApiServer, name: str) -> None:
    body = pod(name, container("m", gpu=1))
    del body["metadata"]["uid"], body["status"]
    body["spec"]["terminationGracePeriodSeconds"] = 0
    api.objects.create(body)


def _end(body: dict[str, Any]) -> None:
    body["status"] |= {"phase": "Succeeded"}


async def test_pods_come_and_go_and_their_end_is_told() -> None:
    async with watching() as (api, watch, ended):
        _create(api, "a")
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) == {GPU: ("default/a",)})
        assert not ended
        api.objects.modify("pods", "a", _end, namespace="default", subresource="status")
        api.objects.delete("pods", "a", "default", grace_seconds=0)
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) == {})
        assert ended == [1]


async def test_without_the_api_server_nothing_is_known_and_afterwards_everything() -> None:
    async with watching() as (api, watch, _):
        _create(api, "a")
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) == {GPU: ("default/a",)})
        api.faults.partition()
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) is None)
        api.objects.modify("pods", "a", _end, namespace="default", subresource="status")
        api.objects.delete("pods", "a", "default", grace_seconds=0)
        _create(api, "b")
        api.faults.heal()
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) == {GPU: ("default/b",)}, 10)


async def test_a_dropped_watch_misses_nothing() -> None:
    async with watching() as (api, watch, _):
        api.faults.drop_watches()
        _create(api, "a")
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) == {GPU: ("default/a",)}, 10)


async def test_a_pod_that_has_ended_is_gone() -> None:
    async with watching() as (api, watch, ended):
        for name in ("a", "b"):
            _create(api, name)
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) == {GPU: ("default/a", "default/b")})
        failed = {"phase": "Failed"}
        api.objects.modify(
            "pods", "a", lambda one: one.update(status=failed), namespace="default", subresource="status"
        )
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) == {GPU: ("default/b",)})
        assert ended == [1]
        api.faults.fail(1, 410, verb="watch")
        assert api.faults.drop_watches() == 1
        lists = sum(request.verb == "list" for request in api.requests)
        await until(lambda: sum(request.verb == "list" for request in api.requests) > lists)
        await until(lambda: watch.unaccounted(LEDGER, _observed({})) == {GPU: ("default/b",)})
        assert ended == [1], "the list has it still, and says nothing new"


def test_only_our_resources_of_a_pod_are_remembered() -> None:
    asks = pod("a", container("m"))
    asks["spec"]["containers"][0]["resources"]["limits"] = {f"vendor/{n}": "1" for n in range(5_000)} | {GPU: "2"}
    for ours, found in ({GPU}, {GPU: ("default/a",)}), ({FPGA}, {}):
        watch = PodWatch(None, "node-a", lambda: None, lambda names=ours: names)  # type: ignore[arg-type, misc]
        watch.listed((watch.view(json.dumps(asks).encode()),))
        assert watch.unaccounted(LEDGER, _observed({})) == found


def test_pods_that_were_sent_here_are_counted_once_each_by_resource() -> None:
    watch = _watch(pod("a", container("m", gpu=1)))
    for name, gpus in (("a", 1), ("b", 2), ("c", 0)):
        for _ in range(2):
            watch.changed("MODIFIED", _seen(pod(name, container("m", gpu=gpus) if gpus else container("m", cpu=1))))
    strange = pod("d", container("m", gpu=1))
    strange["spec"]["containers"][0]["resources"]["limits"]["a.b/nobody-serves-it"] = "1"
    watch.changed("ADDED", _seen(strange))
    assert watch.sent == {GPU: 3}, "nobody else's names are remembered, however many pods have them"


def test_unreadable_pods_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apiserver_pods, "MOST_UNREADABLE", 10)
    watch = _watch()
    many = [ObjectIdentity(uid=f"u{number}") for number in range(50)]
    for one in many:
        watch.unreadable("ADDED", one)
    assert len(watch._unreadable) == 11
    for one in many:
        watch.unreadable("DELETED", one)
    assert watch.unaccounted(LEDGER, _observed({})) is None, "of one that was not noted nobody knows"
    watch.listed(())
    assert watch.unaccounted(LEDGER, _observed({})) == {}
