"""Ids and names of devices: twins, collisions, and the name that a held device keeps."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.inventory.devices import device_id_of
from drabridge.inventory.identity import ID_MAX, NAME_MAX, Candidate, assign, id_of, name_of

LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
texts = st.one_of(
    st.text(max_size=200),
    st.text("abcABC019:._-/ é\n\x00", max_size=80),
    st.from_regex(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", fullmatch=True),
)


def names(*candidates: Candidate, **more: object) -> dict[str, str]:
    identities, _ = assign(candidates, **more)  # type: ignore[arg-type]
    return {syspath: name_of(device_id) for (_, syspath), device_id in identities.items()}


def stick(syspath: str, *values: str, resource: str = "x/stick") -> Candidate:
    return Candidate(resource, syspath, values)


@pytest.mark.parametrize(
    ("value", "device_id", "name"),
    [
        ("loop7", "loop7", "loop7"),
        (
            "GPU-0a1b2c3d-1111-2222-3333-444455556666",
            "GPU-0a1b2c3d-1111-2222-3333-444455556666",
            "gpu-0a1b2c3d-1111-2222-3333-444455556666",
        ),
        ("0000:3b:00.0", "0000:3b:00.0", "pci-0000-3b-00-0"),
        ("00000001", "00000001", "d-00000001-ae5ce162"),
        ("a b", "a_b_c8687a08", "a-b-c8687a08-1028e6c7"),
        (
            "x" * 70,
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx_c71bd109",
            "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-a784e45a",
        ),
        ("\xe9", "device_4a99557e", "device-4a99557e-534910c7"),
        ("a::3", "a_3_6feaba74", "a-3-6feaba74-d44cbf2d"),
    ],
)
def test_known_values(value: str, device_id: str, name: str) -> None:
    """Names are kept on disk and in clusters: they may never change between releases."""
    assert (id_of(value), name_of(device_id)) == (device_id, name)


@given(texts)
def test_every_value_gives_a_valid_id_and_name(value: str) -> None:
    device_id = id_of(value)
    assert bool(device_id) == bool(value)
    if not value:
        return
    assert len(device_id) <= ID_MAX
    assert device_id.isascii()
    assert not re.search(r"[\s,\x00/]", device_id)
    assert device_id_of(f"{device_id}::3") == device_id
    assert device_id_of(device_id) == device_id  # never mistaken for a replica of something else
    name = name_of(device_id)
    assert len(name) <= NAME_MAX
    assert LABEL.fullmatch(name)
    assert id_of(device_id) == device_id, "an id is stable when it is read back"


@given(texts, texts)
def test_different_values_stay_different(one: str, other: str) -> None:
    """Ids never merge; names merge only where nothing but case differs, and that is a visible collision."""
    if one != other:
        assert id_of(one) != id_of(other)
    if id_of(one).lower() != id_of(other).lower() and one and other:
        assert name_of(id_of(one)) != name_of(id_of(other))


few = st.sampled_from(["", "s1", "s2", "s3", "S1", "00000001"])
worlds = st.lists(
    st.builds(
        Candidate,
        resource=st.sampled_from(["x/a", "x/b"]),
        syspath=st.integers(0, 5).map(lambda n: f"/sys/devices/{n}"),
        values=st.lists(few, min_size=2, max_size=2).map(tuple),
    ),
    max_size=6,
    unique_by=lambda candidate: candidate.syspath,
)


@given(worlds, st.randoms(use_true_random=False), st.sets(few))
def test_order_does_not_matter_and_nothing_is_shared(
    world: list[Candidate], rng: random.Random, held: set[str]
) -> None:
    shuffled = list(world)
    rng.shuffle(shuffled)

    def is_held(name: str) -> bool:
        return name in {name_of(value) for value in held if value}

    identities, collisions = assign(world, held=is_held)
    assert (identities, collisions) == assign(shuffled, held=is_held)
    assert len(set(map(name_of, identities.values()))) == len(identities)
    named = {syspath for _, syspath in identities}
    accused = {syspath for collision in collisions for syspath in collision.syspaths}
    assert named | accused == {candidate.syspath for candidate in world}, "every device is named or accused"
    assert all(set(collision.syspaths) - named for collision in collisions), "nobody is accused without being withheld"


@given(worlds, worlds, st.sets(few))
def test_who_has_a_name_keeps_it_whatever_is_plugged_in(
    first: list[Candidate], later: list[Candidate], held: set[str]
) -> None:
    before, _ = assign(first)
    known = {candidate.syspath for candidate in first}
    world = first + [candidate for candidate in later if candidate.syspath not in known]
    after, collisions = assign(world, before, lambda name: name in held)
    for key, device_id in before.items():
        assert after[key] == device_id
    assert len(set(map(name_of, after.values()))) == len(after)
    named = {syspath for _, syspath in after}
    assert named | {path for collision in collisions for path in collision.syspaths} == {c.syspath for c in world}


def test_sticks_with_one_serial_both_fall_through_to_their_ports() -> None:
    assert names(stick("/p1", "00000001", "port-1"), stick("/p2", "00000001", "port-2"), stick("/p3", "abc", "p3")) == {
        "/p1": "port-1",
        "/p2": "port-2",
        "/p3": "abc",
    }


def test_nothing_unique_left_means_neither_and_both_are_named() -> None:
    identities, collisions = assign([stick("/p1", "same"), stick("/p2", "same"), stick("/p3", "other")])
    assert list(identities) == [("x/stick", "/p3")]
    (collision,) = collisions
    assert (collision.identity, collision.syspaths) == ("same", ("/p1", "/p2"))
    assert "/p1, /p2 all resolve to the identity 'same'. Add an identity that differs" in str(collision)


PLACE = "{pci}-usb-{attr:devpath}"


@pytest.mark.parametrize(
    ("values", "places", "said"),
    [
        ("same same", (PLACE, PLACE), f'differs: add "{PLACE}" at the end of its resource\'s id'),
        ("same same", (PLACE, "{pci}"), "differs: `drabridge suggest` writes one"),
        ("same same", ("", ""), "differs: `drabridge suggest` writes one"),
        (" ", (PLACE, PLACE), f'gives it a value: add "{PLACE}" at the end'),
    ],
)
def test_a_collision_says_what_to_add(values: str, places: tuple[str, str], said: str) -> None:
    pairs = zip(values.split(" "), places, strict=True)
    _, (collision,) = assign(
        [Candidate("x/stick", f"/p{index}", (value,), "", place) for index, (value, place) in enumerate(pairs)]
    )
    assert said in str(collision)


def test_two_resources_may_not_use_one_name_either() -> None:
    identities, (collision,) = assign([stick("/p1", "same", resource="x/a"), stick("/p2", "same", resource="x/b")])
    assert not identities
    assert collision.resource == "x/a, x/b"
    assert "match rules" in collision.hint


def test_ids_that_differ_in_case_only_collide_visibly() -> None:
    identities, (collision,) = assign([stick("/p1", "abc"), stick("/p2", "ABC")])
    assert not identities
    assert collision.syspaths == ("/p1", "/p2")


def test_a_device_without_any_value_is_accused_alone() -> None:
    identities, (collision,) = assign([stick("/p1", "", "")])
    assert not identities
    assert str(collision).startswith("x/stick: /p1 has no identity")


def test_a_twin_that_comes_later_falls_through_and_the_first_keeps_its_serial() -> None:
    first, twin = stick("/p1", "s", "port-1"), stick("/p2", "s", "port-2")
    memory = {first.key: "s"}
    assert names(first, twin, known_ids=memory) == {"/p1": "s", "/p2": "port-2"}


def test_a_twin_with_nothing_else_collides_alone() -> None:
    first, twin = stick("/p1", "s"), stick("/p2", "s")
    identities, (collision,) = assign([first, twin], {first.key: "s"})
    assert list(identities) == [first.key]
    assert collision.syspaths == ("/p1", "/p2")


def test_after_a_restart_a_held_name_that_twins_share_is_withheld() -> None:
    """Nothing says which of them the holder has: offering either as free could give one device away twice."""
    twins = [stick("/p1", "s", "port-1"), stick("/p2", "s", "port-2")]
    identities, (collision,) = assign(twins, held=lambda name: name == "s")
    assert not identities
    assert "held" in collision.hint
    assert names(*twins, held=lambda name: False) == {"/p1": "port-1", "/p2": "port-2"}


def test_a_held_device_returns_to_its_name_in_another_port() -> None:
    """The old port is remembered, the device is the only one with the serial: it is the same device."""
    moved = stick("/p2", "s", "port-2")
    assert names(moved, known_ids={("x/stick", "/p1"): "s"}, held=lambda name: name == "s") == {"/p2": "s"}


def test_a_held_device_returns_to_its_port_next_to_its_twin() -> None:
    memory = {("x/stick", "/p1"): "s", ("x/stick", "/p2"): "port-2"}
    back = [stick("/p1", "s", "port-1"), stick("/p2", "s", "port-2")]
    assert names(*back, known_ids=memory, held=lambda name: name == "s") == {"/p1": "s", "/p2": "port-2"}


def test_an_identity_that_is_no_candidate_any_more_is_given_up() -> None:
    """Another stick in the same port is another device."""
    assert names(stick("/p1", "new"), known_ids={("x/stick", "/p1"): "old"}) == {"/p1": "new"}


def test_what_may_be_a_held_device_that_is_away_is_withheld_until_the_holder_lets_go() -> None:
    """It was unplugged, and may be what is plugged in elsewhere; a twin that was there before is not it."""
    away, twin = ("x/stick", "/p1"), stick("/p2", "s", "port-2")
    newcomers = [stick("/p3", "s", "port-3"), stick("/p4", "s", "port-4")]
    for memory, others in (({away: "s"}, newcomers), ({away: "s", twin.key: "port-2"}, [twin, newcomers[0]])):
        identities, (collision,) = assign(others, memory, lambda name: name == "s")
        assert list(identities) == [key for key in memory if key != away]
        assert set(collision.syspaths) == {other.syspath for other in others}
        assert "held" in collision.hint
        free = names(*others, known_ids=memory)
        assert free == {other.syspath: other.values[1] for other in others}
        back = names(stick("/p1", "s", "port-1"), *others, known_ids=memory, held=lambda name: name == "s")
        assert back == {"/p1": "s"} | free


def test_a_newcomer_may_not_take_the_value_that_its_twins_fell_through() -> None:
    old, new = stick("/p1", "s", "port-1"), stick("/p2", "s", "")
    identities, (collision,) = assign([old, new], {old.key: "port-1"})
    assert list(identities) == [old.key]
    assert (collision.identity, collision.syspaths) == ("s", ("/p1", "/p2")), "both are named"
