"""Which claims a coordinator names for a pool, as it reads them and follows their changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drabridge.coordinator.pending_claims import PendingClaims, WaitingClaim, waiting_claim
from drabridge.kube.api import UnreachableError
from drabridge.kube.claim_hints import ClaimHint
from drabridge.kube.json_reader import ObjectIdentity
from drabridge.offers.slices import lease_condition, lease_denied_condition

DRIVER, OTHER = "a.example.com", "b.example.com"
LEASE, DENIED = lease_condition(DRIVER), lease_denied_condition(DRIVER)
Json = dict[str, Any]


def result(device: str = "d0", pool: str = "node-a", driver: str = DRIVER, **more: Any) -> Json:
    return {"driver": driver, "pool": pool, "device": device, "bindingConditions": [lease_condition(driver)], **more}


def told(
    device: str = "d0", pool: str = "node-a", driver: str = DRIVER, word: str = LEASE, status: str = "True", **more: Any
) -> Json:
    return {
        "driver": driver,
        "pool": pool,
        "device": device,
        "conditions": [{"type": "Ready", "status": "True"}, {"type": word, "status": status}],
        **more,
    }


def claim(*results: Json, entries: Any = None, name: str = "c", version: str = "5", at: Any = None) -> Json:
    allocation: Json = {"devices": {"results": [*results]}}
    if at is not None:
        allocation["allocationTimestamp"] = at
    status: Json = {"allocation": allocation}
    if entries is not None:
        status["devices"] = entries
    metadata = {"namespace": "default", "name": name, "uid": f"uid-{name}", "resourceVersion": version}
    return {"metadata": metadata, "status": status}


def read(obj: Json) -> WaitingClaim:
    """As the coordinator reads it from the server's bytes."""
    return PendingClaims(DRIVER, lambda pool: None).view(json.dumps(obj).encode())


SHARED = (result(shareID="s1"), result(shareID="s2"))


@pytest.mark.parametrize(
    ("obj", "pools"),
    [
        (claim(result()), ["node-a"]),
        (claim(result(), result("d1"), result("e0", "rack/b")), ["node-a", "rack/b"]),
        (claim(result(driver=OTHER), result("e0", "rack/b")), ["rack/b"]),
        (claim(result(driver=OTHER, bindingConditions=[LEASE])), []),
        (claim(result(bindingConditions=None), result("e0", "rack/b", bindingConditions=["another"])), []),
        (claim(result(bindingConditions=["another", LEASE])), ["node-a"]),
        (claim(result(), entries=[told()]), []),
        (claim(result(), entries=[told(word=DENIED)]), []),
        (claim(result(), entries=[told(status="False")]), ["node-a"]),
        (claim(result(), entries=[told(word="Ready")]), ["node-a"]),
        (claim(result(), entries=[told("d1"), told(pool="rack/b"), told(driver=OTHER)]), ["node-a"]),
        (claim(result(), entries=[{"driver": DRIVER, "pool": "node-a", "device": "d0"}]), ["node-a"]),
        (claim(result(), result("e0", "rack/b"), entries=[told()]), ["rack/b"]),
        (claim(*SHARED, entries=[told(shareID="s1")]), ["node-a"]),
        (claim(*SHARED, entries=[told(shareID="s1"), told(shareID="s2")]), []),
        (claim(), []),
        ({**claim(), "status": {"allocation": {"devices": None}}}, []),
        ({**claim(), "status": {"allocation": {"devices": {"results": None}}}}, []),
        ({**claim(), "status": {"allocation": None, "devices": [told()]}}, []),
        ({**claim(), "status": None}, []),
    ],
)
def test_a_claim_waits_for_the_pools_whose_agents_have_not_answered(obj: Json, pools: list[str]) -> None:
    found = read(obj)
    assert list(found.pools) == pools
    if not pools:
        assert found == WaitingClaim("uid-c"), "of a hundred thousand claims nothing else is kept"


def test_what_is_no_claim_is_not_read() -> None:
    broken: tuple[Json, ...] = (
        {},
        {"metadata": None},
        {"metadata": {}},
        claim({"driver": DRIVER, "bindingConditions": [LEASE]}),
    )
    for obj in broken:
        with pytest.raises((KeyError, TypeError)):
            waiting_claim(obj, DRIVER)


class Followed:
    """Claims that are followed, and the pools that were told to have changed since they were last asked for."""

    def __init__(self) -> None:
        self._news: list[str] = []
        self.claims = PendingClaims(DRIVER, self._news.append)

    def news(self) -> list[str]:
        found = sorted(set(self._news))
        self._news.clear()
        return found

    def names(self, pool: str = "node-a") -> list[str]:
        return [hint.name for hint in self.claims.hints(pool)]


def test_a_list_says_who_waits_and_who_no_longer_does() -> None:
    one = Followed()
    assert (one.claims.complete, one.claims.lost_at is None) == (False, False)
    one.claims.listed((read(claim(result(), name="a")), read(claim(result("e0", "rack/b"), name="b")), read(claim())))
    assert (one.claims.complete, one.claims.lost_at, len(one.claims)) == (True, None, 2)
    assert one.news() == ["node-a", "rack/b"]
    assert one.claims.pools == {"node-a", "rack/b"}
    one.claims.listed((read(claim(result(), name="a")),))
    assert one.news() == ["rack/b"]
    assert one.claims.pools == {"node-a"}
    assert one.names("rack/b") == []


def test_the_oldest_allocation_is_named_first_and_what_is_of_one_second_by_its_name() -> None:
    one = Followed()
    for name, at in (("c", "2026-01-01T00:00:01Z"), ("d", "2026-01-01T00:00:00Z"), ("b", "2026-01-01T00:00:01Z")):
        one.claims.changed("ADDED", read(claim(result(), name=name, at=at)))
    one.claims.changed("ADDED", read(claim(result(), name="a")))  # the server's release does not say when
    assert one.names() == ["a", "d", "b", "c"]
    for number in range(20):
        one.claims.changed("ADDED", read(claim(result(), name=f"e{number * 7 % 20:02}", at="2026-01-01T00:00:02Z")))
    assert one.names()[4:] == [f"e{number:02}" for number in range(20)]
    assert one.claims.hints("node-a")[0] == ClaimHint("default", "a", "uid-a", "5")


def test_a_change_that_matters_to_an_agent_is_told_and_no_other() -> None:
    one = Followed()
    one.claims.changed("ADDED", read(claim(result(), at="1")))
    assert one.news() == ["node-a"]
    one.claims.changed("MODIFIED", read(claim(result(), at="1", version="6")))
    assert one.news() == []
    assert one.claims.hints("node-a")[0].resource_version == "5", "it waits as before"
    one.claims.changed("MODIFIED", read(claim(result(), at="2", version="7")))
    assert one.news() == ["node-a"]
    assert one.claims.hints("node-a")[0].resource_version == "7", "it was allocated again"
    one.claims.changed("MODIFIED", read(claim(result("e0", "rack/b"), at="2")))
    assert one.news() == ["node-a", "rack/b"]
    assert (one.names(), one.names("rack/b")) == ([], ["c"])
    assert one.claims.pools == {"rack/b"}
    one.claims.changed("MODIFIED", read(claim(result("e0", "rack/b"), at="2", entries=[told("e0", "rack/b")])))
    assert one.news() == ["rack/b"]
    assert len(one.claims) == 0


@pytest.mark.parametrize("end", ["deleted", "unreadable"])
def test_a_claim_that_is_gone_or_cannot_be_read_is_named_no_more(end: str) -> None:
    one = Followed()
    for name in ("a", "b"):
        one.claims.changed("ADDED", read(claim(result(), name=name)))
    one.news()
    if end == "deleted":
        one.claims.changed("DELETED", read(claim(result(), name="a")))
        one.claims.changed("DELETED", read(claim(result(), name="never-known")))
    else:
        one.claims.unreadable("MODIFIED", ObjectIdentity("uid-a", "default", "a"))
    assert one.news() == ["node-a"]
    assert one.names() == ["b"]


def test_how_long_claims_are_not_followed_counts_from_the_first_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    one, error = Followed(), UnreachableError("no answer")
    one.claims.listed(())
    for now in (100.0, 200.0):
        monkeypatch.setattr("drabridge.coordinator.pending_claims.time.monotonic", lambda now=now: now)
        one.claims.lost(error)
        assert one.claims.lost_at == 100.0
    one.claims.listed(())
    assert one.claims.lost_at is None
