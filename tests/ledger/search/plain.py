"""The same search without any of its reductions: one state after the other, every name kept. For small worlds.

What the packed search (module ``explore``) does in tables and in one state of many, this does step by step,
with every invariant checked against the whole of every state. The two must agree.
"""

from __future__ import annotations

from collections import deque

from tests.ledger.search.forget import unsequenced
from tests.ledger.search.states import State
from tests.ledger.search.world import World


def reachable(world: World) -> dict[State, tuple[State, ...]]:
    """Every reachable state, and where it can be counted on to go. :class:`Broken` if an invariant does not hold."""
    first = _settled(world, world.initial())
    known: dict[State, tuple[State, ...]] = {first: ()}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        world.checks.check(state)
        ways = []
        for _, raw, helps in world.successors(state):
            after = _settled(world, raw)
            if helps:
                ways.append(after)
            if after not in known:
                known[after] = ()
                queue.append(after)
        known[state] = tuple(ways)
    return known


def stuck(world: World, graph: dict[State, tuple[State, ...]]) -> set[State]:
    """Those from which no drained state can be reached by rules that help."""
    return _cannot_reach(graph, {state for state in graph if world.ledgers.drained(state.ledger)})


def unserved(world: World, graph: dict[State, tuple[State, ...]]) -> set[State]:
    """Those in which a claim waits for a condition, and may wait for ever."""
    rules = [rule for rule in world.rules if rule.serves]
    served = {
        state: tuple(_settled(world, raw) for rule in rules for _, raw in rule.successors(state)) for state in graph
    }
    return _cannot_reach(served, {state for state in graph if not any(claim.waits for claim in state.claims)})


def _cannot_reach(graph: dict[State, tuple[State, ...]], good: set[State]) -> set[State]:
    back: dict[State, list[State]] = {}
    for state, ways in graph.items():
        for after in ways:
            back.setdefault(after, []).append(state)
    queue = deque(good)
    while queue:
        for before in back.get(queue.popleft(), ()):
            if before not in good:
                good.add(before)
                queue.append(before)
    return graph.keys() - good


def _settled(world: World, state: State) -> State:
    if state.gathered is not None:
        return state
    return state._replace(ledger=world.ledgers.memo("settled", state.ledger, unsequenced))
