"""Wake-ups from inotify, in the cases in which inotify stops reporting."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin.inotify import Subscription, Watcher
from tests.support.waiting import PATIENCE


class Woken:
    """A subscription that counts its wake-ups, without any polling."""

    def __init__(self, watcher: Watcher, directory: Path) -> None:
        self.event = asyncio.Event()
        self.subscription: Subscription = watcher.subscribe(directory, self.event.set)

    async def within(self, seconds: float = 1.0 * PATIENCE) -> bool:
        """Whether a wake-up comes; the subscriber then refreshes, as its level check does."""
        try:
            await asyncio.wait_for(self.event.wait(), seconds)
        except TimeoutError:
            return False
        await asyncio.sleep(0.05)
        self.event.clear()
        self.subscription.refresh()
        return True

    def blind(self) -> bool:
        """Whether the subscription asks for quicker polling."""
        return self.subscription.blind


@pytest.fixture
async def woken(directory: Path) -> AsyncIterator[Woken]:
    woken = Woken(Watcher(), directory)
    yield woken
    woken.subscription.close()


async def test_a_new_file_wakes_and_a_neighbour_of_the_directory_does_not(woken: Woken, directory: Path) -> None:
    assert not woken.blind()
    (directory / "x").write_text("")
    assert await woken.within()
    (directory.parent / "neighbour").write_text("")
    assert not await woken.within(0.2)
    (directory / "x").unlink()
    assert await woken.within()


async def test_the_directory_deleted_and_made_again(woken: Woken, directory: Path) -> None:
    for _ in range(3):
        shutil.rmtree(directory)
        assert await woken.within()
        assert woken.blind()
        directory.mkdir()
        assert await woken.within()
        assert not woken.blind()
        (directory / "x").write_text("")
        assert await woken.within()


async def test_the_directory_replaced_by_rename(woken: Woken, directory: Path) -> None:
    other = directory.parent / "other"
    other.mkdir()
    directory.rename(directory.parent / "old")
    assert await woken.within()
    other.rename(directory)
    assert await woken.within()
    (directory / "x").write_text("")
    assert await woken.within()


async def test_a_directory_that_does_not_exist_yet(directory: Path) -> None:
    later = directory / "later"
    woken = Woken(Watcher(), later)
    assert woken.blind()
    later.mkdir()
    assert await woken.within()
    assert not woken.blind()
    (later / "x").write_text("")
    assert await woken.within()
    woken.subscription.close()


async def test_one_observer_for_all_and_no_thread_left(directory: Path) -> None:
    before = threading.active_count()
    watcher = Watcher()
    first, second = Woken(watcher, directory), Woken(watcher, directory)
    threads = threading.active_count() - before
    third = Woken(watcher, directory)
    assert threading.active_count() - before == threads
    (directory / "x").write_text("")
    assert await first.within()
    assert await second.within()
    first.subscription.close()
    (directory / "y").write_text("")
    assert await second.within()
    assert not await first.within(0.1)
    second.subscription.close()
    third.subscription.close()
    third.subscription.close()  # twice is harmless
    for _ in range(100 * PATIENCE):
        if threading.active_count() <= before:
            break
        await asyncio.sleep(0.02)
    assert threading.active_count() <= before


async def test_no_inotify_means_blind(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise OSError(24, "inotify instance limit reached")

    monkeypatch.setattr("watchdog.observers.inotify.InotifyEmitter.on_thread_start", exhausted)
    woken = Woken(Watcher(), directory)
    assert woken.blind()
    woken.subscription.refresh()
    assert caplog.text.count("polling instead") == 1
    woken.subscription.close()
