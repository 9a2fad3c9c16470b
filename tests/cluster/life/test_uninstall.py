"""An uninstall is refused with a reason while a claim has a device; afterwards it passes and leaves nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster.bed import DRIVER, NAMESPACE, Bed, failed, wait_for
from tests.cluster.steps import claim_pod, deleted, legacy_pod, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def drained(bed: Bed, *words: str) -> tuple[int, Any]:
    """Exit status of ``drabridge drain``, and its document."""
    code, said = await bed.drabridge("drain", "-o", "json", *words)
    if not said:
        raise await failed(bed, f"drabridge drain {' '.join(words)}: exit status {code}, and no word")
    return code, json.loads(said)


async def test_an_uninstall_is_refused_while_a_claim_is_prepared_and_leaves_nothing_afterwards(bed: Bed) -> None:
    await claim_pod(bed, "training")
    await legacy_pod(bed, "old-way")
    await running(bed, "training", "old-way")

    passed, said = await bed.uninstall_check()
    assert not passed
    for words in (f"1 claim has devices of {DRIVER}", f"{NAMESPACE}/training", bed.node, "Terminating for ever"):
        assert words in said, said

    code, document = await drained(bed, "--clean")
    assert code == 1, document
    (claim,) = document["claims"]
    assert (claim["name"], claim["phase"], claim["pods"]) == ("training", "prepared", [f"{NAMESPACE}/training"])
    await running(bed, "training", "old-way")

    await deleted(bed, "training")
    code, document = await drained(bed, "--wait", "120")
    assert (code, document["because"]) == (0, [])
    assert [one["pod"] for one in document["pods"]] == ["old-way"]
    passed, said = await bed.uninstall_check()
    assert passed, said

    await deleted(bed, "old-way")

    async def nobody() -> bool:
        code, document = await drained(bed)
        return code == 0 and document["pods"] == []

    await wait_for(bed, "the device of the pod with limits to be let go", nobody)
    code, document = await drained(bed, "--clean")
    assert (code, document["files"]) == (0, [])
    await bed.uninstall()

    async def gone() -> bool:
        return not [*await bed.left_behind(), *await bed.files_left()]

    await wait_for(bed, "everything to be gone, the ledger and CDI files as well", gone)
