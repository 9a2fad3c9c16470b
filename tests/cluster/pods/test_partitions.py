"""Disks and their partitions: who holds a disk holds its parts, through either API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.bed import (
    CLAIMS,
    DRIVER,
    LANES,
    NAMESPACE,
    PODS,
    RESOURCE,
    SLICES,
    Bed,
    Json,
    apply_node,
    lanes,
    wait_for,
)
from tests.cluster.disks import disk
from tests.cluster.real_bed import own_cluster
from tests.cluster.releases.features import needs
from tests.cluster.steps import allocated, claim_pod, deleted, event, legacy_pod, phase, pod_with, running
from tests.support.hardware import Loops, needs_loop_devices

# Not marked loopdev: on a real node these need a cluster first, and are left out where there is none.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_loop_devices, needs("partitionable devices")]

LOOPS = Loops()
CLAIMED, LIMITED = LOOPS.name(0), LOOPS.name(1)  # claims begin at the front of the order, pods at its end
PARTS = "example.com/cluster-test-parts"
PARTS_CLASS = "drabridge-cluster-test-parts"
PARTS_OF_ONE, TOGETHER = 3, 2  # claims get no more of one disk than its counter has
CONFIG: Json = {
    **b.CONFIG,
    "resources": [
        {
            "name": RESOURCE,
            "match": [{"subsystem": "block", "sysname": [CLAIMED, LIMITED]}],
            "id": ["{sysname}"],
            "nodes": [{"from": "devnode", "as": "/dev/test-{sysname}"}],
            "lanes": {"legacy": 1, "dra": 1},
            "deviceClass": {"name": b.CLASS},
        },
        {
            "name": PARTS,
            "match": [{"subsystem": "block", "devtype": "partition", "sysname": [f"{CLAIMED}p*", f"{LIMITED}p*"]}],
            "id": ["{sysname}"],
            "nodes": [{"from": "devnode", "as": "/dev/test-{sysname}"}],
            "lanes": {"legacy": PARTS_OF_ONE, "dra": PARTS_OF_ONE},
            "partition": {"of": RESOURCE, "counters": {"heads": {"total": TOGETHER}}},
            "deviceClass": {"name": PARTS_CLASS},
        },
    ],
}
A_PART = w.request(device_class=PARTS_CLASS)
LOCK_PARTS = "; ".join(f"exec {n + 5}>/locks/${{name}}p{n}; flock -n {n + 5} || exit {w.TAKEN}" for n in (1, 2, 3))
"""Who has a disk takes the locks of its parts as well: a part that somebody else got is seen."""


@pytest.fixture(scope="module", autouse=True)
def two_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("disks")
    with contextlib.ExitStack() as stack:
        stack.callback(LOOPS.close)
        for index in (0, 1):
            stack.enter_context(disk(LOOPS, index, PARTS_OF_ONE, folder))
        yield


@pytest.fixture(autouse=True)
def within_reach(request: pytest.FixtureRequest) -> None:
    """Before there is a bed, whose agent would look for disks that are not there."""
    if request.node.callspec.params["beds"] == "real" and own_cluster() is None:
        pytest.skip("the node does not share this machine's kernel: it has not the disks that are made here")


async def part_with_limits(bed: Bed, name: str) -> None:
    await bed.api.create(
        PODS, w.pod(name, w.pod_spec(bed.image, bed.node, {"limits": {PARTS: "1"}})), namespace=NAMESPACE
    )


async def offered(bed: Bed, wholes: tuple[int, int], parts: tuple[int, int]) -> None:
    """Disks, and partitions, that pods with limits could get and that claims could get."""

    async def there() -> bool:
        return (await lanes(bed, RESOURCE), await lanes(bed, PARTS)) == (wholes, parts)

    await wait_for(bed, f"{wholes} disks and {parts} partitions in the legacy lane and the other", there)


async def taints(bed: Bed, device: str) -> list[str]:
    slices = (await bed.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")).items
    published = [one for item in slices for one in item["spec"].get("devices") or () if one["name"] == device]
    return [f"{taint['key']}={taint.get('value', '')}" for one in published for taint in one.get("taints", ())]


async def without_claim(bed: Bed, name: str) -> None:
    await deleted(bed, name)
    await bed.api.delete(CLAIMS, name, namespace=NAMESPACE)


async def moved(bed: Bed, *, wholes: Json, parts: Json) -> None:
    await apply_node(bed, {LANES: json.dumps({RESOURCE: wholes, PARTS: parts})})


async def held(bed: Bed, names: tuple[str, ...]) -> list[str]:
    """What those of the pods have that run."""
    return [device for name in names if await phase(bed, name) == "Running" for device in await bed.devices(name)]


async def number_running(bed: Bed, names: tuple[str, ...], number: int) -> bool:
    return [await phase(bed, name) for name in names].count("Running") == number


async def seen(bed: Bed) -> bool:
    """Whether the agent knows which pod each holder is: of one that it never saw it would not know the end."""
    _, said = await bed.drabridge("status", "-o", "json")
    return all(one["podUID"] for device in json.loads(said)["devices"] for one in device["holders"])


async def disks(bed: Bed) -> tuple[str, str]:
    """The one in the legacy lane, the one in the dra lane; they may have changed places before."""
    slices = (await bed.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")).items
    names = {one["name"] for item in slices for one in item["spec"].get("devices") or ()}
    claimed = CLAIMED if CLAIMED in names else LIMITED
    return (LIMITED if claimed == CLAIMED else CLAIMED), claimed


async def test_a_claim_gets_a_disk_or_parts_of_it(bed: Bed) -> None:
    _, ours = await disks(bed)
    await claim_pod(bed, "whole", then=LOCK_PARTS)
    await running(bed, "whole")
    assert await bed.devices("whole") == [ours]
    await pod_with(bed, "part", A_PART)
    await event(bed, "part", "FailedScheduling")
    await offered(bed, (1, 1), (PARTS_OF_ONE, 0))
    assert await taints(bed, f"{ours}p1") == [f"{DRIVER}/unavailable=overlaps"]
    await without_claim(bed, "whole")
    await running(bed, "part")

    await claim_pod(bed, "again", then=LOCK_PARTS)
    await event(bed, "again", "FailedScheduling")
    assert await taints(bed, ours) == [f"{DRIVER}/unavailable=overlaps"]
    await running(bed, "part")
    await without_claim(bed, "part")
    await running(bed, "again")


async def test_claims_have_two_parts_of_a_disk_at_once_and_no_more_than_its_counter_has(bed: Bed) -> None:
    for name in ("a", "b"):
        await pod_with(bed, name, A_PART)
    await running(bed, "a", "b")
    devices = [*await bed.devices("a"), *await bed.devices("b")]
    assert [device for name in ("a", "b") for _, device in await allocated(bed, name)] == devices
    assert len(set(devices)) == TOGETHER
    await pod_with(bed, "c", A_PART)
    await event(bed, "c", "FailedScheduling")
    assert await phase(bed, "c") == "Pending"
    await without_claim(bed, "a")
    await running(bed, "b", "c")


async def test_a_pod_with_limits_gets_a_disk_or_parts_of_it(bed: Bed) -> None:
    ours, _ = await disks(bed)
    await legacy_pod(bed, "whole", then=LOCK_PARTS)
    await running(bed, "whole")
    assert await bed.devices("whole") == [ours]
    await offered(bed, (1, 1), (0, PARTS_OF_ONE))
    await part_with_limits(bed, "part")
    await event(bed, "part", "FailedScheduling")
    await deleted(bed, "whole")
    await running(bed, "part")

    await part_with_limits(bed, "another")
    await running(bed, "part", "another")
    await offered(bed, (0, 1), (PARTS_OF_ONE, PARTS_OF_ONE))
    await legacy_pod(bed, "again", then=LOCK_PARTS)
    await event(bed, "again", "FailedScheduling")
    await deleted(bed, "part", "another")
    await running(bed, "again")


async def test_no_claim_gets_a_part_of_what_a_pod_with_limits_has(bed: Bed) -> None:
    """All is to go to claims; the disk that a pod has goes with its parts when the pod ends."""
    ours, others = await disks(bed)
    await legacy_pod(bed, "whole", then=LOCK_PARTS)
    await running(bed, "whole")
    await moved(bed, wholes={"legacy": 0, "dra": 2}, parts={"legacy": 0, "dra": 2 * PARTS_OF_ONE})
    await offered(bed, (1, 1), (0, PARTS_OF_ONE))
    for name in ("a", "b", "c"):
        await pod_with(bed, name, A_PART)
    await wait_for(bed, "two of the three to run", lambda: number_running(bed, ("a", "b", "c"), TOGETHER))
    assert all(device.startswith(others) for device in await held(bed, ("a", "b", "c")))
    await running(bed, "whole")
    await deleted(bed, "whole")
    await running(bed, "a", "b", "c")
    assert sum(device.startswith(ours) for device in await held(bed, ("a", "b", "c"))) == 1


async def test_no_pod_with_limits_gets_a_disk_of_which_a_claim_has_a_part(bed: Bed) -> None:
    _, ours = await disks(bed)
    await pod_with(bed, "part", A_PART)
    await running(bed, "part")
    await moved(bed, wholes={"legacy": 2, "dra": 0}, parts={"legacy": 2 * PARTS_OF_ONE, "dra": 0})
    for name in ("one", "two"):
        await legacy_pod(bed, name, then=LOCK_PARTS)
    await wait_for(bed, "one of the two to run", lambda: number_running(bed, ("one", "two"), 1))
    assert ours not in await held(bed, ("one", "two"))
    await running(bed, "part")
    await without_claim(bed, "part")
    await running(bed, "one", "two")


async def test_a_disk_changes_lanes_with_its_parts_whatever_has_one_of_them(bed: Bed) -> None:
    """Wholes and parts have numbers of their own, and are to be of the same disks for all that."""
    await moved(bed, wholes={"legacy": 2, "dra": 0}, parts={"legacy": 2 * PARTS_OF_ONE, "dra": 0})
    await offered(bed, (2, 0), (2 * PARTS_OF_ONE, 0))
    spec = w.pod_spec(bed.image, bed.node, {"limits": {PARTS: str(PARTS_OF_ONE)}})
    await bed.api.create(PODS, w.pod("a-disk-of-parts", spec), namespace=NAMESPACE)
    await running(bed, "a-disk-of-parts")
    await part_with_limits(bed, "stays")
    await running(bed, "stays")
    assert all(device.startswith(LIMITED) for device in await bed.devices("a-disk-of-parts"))
    assert (await bed.devices("stays"))[0].startswith(CLAIMED), "where claims would begin"
    await wait_for(bed, "the agent to have seen the pods", lambda: seen(bed))
    await deleted(bed, "a-disk-of-parts")
    await offered(bed, (1, 0), (2 * PARTS_OF_ONE, 0))
    await moved(bed, wholes={"legacy": 1, "dra": 1}, parts={"legacy": PARTS_OF_ONE, "dra": PARTS_OF_ONE})
    await offered(bed, (0, 1), (PARTS_OF_ONE, PARTS_OF_ONE))
    await running(bed, "stays")
    await deleted(bed, "stays")
    await offered(bed, (1, 1), (PARTS_OF_ONE, PARTS_OF_ONE))


async def test_parts_are_where_their_whole_is_whatever_their_own_numbers_say(bed: Bed) -> None:
    await moved(bed, wholes={"legacy": 0, "dra": 2}, parts={"legacy": 2 * PARTS_OF_ONE, "dra": 0})
    await offered(bed, (0, 2), (0, 2 * PARTS_OF_ONE))
    await moved(bed, wholes={"legacy": 1, "dra": 1}, parts={"legacy": 2 * PARTS_OF_ONE, "dra": 0})
    await offered(bed, (1, 1), (PARTS_OF_ONE, PARTS_OF_ONE))
    _, said = await bed.drabridge("status", "-o", "json")
    assert "parts of one device stay together, and with the whole device" in said
