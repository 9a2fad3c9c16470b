"""Labels of the Node on a real API server: with the chart's rights and its policy, which reads who wrote what."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from drabridge.errors import ClusterError
from tests.cluster import bed as b
from tests.cluster.bed import NODES, RESOURCE, Json, at_the_beginning, wait_for
from tests.cluster.real_bed import RealBed, real

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]

COUNT, NAMES, FOREIGN = "example.com/devices", "example.com/names", "example.com/foreign"
LABELS: Json = {
    COUNT: {"resource": RESOURCE, "count": "devices"},
    NAMES: {"resource": RESOURCE, "value": "{subsystem}"},
    FOREIGN: {"resource": RESOURCE, "count": "devices"},
}
CONFIG: Json = {**b.CONFIG, "nodeLabels": {"labels": LABELS}}


@pytest_asyncio.fixture(loop_scope="module")
async def labelled() -> AsyncIterator[RealBed]:
    async with real(CONFIG) as bed:
        await bed.api.apply(NODES, node(bed, {FOREIGN: "somebodys"}), manager="somebody")
        try:
            await bed.install()
            await at_the_beginning(bed)
            yield bed
        finally:
            await bed.api.apply(NODES, node(bed, {}), manager="somebody")


def node(bed: RealBed, labels: dict[str, str]) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": bed.node_object, "labels": labels}}


async def labels(bed: RealBed) -> dict[str, Any]:
    found = (await bed.api.get(NODES, bed.node_object))["metadata"]["labels"]
    return {name: found[name] for name in LABELS if name in found}


async def become(bed: RealBed, wanted: dict[str, str]) -> None:
    async def there() -> bool:
        return await labels(bed) == wanted

    await wait_for(bed, f"the labels {wanted}", there)


async def test_labels_come_follow_the_configuration_and_go(labelled: RealBed) -> None:
    bed = labelled
    await become(bed, {COUNT: "4", NAMES: "mem", FOREIGN: "somebodys"})

    agent = await bed.as_agent()
    try:
        for taken in ({"example.com/other": "x"}, {COUNT: "4", "example.com/other": "x"}, {COUNT: "4"}):
            with pytest.raises(ClusterError, match="the labels of its configuration"):
                await agent.apply(NODES, node(bed, taken), manager="drabridge-other", force=True)
    finally:
        agent.close()
    assert await labels(bed) == {COUNT: "4", NAMES: "mem", FOREIGN: "somebodys"}

    fewer = {**b.CONFIG, "nodeLabels": {"labels": {COUNT: LABELS[COUNT]}}}
    none: Json = {**b.CONFIG, "nodeLabels": {}}
    for config, wanted in ((fewer, {COUNT: "4"}), (none, {})):
        bed.config = config
        await bed.upgrade()
        await become(bed, {**wanted, FOREIGN: "somebodys"})
