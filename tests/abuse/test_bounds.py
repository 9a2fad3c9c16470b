"""What the agent remembers of others' objects has a bound, whatever their number: docs/security.md lists the stores."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from drabridge.dra import claim_names
from drabridge.dra.claim_names import NominatedPods, nominated_pod
from drabridge.kube import events
from drabridge.kube.events import Announcer
from drabridge.ledger.effects import Notify, Subject
from drabridge.system import untrusted
from drabridge.system.untrusted import Unreadable


def test_unreadable_objects_are_remembered_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(untrusted, "MOST_NAMED", 10)
    one = Unreadable("pods of this test")
    for number in range(50):
        one.tell(f"team/{number}", ValueError("x" * 10_000))
    assert len(one._said) == 10
    assert sum(map(len, one._said.values())) < 10 * 400


def test_nominated_pods_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_names, "MOST_PODS", 10)
    pods = NominatedPods(None, "node-a", lambda: None)  # type: ignore[arg-type]
    for how in "listed", "changed":
        objects = tuple(nominated_pod(_pod(number, 1)) for number in range(50))
        if how == "listed":
            pods.listed(objects)
        else:
            pods.forget()
            for one in objects:
                pods.changed("ADDED", one)
        assert len(pods.claims) == 10
    for one in objects:
        pods.changed("DELETED", one)
    assert pods._pods == {}
    assert nominated_pod(_pod(0, 1_000)).claims == frozenset(), "too many names"


def _pod(number: int, claims: int) -> dict[str, Any]:
    named = [{"name": f"c{n}", "resourceClaimName": f"claim-{number}-{n}"} for n in range(claims)]
    return {"metadata": {"uid": f"u{number}", "namespace": "a", "name": "p"}, "spec": {"resourceClaims": named}}


def test_events_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_REMEMBERED", 10)
    nobody: Any = SimpleNamespace(cluster=None)
    announcer = Announcer(nobody, "node-a", "x", lambda: 0.0)
    for number in range(50):
        assert announcer._is_new(Notify(Subject.POD, "DeviceRefused", str(number)))
    assert len(announcer._told_at) == 10
