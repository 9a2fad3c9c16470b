"""Parse PromQL for tests: what an expression selects and names; evaluate the few shapes of a join."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

promql_parser = pytest.importorskip("promql_parser", reason="the PromQL parser is not installed")

GRAFANA = {"$__rate_interval": "5m", "$instance": "node-a", "$namespace": "ml"}

Vector = dict[frozenset[tuple[str, str]], float]
"""Labels (``__name__`` included) to value."""


def parse(expression: str) -> Any:
    """The expression's tree; Grafana's variables stand for a plausible value. Raises ValueError for bad PromQL."""
    for name, value in GRAFANA.items():
        expression = expression.replace(name, value)
    if unknown := re.findall(r"\$[a-z_]\w*", expression):
        raise ValueError(f"variables that nothing defines: {unknown}")
    return promql_parser.parse(expression)


def nodes(tree: Any) -> Iterator[Any]:
    """The node and everything below it."""
    yield tree
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        if (child := getattr(tree, name, None)) is not None:
            yield from nodes(child)
    for child in getattr(tree, "args", ()) or ():
        yield from nodes(child)


def selectors(tree: Any) -> Iterator[tuple[str, frozenset[str]]]:
    """``(metric, labels matched)`` of every vector selector."""
    for node in nodes(tree):
        if isinstance(node, promql_parser.VectorSelector):
            yield node.name, frozenset(matcher.name for matcher in node.matchers.matchers)


def named_labels(tree: Any) -> frozenset[str]:
    """Every label in a ``by``, ``on`` or ``group_left``."""
    found: set[str] = set()
    for node in nodes(tree):
        modifier = getattr(node, "modifier", None)
        found.update(getattr(modifier, "labels", ()) or ())
        found.update(getattr(modifier, "group_labels", ()) or ())
        found.update(getattr(getattr(modifier, "matching", None), "labels", ()) or ())
    return frozenset(found)


def evaluate(tree: Any, samples: Vector) -> Vector:
    """An instant query over ``samples`` for selectors, ``label_replace``, ``max by``, ``or`` and products.

    Fails like Prometheus when the "one" side of a join has more than one series. Anything else is an error here.
    """
    match tree:
        case promql_parser.VectorSelector():
            return {labels: value for labels, value in samples.items() if _selected(tree, dict(labels))}
        case promql_parser.ParenExpr():
            return evaluate(tree.expr, samples)
        case promql_parser.Call() if tree.func.name == "label_replace":
            source = evaluate(tree.args[0], samples)
            return {_replaced(dict(labels), *(a.val for a in tree.args[1:])): value for labels, value in source.items()}
        case promql_parser.AggregateExpr() if str(tree).startswith("max by"):
            groups: Vector = {}
            for labels, value in evaluate(tree.expr, samples).items():
                key = _only(labels, tree.modifier.labels)
                groups[key] = max(value, groups.get(key, value))
            return groups
        case promql_parser.BinaryExpr() if isinstance(tree.rhs, promql_parser.NumberLiteral):
            return {labels: value * tree.rhs.val for labels, value in evaluate(tree.lhs, samples).items()}
        case promql_parser.BinaryExpr() if str(tree.op) == "or":
            left = evaluate(tree.lhs, samples)
            bare = {_without_name(labels) for labels in left}
            right = evaluate(tree.rhs, samples)
            return left | {labels: value for labels, value in right.items() if _without_name(labels) not in bare}
        case promql_parser.BinaryExpr():
            return _join(tree.modifier, evaluate(tree.lhs, samples), evaluate(tree.rhs, samples))
    raise AssertionError(f"not evaluated here: {tree}")


def _join(modifier: Any, many: Vector, one: Vector) -> Vector:
    """``many * on (…) group_left (…) one``."""
    by_key: dict[frozenset[tuple[str, str]], tuple[dict[str, str], float]] = {}
    for labels, value in one.items():
        key = _only(labels, modifier.matching.labels)
        assert key not in by_key, f"found duplicate series for the match group {dict(key)} on the right hand side"
        by_key[key] = (dict(labels), value)
    result: Vector = {}
    for labels, value in many.items():
        if (found := by_key.get(_only(labels, modifier.matching.labels))) is not None:
            brought = {name: found[0].get(name, "") for name in modifier.group_labels}
            merged = {name: text for name, text in dict(labels).items() if name != "__name__"} | brought
            result[frozenset((name, text) for name, text in merged.items() if text)] = value * found[1]
    return result


def _selected(selector: Any, labels: dict[str, str]) -> bool:
    if labels.get("__name__") != selector.name:
        return False
    for matcher in selector.matchers.matchers:
        value, wanted = labels.get(matcher.name, ""), matcher.value
        regex = re.fullmatch(wanted, value) is not None
        operator = str(matcher.op).rpartition(".")[2]
        if not {"Equal": value == wanted, "NotEqual": value != wanted, "Re": regex, "NotRe": not regex}[operator]:
            return False
    return True


def _replaced(
    labels: dict[str, str], target: str, replacement: str, source: str, regex: str
) -> frozenset[tuple[str, str]]:
    if found := re.fullmatch(regex, labels.get(source, "")):
        labels[target] = found.expand(replacement.replace("$", "\\"))
    return frozenset(labels.items())


def _without_name(labels: frozenset[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    return frozenset(pair for pair in labels if pair[0] != "__name__")


def _only(labels: frozenset[tuple[str, str]], names: list[str]) -> frozenset[tuple[str, str]]:
    return frozenset(pair for pair in labels if pair[0] in names)
