"""The three nodes of a module's scenarios, in place of the one node of the other folders."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cluster.bed import Bed
from tests.cluster.beds import Beds
from tests.cluster.three_nodes.bed import CONFIG, ThreeNodes, three_nodes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def beds(request: pytest.FixtureRequest) -> AsyncIterator[Beds]:
    """A module with another configuration names it ``CONFIG``; ``VALUES`` are more of the chart's."""
    config, values = getattr(request.module, "CONFIG", CONFIG), getattr(request.module, "VALUES", None)
    made = Beds(lambda: three_nodes(config, values))
    try:
        yield made
    finally:
        await made.give_up()


@pytest.fixture
def three(bed: Bed) -> ThreeNodes:
    """Three nodes with a ready agent each and no workloads; afterwards no device may have had two holders."""
    assert isinstance(bed, ThreeNodes)
    return bed
