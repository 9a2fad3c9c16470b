"""What this cluster has not is told in one sentence; of what it has nothing is said.

The tests ask the API server for its gates; the product finds out by discovery, dry runs and what is kept of its writes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from drabridge.kube import features as product
from drabridge.offers.slices import Feature
from tests.cluster.bed import Bed, Json, at_the_beginning, clear, wait_for
from tests.cluster.real_bed import ask, real
from tests.cluster.releases.features import FEATURES
from tests.cluster.steps import claim_pod, running
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.cluster]

NAMES = {
    "extended resources": product.EXTENDED_NAMES,
    "binding conditions": Feature.LEASES,
    "device taints": Feature.TAINTS,
    "consumable capacity": Feature.SHARING,
    "partitionable devices": Feature.PARTITIONS,
    "device status": product.DEVICE_STATUS,
    "admission policies that change pods": product.POLICIES,
}
NOT_FOR_THE_AGENT = ("extended resources", "admission policies that change pods")
"""It has no right to ask, and no use for the answer: who migrates asks."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed() -> AsyncIterator[Bed]:
    """An agent that has prepared a claim, and so has seen what is kept of a claim's status."""
    async with real() as made:
        await made.install()
        await at_the_beginning(made)
        await claim_pod(made, "c1")
        await running(made, "c1")
        yield made
        await clear(made)


async def status(bed: Bed) -> Json:
    code, text = await bed.drabridge("status", "--output", "json")
    assert code == 0, text
    found: Json = json.loads(text)
    return found


async def drabridge(bed: Bed, *words: str) -> tuple[int, str, str]:
    """Exit status, standard output and error of a command on an administrator's desk."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "drabridge", *words, "--kubeconfig", str(bed.kubeconfig)),
        env={**os.environ, "COLUMNS": "120"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), HANG_SECONDS)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def row_of(bed: Bed, name: str, rows: Callable[[], Any]) -> Json:
    async def known() -> Json | None:
        (row,) = (one for one in await rows() if one["name"] == name)
        return row if row["state"] != "unknown" else None

    found: Json = await wait_for(bed, f"{name} to be found out", known)
    return found


def in_words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("feature", [name for name in NAMES if name not in NOT_FOR_THE_AGENT])
async def test_status_says_what_the_cluster_lacks(bed: Bed, feature: str) -> None:
    there = FEATURES[feature].there(ask)

    async def rows() -> Any:
        return (await status(bed))["features"]

    row = await row_of(bed, NAMES[feature], rows)
    assert row["state"] == ("there" if there else "missing")
    _, text = await bed.drabridge("status", "--output", "wide")
    assert (product.FEATURES[NAMES[feature]].sentence in in_words(text)) is not there, text


@pytest.mark.parametrize("feature", [name for name in NAMES if name != "device status"])
async def test_the_report_says_what_the_cluster_lacks(bed: Bed, feature: str) -> None:
    there = FEATURES[feature].there(ask)
    code, text, error = await drabridge(bed, "migrate", "report", "--output", "json")
    assert code == 0, error
    (row,) = (one for one in json.loads(text)["features"] if one["name"] == NAMES[feature])
    assert row["state"] == ("there" if there else "missing")
    code, text, error = await drabridge(bed, "migrate", "report")
    assert code == 0, error
    assert (product.FEATURES[NAMES[feature]].sentence in in_words(text)) is not there, text


async def test_a_switch_that_cannot_be_says_why_and_what_to_do_instead(bed: Bed) -> None:
    if FEATURES["admission policies that change pods"].there(ask):
        pytest.skip("this cluster has MutatingAdmissionPolicy: moving/test_switch.py tries it")
    code, _, error = await drabridge(bed, "migrate", "switch", "--to", "claims", "default")
    assert code == 2
    assert product.FEATURES[product.POLICIES].sentence in in_words(error)
    assert "drabridge migrate convert" in error
