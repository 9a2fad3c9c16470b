"""The agent reads every claim of the cluster; a malformed one must not stop it."""

from __future__ import annotations

import pytest

from tests.support import foreign_objects
from tests.support.agent_on_cluster import bridge, healthy, set_lanes
from tests.support.agent_process import metric
from tests.support.waiting import until


async def test_deeply_nested_parameters_do_not_stop_a_move_between_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kilobytes, for any driver, in any namespace, allocated to nobody."""
    foreign_objects.splice(monkeypatch)
    async with bridge() as (agent, cluster, _):
        cluster.api.objects.create(foreign_objects.claim("evil", "DEEP"), namespace="default")
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: len(healthy(cluster)) == 4, 10, agent.text)
        assert "RecursionError" not in agent.text()


async def test_objects_that_cannot_be_read_are_counted_in_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign_objects.splice(monkeypatch, {'"name":"odd"': b'"name":7'})
    async with bridge() as (agent, cluster, _):
        assert "drabridge_unreadable_objects_total{" not in (await agent.ask("/metrics"))[1].decode()
        cluster.api.objects.create(foreign_objects.claim("odd", {}), namespace="default")
        await set_lanes(agent, legacy=4, dra=0)
        await until(lambda: metric(agent, "unreadable_objects_total", kind="resourceclaims"), 15, agent.text)
