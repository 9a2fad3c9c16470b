"""The latest value for every reader, and which ids kubelet is asking about."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys

import pytest

from deviceplugin import Broadcast
from deviceplugin.inflight import Inflight
from tests.support.waiting import HANG_SECONDS


async def test_readers_get_the_newest_and_only_that() -> None:
    broadcast: Broadcast[str] = Broadcast()
    assert (broadcast.current, broadcast.version) == (None, 0)
    waiting = asyncio.create_task(broadcast.next(0))
    await asyncio.sleep(0)
    assert [broadcast.publish(value) for value in "abb"] == [1, 2, 2]
    seen = await waiting
    assert (seen.version, seen.value) == (2, "b")
    assert (await broadcast.next(0)).version == 2
    assert broadcast.resend() == 3
    assert (await broadcast.next(2)).value == "b"


async def test_a_reader_that_is_up_to_date_waits() -> None:
    broadcast: Broadcast[str] = Broadcast()
    broadcast.publish("a")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(broadcast.next(1), 0.05)
    assert not broadcast._wakers, "a reader that left is remembered"


def test_nothing_can_be_sent_again_before_the_first() -> None:
    with pytest.raises(RuntimeError, match="publish a value first"):
        Broadcast[str]().resend()


def test_inflight_counts_overlapping_calls_and_forgets_in_time() -> None:
    now = [0.0]
    inflight = Inflight(lambda: now[0])
    assert inflight.idle_seconds == math.inf
    inflight.enter(["a", "b"])
    inflight.enter(["a"])
    inflight.leave(["a", "b"])
    assert inflight.ids == {"a"}
    now[0] = 100.0
    assert inflight.idle_seconds == 0
    assert inflight.recent(60) == {"a"}  # under way, however long
    inflight.leave(["a"])
    now[0] = 159.0
    assert not inflight.ids
    assert inflight.idle_seconds == 59
    assert inflight.recent(60) == {"a"}
    now[0] = 161.0
    assert inflight.recent(60) == frozenset()


def test_the_pure_parts_need_neither_grpc_nor_watchdog() -> None:
    code = (
        "import sys, deviceplugin as d; d.ListedDevice('a'), d.prefer, d.Broadcast, d.RegistrationPhase;"
        "assert not {'grpc', 'watchdog', 'google.protobuf'} & set(sys.modules), sys.modules.keys();"
        "d.PluginServer; assert 'grpc' in sys.modules; assert set(d.__all__) <= {n for n in d.__all__ if getattr(d, n)}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=5 * HANG_SECONDS)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import deviceplugin

    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = deviceplugin.nothing_like_it
