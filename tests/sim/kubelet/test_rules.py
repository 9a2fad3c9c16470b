"""The simulated kubelet's rules without sockets: names, checkpoint, limiter, predicate, claims, health, versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.sim.kubelet import admission, checkpoint, dra_claims, pod_json
from drabridge.sim.kubelet.device_accounting import (
    Allocation,
    DeviceInfo,
    DeviceState,
    EndpointRecord,
    KubeletPanicError,
)
from drabridge.sim.kubelet.device_health import HealthBook
from drabridge.sim.kubelet.dra_plugins import choose_health
from drabridge.sim.kubelet.node import NodeResources
from drabridge.sim.kubelet.podresources import TokenBucket
from drabridge.sim.kubelet.pods import (
    Container,
    ContainerClaim,
    ExtendedClaim,
    Phase,
    PodClaim,
    PodRecord,
    PodSpec,
    RequestMapping,
)
from drabridge.sim.kubelet.registration import endpoint_path, is_extended_resource_name
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.releases import RELEASES

R = "example.com/gpu"
ids = st.text("abc<>&é-", min_size=1, max_size=6)
allocations = st.builds(
    Allocation, st.dictionaries(st.integers(-1, 9), st.lists(ids, min_size=1).map(tuple), min_size=1), st.binary()
)


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("nvidia.com/gpu", True),
        ("example.com/a_B.c-1", True),
        ("gpu", False),
        ("kubernetes.io/gpu", False),
        ("deviceclass.resource.kubernetes.io/x", False),
        ("requests.example.com/gpu", False),
        ("Example.com/gpu", False),
        ("example.com/-gpu", False),
        ("example.com/gpu-", False),
        ("example.com/", False),
        ("a/b/c", False),
        ("example.com/" + "g" * 63, True),
        ("example.com/" + "g" * 64, False),
        ("a." * 120 + "com/gpu", True),  # 243 characters and "requests." make 252
        ("a." * 121 + "com/gpu", False),  # 245: 254 with the prefix
    ],
)
def test_extended_resource_names(name: str, valid: bool) -> None:
    assert is_extended_resource_name(name) is valid


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("p.sock", "/d/p/p.sock"), ("../x.sock", "/d/x.sock"), ("/abs/p.sock", "/d/p/abs/p.sock"), ("a//b", "/d/p/a/b")],
)
def test_endpoints_are_joined_as_go_does(endpoint: str, path: str) -> None:
    assert endpoint_path(Path("/d/p"), endpoint) == Path(path)


@given(
    st.dictionaries(st.tuples(ids, ids, ids), allocations, max_size=4),
    st.dictionaries(ids, st.lists(ids).map(tuple), max_size=3),
)
def test_a_checkpoint_reads_back_as_it_was_written(
    held: dict[tuple[str, str, str], Allocation], registered: dict[str, tuple[str, ...]]
) -> None:
    text = checkpoint.encode(held, registered)
    saved = checkpoint.decode(text)
    assert saved.held == held
    assert saved.registered == registered
    assert not set("<>&") & set(text), "escaped as Go's encoder does"


def test_the_observed_checkpoint_is_written_byte_for_byte() -> None:
    held = {("u1", "b", "y.example.com/gpu"): Allocation({0: ("d1",), 1: ("d1",), -1: ("d2",)}, b"\n\x00")}
    text = checkpoint.encode(held, {"y.example.com/gpu": ["d0", "d1", "d2", "d3"]})
    assert text.rpartition(',"Checksum":')[0] == (
        '{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"b","ResourceName":"y.example.com/gpu",'
        '"DeviceIDs":{"-1":["d2"],"0":["d1"],"1":["d1"]},"AllocResp":"CgA="}],'
        '"RegisteredDevices":{"y.example.com/gpu":["d0","d1","d2","d3"]}}'
    )
    assert checkpoint.encode({}, {}).startswith('{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},')


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"Data":{}}', '{"Data":null,"Checksum":1}', "null"])
def test_a_file_that_is_no_checkpoint_is_reported_as_such(text: str) -> None:
    with pytest.raises(checkpoint.CorruptCheckpointError):
        checkpoint.decode(text)


def test_an_edited_checkpoint_is_noticed() -> None:
    text = checkpoint.encode({("u", "c", R): Allocation({-1: ("d0",)}, b"")}, {R: ["d0"]})
    with pytest.raises(checkpoint.CorruptCheckpointError, match="corrupted"):
        checkpoint.decode(text.replace("d0", "d1"))


@given(st.lists(st.floats(0, 0.05), min_size=1, max_size=200))
def test_the_bucket_never_lets_more_through_than_burst_and_rate(pauses: list[float]) -> None:
    bucket, now, allowed = TokenBucket(100, 10), 0.0, 0
    for pause in pauses:
        now += pause
        allowed += bucket.take(now)
    assert allowed <= 10 + now * 100 + 1e-6


def test_the_bucket_opens_again() -> None:
    bucket = TokenBucket(100, 10)
    assert [bucket.take(0.0) for _ in range(11)] == [True] * 10 + [False]
    assert not bucket.take(0.009)
    assert bucket.take(0.011)


def test_a_pod_counts_for_the_maximum_of_init_and_running_containers() -> None:
    spec = PodSpec(
        "n",
        "p",
        init_containers=(
            Container("i", {R: 3}),
            Container("s", {R: 1}, restart_policy="Always"),
            Container("j", {R: 1}),
        ),
        containers=(Container("a", {R: 1}), Container("b", {R: 1, "example.com/x": 2})),
    )
    assert admission.pod_requests(spec) == {R: 3, "example.com/x": 2}
    served = ExtendedClaim("c", (RequestMapping("a", R, "r"), RequestMapping("i", R, "r")))
    assert admission.pod_requests(PodSpec("n", "p", containers=spec.containers, extended_claim=served))[R] == 1


def test_the_predicate_lets_held_devices_outrank_a_stale_node() -> None:
    spec, other = PodSpec("n", "p", containers=(Container("a", {R: 1}),)), PodSpec("n", "q")
    admission.check_node_fits(spec, [other], {}, {})
    admission.check_node_fits(spec, [other], {R: 0}, {R: 1})
    with pytest.raises(admission.RejectedError, match="requested: 1, used: 1, capacity: 1") as caught:
        admission.check_node_fits(spec, [spec], {R: 1}, {})
    assert caught.value.reason == f"OutOf{R}"


def state_with(*devices: DeviceInfo) -> DeviceState:
    state = DeviceState(endpoints={R: EndpointRecord(pre_start=False)})
    state.update(R, devices)
    return state


def test_any_health_but_healthy_is_unhealthy() -> None:
    texts = ("Healthy", "healthy", "", "Unhealthy")
    state = state_with(*(DeviceInfo(f"d{i}", text) for i, text in enumerate(texts)))
    assert state.healthy[R] == {"d0"}
    assert state.capacity(0.0, 300.0) == ({R: 4}, {R: 1}, set())


def test_the_life_cycle_of_capacity() -> None:
    state, node = state_with(DeviceInfo("d0", "Healthy")), NodeResources()
    node.apply(*state.capacity(0.0, 300.0))
    state.disconnect(R, 10.0)
    node.apply(*state.capacity(310.0, 300.0))
    assert node.status() == {"capacity": {R: 1}, "allocatable": {R: 0}}, "five minutes are not over"
    node.apply(*state.capacity(310.1, 300.0))
    assert node.status() == {"capacity": {R: 0}, "allocatable": {R: 0}}
    node.apply(*state.capacity(999.0, 300.0))
    assert node.status() == {"capacity": {R: 0}, "allocatable": {R: 0}}, "the key stays for ever"


def test_an_id_that_left_the_list_is_a_nil_dereference() -> None:
    state = state_with(DeviceInfo("d0", "Healthy"))
    with pytest.raises(KubeletPanicError, match=r"allocateContainerResources.*'d1' is not in the newest list"):
        state.insert("u", "c", R, ["d1"], b"")


def test_container_claims_select_by_request() -> None:
    spec = PodSpec(
        "n",
        "p",
        containers=(Container("a", claims=(ContainerClaim("g", "x"),)), Container("b", claims=(ContainerClaim("g"),))),
        resource_claims=(PodClaim("g", "claim"),),
    )
    info = dra_claims.ClaimInfo("n", "claim", "u")
    info.drivers["d"] = [
        dra_claims.PreparedDevice("p", "0", ("x",), ("cdi0", "all")),
        dra_claims.PreparedDevice("p", "1", ("y",), ("cdi1", "all")),
        dra_claims.PreparedDevice("p", "2", (), ("cdi2",)),
    ]
    cache = {("n", "claim"): info}
    assert dra_claims.container_devices(cache, spec, spec.containers[0])[0] == ["cdi0", "all", "cdi2"]
    assert dra_claims.container_devices(cache, spec, spec.containers[1])[0] == ["cdi0", "all", "cdi1", "cdi2"]
    assert dra_claims.dynamic_resources({}, spec, spec.containers[0], share_ids=True) == []
    assert dra_claims.decode(dra_claims.encode([info], share_ids=True)) == {("n", "claim"): info}
    with pytest.raises(ValueError, match="corrupted"):
        dra_claims.decode(dra_claims.encode([info], share_ids=True).replace("cdi0", "cdi9"))


def test_health_is_cut_and_forgotten() -> None:
    book = HealthBook()
    book.report("d", [("p", "0", 2, 0, "x" * 1025), ("p", "1", 1, 5, "")], 100.0, 30.0)
    assert book.of("d", "p", "0", 130.0).message == "x" * 1021 + "..."
    assert book.of("d", "p", "0", 130.1).health == "Unknown"
    assert book.of("d", "p", "1", 104.0).health == "Healthy"
    assert book.of("d", "p", "1", 105.1).health == "Unknown"
    book.clear("d")
    assert book.of("d", "p", "0", 100.0).health == "Unknown"


BOTH = ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth", "v1.DRAResourceHealth")


@pytest.mark.parametrize(
    ("version", "offered", "chosen"),
    [
        ("1.36", BOTH, "v1alpha1"),
        ("1.36", BOTH[:1], "v1alpha1"),  # opened though nobody offers it
        ("1.37", BOTH, "v1"),
        ("1.37", BOTH[:2], "v1alpha1"),
        ("1.37", BOTH[:1], None),
    ],
)
def test_a_kubelet_opens_the_newest_health_that_is_offered(
    version: str, offered: tuple[str, ...], chosen: str | None
) -> None:
    """``TestPickHealthService`` of the real one; 1.36 does not look at what is offered."""
    service = None if chosen is None else f"{chosen}.DRAResourceHealth"
    assert choose_health(offered, RELEASES[version]) == service


def test_the_real_timings_are_the_defaults() -> None:
    timings = Timings()
    pinned = {
        "dial_seconds": 10,
        "get_info_seconds": 1,
        "notify_seconds": 5,
        "reconcile_seconds": 1,
        "plugin_backoff_seconds": 0.5,
        "plugin_backoff_max_seconds": 122,
        "pre_start_seconds": 30,
        "dra_call_seconds": 45,
        "dra_retry_seconds": (60, 90),
        "slice_wipe_seconds": 30,
        "endpoint_grace_seconds": 300,
        "node_status_seconds": 10,
        "health_default_timeout_seconds": 30,
        "health_retry_seconds": 5,
        "podresources_qps": 100,
        "podresources_burst": 10,
    }
    assert {name: getattr(timings, name) for name in pinned} == pinned


def test_pods_become_json_and_back() -> None:
    fixtures = Path(__file__).parents[1] / "fixtures" / "kubernetes-1.36.3"
    with_claim = pod_json.pod_from_manifest(json.loads((fixtures / "pod-with-claim.json").read_text()))
    assert with_claim.claim_names() == ("cl1",)
    assert [c.claims for c in with_claim.containers] == [(ContainerClaim("g"),)] * 2
    extended = pod_json.pod_from_manifest(json.loads((fixtures / "pod-extended-resource.json").read_text()))
    assert extended.served_by_claim("c", "obs.example.com/gpu")
    assert admission.pod_requests(extended) == {}
    for spec in (with_claim, extended):
        record = PodRecord(spec, running={"c"}, restarts={"c": 2}, terminating=True, ending=Phase.FAILED)
        document = json.loads(json.dumps(pod_json.record_to_json(record)))
        assert pod_json.record_from_json(document) == record
