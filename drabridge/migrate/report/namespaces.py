"""Read from Namespaces which of them are switched to claims, and say what that means for their pods. Pure.

``drabridge migrate switch`` leaves the marks; only an object's metadata is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from msgspec import Struct

from drabridge.migrate.report.codes import LEFT_ALONE
from drabridge.migrate.report.facts import Json
from drabridge.migrate.report.model import NamespaceSwitch, number
from drabridge.migrate.report.tally import WorkloadTally
from drabridge.migrate.switch import marks

_WHAT_STAYS = "of DaemonSets, static, with nodeName, or with more than 32 devices"

_Labels = TypedDict("_Labels", {"switch.drabridge/to": str | None}, total=False)
_Annotations = TypedDict(
    "_Annotations", {"switch.drabridge/percent": str | None, "switch.drabridge/selector": str | None}, total=False
)


class _Meta(TypedDict, total=False):
    name: str | None
    labels: _Labels | None
    annotations: _Annotations | None


class NamespaceFields(TypedDict, total=False):
    """The fields that are read; all else is skipped."""

    metadata: _Meta | None


class NamespaceFacts(Struct, frozen=True):
    """A Namespace. ``switch`` is None where its new pods keep their limits."""

    name: str
    switch: NamespaceSwitch | None


def namespace_facts(obj: Json) -> NamespaceFacts:
    """Return a Namespace's facts."""
    meta = obj.get("metadata") or {}
    name = meta.get("name") or ""
    if (meta.get("labels") or {}).get(marks.LABEL) != marks.CLAIMS:
        return NamespaceFacts(name, None)
    notes = meta.get("annotations") or {}
    return NamespaceFacts(name, NamespaceSwitch(marks.percent_of(notes), notes.get(marks.SELECTOR) or ""))


def switched_words(switch: NamespaceSwitch, left: Sequence[WorkloadTally]) -> str:
    """Say what new pods get, and how many old ones are to be rolled out. ``left``: workloads that have limits."""
    stay = sum(one.limit_pods for one in left if _stays(one))
    old = sum(one.limit_pods for one in left) - stay
    words = [f"{_new_pods(switch)} get claims"]
    if old:
        still = f"{number(old, 'pod')} still {'has' if old == 1 else 'have'} limits"
        part = switch.percent < marks.ALL_OWNERS or switch.selector
        out = "roll out those that it is for" if part else f"roll {'it' if old == 1 else 'them'} out"
        words.append(f"{still}: {out}")
    if stay:
        words.append(f"the switch leaves {number(stay, 'pod')} alone: {_WHAT_STAYS}")
    if not old and not stay:
        words.append("no pod has limits any more")
    return "; ".join(words)


def _stays(one: WorkloadTally) -> bool:
    """Return whether the switch's policy leaves the pods of a workload alone."""
    return one.chain.kinds[1:2] == ("DaemonSet",) or any(code in LEFT_ALONE for code, _ in one.signs)


def _new_pods(switch: NamespaceSwitch) -> str:
    words = f"new pods with {switch.selector}" if switch.selector else "new pods"
    return words if switch.percent >= marks.ALL_OWNERS else f"{words} of {switch.percent} % of the owners"
