"""Evidence of claims: what kubelet's List says, and when the API server is asked for all claims."""

from __future__ import annotations

import pytest

from drabridge.evidence.apiserver_pods import PodWatch
from drabridge.evidence.kubelet import claim_users_of, claims_of, users_of
from drabridge.evidence.other_sources import OtherEvidence
from drabridge.evidence.pod_objects import watched_pod
from drabridge.ledger.entries import ClaimRef, ClaimShare, Entry, Hold, Ledger, LedgerDevice, Owner, PodRef
from drabridge.ledger.events import ClaimDevices, DeviceUse, Observed
from podresources.model import Claim, ClaimDevice, Container, NodeSnapshot, Pod, SocketIdentity
from tests.evidence.api_pods import FPGA, GPU, container, pod, service_of

FOUND = (ClaimDevices(ClaimRef("uid-c", "default", "c"), (DeviceUse("g0"),)),)
POD = pod("a", container("m", gpu=1))


def entry(name: str, owner: Owner, resource: str = GPU) -> Entry:
    return Entry(LedgerDevice(name, resource, (name,)), owner, hold=Hold((name,)))


LOST = entry("g0", Owner.QUARANTINE)
HELD = entry("g1", Owner.LEGACY)
OTHER = entry("f0", Owner.QUARANTINE, FPGA)
NOTHING_SEEN = Observed(0.0, 0, {})


@pytest.mark.parametrize(
    ("entries", "round_", "pods", "asked"),
    [
        ([LOST, HELD], NOTHING_SEEN, (), True),
        ([HELD], NOTHING_SEEN, (), False),  # its pod's end is another matter
        ([LOST], Observed(0.0, 0, {(GPU, "g0"): (PodRef("default", "a"),)}), (), False),  # nothing but
        ([LOST], Observed(0.0, 0, {}, claimed={"g0": (ClaimRef("uid-c"),)}), (), False),  # these
        ([LOST], NOTHING_SEEN, (POD,), False),  # would end it
        ([LOST, OTHER], NOTHING_SEEN, (POD,), True),
        ([LOST, OTHER], Observed(0.0, 0, {}, claimed={"g0": (ClaimRef("uid-c"),)}), (), True),
    ],
)
async def test_claims_are_listed_where_they_alone_keep_a_device_in_quarantine(
    entries: list[Entry], round_: Observed, pods: tuple[dict[str, object], ...], asked: bool
) -> None:
    calls = []

    async def claims() -> tuple[ClaimDevices, ...]:
        calls.append(1)
        return FOUND

    others = OtherEvidence(service_of(Ledger.of(entries)), dict, frozenset)
    others.pods = PodWatch(None, "node-a", lambda: None)  # type: ignore[arg-type]
    others.pods.listed(tuple(map(watched_pod, pods)))
    others.claims = claims
    assert (await others.enrich(round_)).allocated == (FOUND if asked else ())
    assert len(calls) == asked


async def test_without_an_api_server_to_ask_a_claim_is_not_free() -> None:
    async def unreachable() -> None:
        return None

    others = OtherEvidence(service_of(Ledger.of([LOST])), dict, frozenset)
    others.claims = unreachable
    assert (await others.enrich(NOTHING_SEEN)).allocated is None  # pods are not known
    others.pods = PodWatch(None, "node-a", lambda: None)  # type: ignore[arg-type]
    others.pods.listed(())
    assert (await others.enrich(NOTHING_SEEN)).allocated is None
    others.claims = None
    assert (await others.enrich(NOTHING_SEEN)).allocated is None


# --- what kubelet's List says of claims -------------------------------------------------------------------------------

DRIVER = "gpu.example.com"
UID, OTHER_UID = "34553fd1-cf06-469c-b877-c1432ff67333", "5bd47ba5-dc39-4e01-b577-25147473f530"


def given(device: str, uid: str, driver: str = DRIVER, share: str | None = None) -> ClaimDevice:
    return ClaimDevice(driver, "node-a", device, share, (f"{driver}/device=claim-{uid}-r-{device}",) if uid else ())


def listed(*claims: Claim) -> NodeSnapshot:
    """Each claim with a container of its own."""
    pods = [Pod(claim.namespace, f"pod-{n}", (Container("main", claims=(claim,)),)) for n, claim in enumerate(claims)]
    return NodeSnapshot(tuple(pods), (), SocketIdentity(0, 0, 0))


def test_a_claim_of_a_list_has_its_uid_from_its_files_and_our_devices_alone() -> None:
    one = Claim("default", "c", (given("g0", UID), given("nic0", "x", "nic.example.com"), given("g1", UID, share="s")))
    twice = Claim("other", "c", (given("g2", OTHER_UID),))
    nameless = Claim("default", "d", (given("g3", ""),))
    assert claims_of(listed(one, twice, twice, nameless), DRIVER) == (
        ClaimDevices(ClaimRef(UID, "default", "c"), (DeviceUse("g0"), DeviceUse("g1", ClaimShare("s")))),
        ClaimDevices(ClaimRef(OTHER_UID, "other", "c"), (DeviceUse("g2"),)),
        ClaimDevices(ClaimRef("", "default", "d"), (DeviceUse("g3"),)),
    )


def test_users_of_a_claim_are_not_those_of_its_namesake() -> None:
    snapshot = listed(Claim("default", "c", (given("g0", UID),)), Claim("other", "c", (given("g1", OTHER_UID),)))
    claim = ClaimRef(UID, "default", "c")
    assert users_of(snapshot, claim, DRIVER, "g0") == (PodRef("default", "pod-0", "main"),)
    assert users_of(snapshot, claim, DRIVER, "g1") == ()
    assert users_of(snapshot, claim, "another.example.com", "g0") == ()
    assert users_of(snapshot, ClaimRef(OTHER_UID, "other", "c"), DRIVER, "g0") == ()
    assert users_of(snapshot, ClaimRef(OTHER_UID), DRIVER, "g1") == (PodRef("other", "pod-1", "main"),)


def test_a_claim_made_again_under_its_name_is_another_one() -> None:
    old, new = ClaimRef(OTHER_UID, "default", "c"), ClaimRef(UID, "default", "c")
    snapshot = listed(Claim("default", "c", (given("g0", UID),)), Claim("default", "c", (given("g0", OTHER_UID),)))
    assert users_of(snapshot, new, DRIVER, "g0") == (PodRef("default", "pod-0", "main"),)
    assert users_of(snapshot, old, DRIVER, "g0") == (PodRef("default", "pod-1", "main"),)
    assert claim_users_of(snapshot, DRIVER) == {new: ("default/pod-0",), old: ("default/pod-1",)}
    untold = listed(Claim("default", "c", (given("g0", ""),)))  # a device by another program's file alone
    assert users_of(untold, new, DRIVER, "g0") == (PodRef("default", "pod-0", "main"),)
    assert users_of(untold, ClaimRef(UID, "default", "d"), DRIVER, "g0") == ()
