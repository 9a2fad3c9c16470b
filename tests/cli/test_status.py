"""The status document on one screen."""

from __future__ import annotations

from msgspec.structs import replace

from drabridge.cli.status import render
from drabridge.ledger.model import Lane
from tests.page.sample import by_pod, free, gpu, status

WHOLE, PART = gpu(0), replace(gpu(1), root=gpu(0).name)


def test_a_free_device_says_why_nobody_is_offered_it() -> None:
    document = status([WHOLE, PART], [free(WHOLE, Lane.LEGACY, 9), free(PART, Lane.DRA, 9)])
    assert [row["offered"] for row in document["devices"]] == [[], []]
    screen = "\n".join(render(document))
    assert f"shares its hardware with {PART.name}, which is in lane dra" in screen
    assert f"shares its hardware with {WHOLE.name}, which is in lane legacy" in screen


def test_the_holder_of_the_whole_is_why_a_part_is_not_offered() -> None:
    document = status([WHOLE, PART], [by_pod(WHOLE, "a/b/c", 9), free(PART, Lane.LEGACY, 9)])
    assert [row["reason"] for row in document["devices"]] == [
        "",
        f"shares its hardware with {WHOLE.name}, which is held (legacy)",
    ]
