"""The preferred allocation: always valid, the cheapest where that is promised, quick on thousands of ids."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import preference
from deviceplugin.preference import ReplicaPolicy, Unit, cost, prefer

GPUS = [
    Unit(f"gpu{i}", numa=(i // 4,), root=f"pci000{i // 2}", group=f"island{i // 4}", rank=i) for i in range(8)
]  # two sockets, two PCIe roots each, two GPUs per root


def replicas(devices: int, each: int) -> list[Unit]:
    return [
        Unit(f"d{d}::{r}", numa=(d % 2,), root=f"root{d % 2}", rank=d * each + r, device=f"d{d}")
        for d in range(devices)
        for r in range(each)
    ]


def ids(units: list[Unit]) -> list[str]:
    return [unit.id for unit in units]


@pytest.mark.parametrize(
    ("available", "must", "size", "expected"),
    [
        pytest.param("01234567", "", 1, "0", id="rank decides between equals"),
        pytest.param("01234567", "", 2, "01", id="one root"),
        pytest.param("1234567", "", 2, "23", id="one root rather than the lowest ranks"),
        pytest.param("01234567", "6", 2, "67", id="next to what must be included"),
        pytest.param("0124567", "", 4, "4567", id="one node rather than two"),
        pytest.param("01267", "", 2, "01", id="of two broken islands the lower rank"),
        pytest.param("01234567", "", 8, "01234567", id="all"),
        pytest.param("0234567", "", 1, "0", id="the broken island first"),
        pytest.param("0123467", "", 1, "4", id="the broken island, not the whole one"),
        pytest.param("0257", "0", 3, "025", id="must, its node, then any"),
        pytest.param("01", "", 0, "", id="none asked"),
        pytest.param("01", "", 3, "", id="more than there are"),
        pytest.param("01", "2", 1, "", id="must outside available"),
        pytest.param("01", "01", 1, "", id="more must than size"),
        pytest.param("01", "", -1, "", id="negative size"),
    ],
)
def test_preferred_gpus_are_near_each_other(available: str, must: str, size: int, expected: str) -> None:
    chosen = prefer(GPUS, [f"gpu{i}" for i in available], [f"gpu{i}" for i in must], size)
    assert chosen == [f"gpu{i}" for i in expected]


def test_a_device_near_two_nodes_fits_either() -> None:
    units = [Unit("a", numa=(0,)), Unit("b", numa=(1,)), Unit("both", numa=(0, 1), rank=9)]
    assert prefer(units, ids(units), ["b"], 2) == ["b", "both"]


def test_unknown_ids_are_taken_last() -> None:
    assert prefer([Unit("known", rank=5)], ["a-stranger", "known"], [], 1) == ["known"]
    assert prefer([Unit("known", rank=5)], ["a-stranger", "known"], ["a-stranger"], 1) == ["a-stranger"]


def test_distributed_replicas_go_to_the_least_loaded_device() -> None:
    units = replicas(2, 3)
    free = [i for i in ids(units) if i not in {"d0::0", "d0::1", "d1::0"}]
    assert prefer(units, free, [], 1, ReplicaPolicy.DISTRIBUTED) == ["d1::1"]
    assert prefer(units, ids(units), [], 2, ReplicaPolicy.DISTRIBUTED) == ["d0::0", "d1::0"]


def test_packed_replicas_fill_the_device_in_use() -> None:
    units = replicas(3, 3)
    free = [i for i in ids(units) if i != "d1::0"]
    assert prefer(units, free, [], 1, ReplicaPolicy.PACKED) == ["d1::1"]
    assert prefer(units, free, [], 2, ReplicaPolicy.PACKED) == ["d1::1", "d1::2"]


def test_no_input_order_changes_the_answer() -> None:
    units, available = list(GPUS), ids(GPUS)[1:]
    expected = prefer(units, available, ["gpu5"], 3)
    for seed in range(10):
        rng = random.Random(seed)
        rng.shuffle(units)
        rng.shuffle(available)
        assert prefer(units, available, ["gpu5"], 3) == expected


PLACES = st.tuples(
    st.sampled_from([(), (0,), (1,), (2,), (0, 1), (1, 2)]),
    st.sampled_from(["", "r0", "r1", "r2"]),
    st.sampled_from(["", "g0", "g1", "g2"]),
)


@st.composite
def requests(draw: st.DrawFn, most: int = 8) -> tuple[list[Unit], list[str], list[str], int, ReplicaPolicy]:
    count = draw(st.integers(1, most))
    shared = draw(st.booleans())
    units = []
    places: dict[str, tuple[tuple[int, ...], str, str]] = {}
    for index in range(count):
        device = f"d{draw(st.integers(0, 2))}" if shared else ""
        if device not in places:
            places[device] = draw(PLACES)
        numa, root, group = places[device] if device else draw(PLACES)  # what shares a device shares its place
        units.append(
            Unit(
                id=f"u{index}",
                numa=numa,
                root=root,
                group=group,
                rank=draw(st.integers(0, 3)),
                device=device,
            )
        )
    available = draw(st.lists(st.sampled_from(ids(units)), unique=True, min_size=1))
    must = draw(st.lists(st.sampled_from(available), unique=True, max_size=2))
    size = draw(st.integers(len(must), len(available)))
    return units, available, must, size, draw(st.sampled_from(ReplicaPolicy))


def cheapest(units: list[Unit], available: list[str], must: list[str], size: int, policy: ReplicaPolicy) -> object:
    return min(
        cost(units, available, chosen, policy) for chosen in combinations(available, size) if set(must) <= set(chosen)
    )


def check_valid(chosen: list[str], available: list[str], must: list[str], size: int) -> None:
    assert len(chosen) == len(set(chosen)) == size
    assert set(must) <= set(chosen) <= set(available)


@given(requests())
def test_small_worlds_get_the_optimum(request: tuple[list[Unit], list[str], list[str], int, ReplicaPolicy]) -> None:
    units, available, must, size, policy = request
    chosen = prefer(units, available, must, size, policy)
    check_valid(chosen, available, must, size)
    if size:
        assert cost(units, available, chosen, policy) == cheapest(units, available, must, size, policy)


@given(requests())
def test_the_shortcut_keeps_what_it_promises(
    request: tuple[list[Unit], list[str], list[str], int, ReplicaPolicy],
) -> None:
    """The way taken when there are too many answers to compare, held against brute force on small worlds."""
    units, available, must, size, policy = request
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preference, "EXACT_WORK", -1)
        chosen = prefer(units, available, must, size, policy)
    check_valid(chosen, available, must, size)
    if not size:
        return
    ours = cost(units, available, chosen, policy)
    best = cheapest(units, available, must, size, policy)
    assert isinstance(ours, tuple)
    assert isinstance(best, tuple)
    replicated = len({u.device or u.id for u in units}) < len(units)
    if replicated and policy is ReplicaPolicy.DISTRIBUTED:
        assert ours[0] == best[0]  # evenness
    else:
        assert ours[:3] == best[:3]  # nodes, roots


@pytest.mark.parametrize("policy", ReplicaPolicy)
@pytest.mark.parametrize("size", [1, 2, 8, 100, 2048, 4096])
@pytest.mark.parametrize(
    "units",
    [
        pytest.param([Unit(f"kvm::{i}", device="kvm", rank=i) for i in range(4096)], id="one shared device"),
        pytest.param(replicas(8, 512), id="eight shared devices"),
        pytest.param(
            [Unit(f"vf{i}", numa=(i % 8,), root=f"r{i % 64}", group=f"g{i % 512}", rank=i) for i in range(4096)],
            id="4096 devices everywhere",
        ),
        pytest.param(
            [Unit(f"x{i}", numa=(i % 64, (i * 7) % 64), root=f"r{i}", group=f"g{i}", rank=i) for i in range(4096)],
            id="64 nodes, all different",
        ),
        pytest.param(
            [Unit(f"x{i}", numa=(i % 8,), root=f"r{i % 9}", device=f"d{i // 2}", rank=i) for i in range(4096)],
            id="2048 devices shared by two",
        ),
    ],
)
def test_4096_ids_get_a_valid_answer(units: list[Unit], size: int, policy: ReplicaPolicy) -> None:
    available = ids(units)
    random.Random(1).shuffle(available)
    chosen = prefer(units, available, available[:1], size, policy)
    check_valid(chosen, available, available[:1], size)
