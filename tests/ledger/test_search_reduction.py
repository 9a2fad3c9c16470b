"""The packed search sees what a plain one sees: the same states up to names, the same violations, the same leaks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from drabridge.ledger.entries import Lane, Owner
from drabridge.ledger.table import DeviceSignal
from drabridge.ledger.transitions.no_change import ignore
from tests.ledger.search import plain
from tests.ledger.search.explore import Explorer, Visited
from tests.ledger.search.mutants import SMALL, STARVING, other_rows
from tests.ledger.search.packing import Codes
from tests.ledger.search.rules import HIDDEN
from tests.ledger.search.search import search
from tests.ledger.search.states import POLICY, Broken, Config, State
from tests.ledger.search.world import World

ALL = frozenset({"crash", "kubelet", "force", "reboot", "lost", "unplug"})
PROMPT = Config(late_evidence=False)
SHARED = replace(PROMPT, pods=1, claims=1, faults=0, moves=0, leases=True, lanes=(Lane.SHARED, Lane.SHARED))
WORLDS = {
    "2 devices, 2 pods, a claim, moves": replace(PROMPT, claims=1, faults=0),
    "2 devices, 2 claims, a crash": replace(
        PROMPT, pods=0, moves=0, lanes=(Lane.DRA, Lane.DRA), kinds=frozenset({"crash"}), whole_claims=False
    ),
    "2 devices, 2 claims, moves": replace(PROMPT, pods=0, faults=0, whole_claims=False),
    "a device, a pod, a claim, leases, unplugged": replace(
        SHARED, devices=1, faults=1, kinds=frozenset({"unplug", "crash"})
    ),
    "2 devices, a pod, a claim, leases, nobody is late but kubelet": replace(SHARED, prompt=True),
    "2 devices, 2 pods, a fault": replace(PROMPT, claims=0, moves=0, kinds=ALL),
    "2 devices, a pod, late evidence, a restart": Config(pods=1, claims=0, faults=1, kinds=frozenset({"kubelet"})),
    "a device, a pod, 2 claims, a crash, moves": replace(PROMPT, devices=1, pods=1, kinds=frozenset({"crash"})),
    "a device, 2 claims, late evidence": Config(devices=1, pods=0, faults=0, moves=0, lanes=(Lane.DRA, Lane.DRA)),
    "a device, a pod, a claim, files of claims lost with the record, moves": replace(
        SMALL, files_lost=True, claims_shown=True
    ),
    "a device, a pod, a claim, processes that outlive their pod, moves": replace(
        SMALL, grace=True, policy=replace(POLICY, grace_seconds=2), kinds=frozenset({"force", "forget"})
    ),
    "a device, late evidence, a fault, moves": Config(devices=1, pods=1, claims=1, faults=1, kinds=ALL),
}


def explored(explorer: Explorer) -> Codes:
    visited = Visited()
    for _ in explorer.levels(visited):
        pass
    return visited.all()


@pytest.mark.deep
@pytest.mark.parametrize("name", WORLDS)
def test_the_packed_search_sees_every_state_and_no_other(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    explorer = Explorer(World(WORLDS[name]))
    states = explored(explorer)
    graph = plain.reachable(explorer.world)  # checks every invariant against the whole of every state
    assert {explorer.canonical(state) for state in graph} == set(states.tolist())
    assert not plain.stuck(explorer.world, graph)
    assert not len(explorer.stuck(states))
    assert not plain.unserved(explorer.world, graph)
    assert not len(explorer.unserved(states))
    record_property("search", f"reduction, {name}: {len(graph)} states are {len(states)} up to names")


@pytest.mark.deep
@pytest.mark.parametrize(
    ("signal", "config"),
    [
        (DeviceSignal.UNPREPARE, replace(PROMPT, devices=1, pods=0, faults=0, moves=0, lanes=(Lane.DRA, Lane.DRA))),
        (DeviceSignal.ABSENT, replace(PROMPT, pods=2, claims=0, faults=0, moves=0)),
        (DeviceSignal.NO_CLAIM_LISTED, replace(PROMPT, pods=1, claims=1, faults=0, moves=1)),
    ],
)
def test_both_searches_find_the_same_leaks(signal: DeviceSignal, config: Config) -> None:
    explorer = Explorer(World(replace(config, step=other_rows(signal, set(Owner), ignore))))
    stuck = set(explorer.stuck(explored(explorer)).tolist())
    graph = plain.reachable(explorer.world)
    assert stuck
    assert {explorer.canonical(state) for state in plain.stuck(explorer.world, graph)} == stuck


@pytest.mark.deep
def test_both_searches_find_the_same_claims_that_wait_for_ever() -> None:
    explorer = Explorer(World(STARVING[0].config))
    unserved = set(explorer.unserved(explored(explorer)).tolist())
    graph = plain.reachable(explorer.world)
    assert unserved
    assert {explorer.canonical(state) for state in plain.unserved(explorer.world, graph)} == unserved


def test_both_searches_find_the_same_violation() -> None:
    config = replace(SMALL, restart_as_free=True)
    with pytest.raises(Broken) as seen:
        plain.reachable(World(config))
    assert search(config).violation == str(seen.value)


def test_a_rule_that_looks_at_what_it_did_not_declare_is_an_error() -> None:
    world = World(PROMPT)
    blind = State(*(HIDDEN for _ in State._fields))
    touched = 0
    for rule in world.rules:
        with pytest.raises(TypeError, match="did not declare"):
            list(rule.stages[0].act(blind))
        touched += 1
    assert touched > 20
