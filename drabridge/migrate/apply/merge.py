"""Bring to an object in the cluster what changed between two texts of it, and nothing else. Pure."""

from __future__ import annotations

from typing import Any


def merged(live: Any, before: Any, after: Any) -> Any:
    """Return ``live`` with what ``after`` has otherwise than ``before``: three ways, as ``kubectl apply`` does it.

    Items of lists are the same where their ``name`` is.
    """
    if before == after:
        return live
    if isinstance(before, dict) and isinstance(after, dict) and isinstance(live, dict):
        found = {key: value for key, value in live.items() if key not in before or key in after}
        for key, value in after.items():
            if key not in before or key not in live:
                found[key] = merged(live[key], None, value) if key in live and key not in before else value
            else:
                found[key] = merged(live[key], before[key], value)
        return found
    if _named(before) and _named(after) and _named(live):
        return _merged_lists(live, before, after)
    return after


def _merged_lists(live: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    olds, news = ({one["name"]: one for one in items} for items in (before, after))
    kept = [one for one in live if one["name"] not in olds or one["name"] in news]
    there = {one["name"] for one in kept}
    return [
        *(merged(one, olds.get(one["name"]), news[one["name"]]) if one["name"] in news else one for one in kept),
        *(one for one in after if one["name"] not in there),
    ]


def _named(items: object) -> bool:
    return isinstance(items, list) and all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in items)
