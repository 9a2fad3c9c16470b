"""Files of health rules whose driver answers late: the loop goes on, and the others' files are read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from drabridge.inventory import health_files
from drabridge.inventory.health_files import HealthFiles
from tests.support.waiting import PATIENCE, until

SICK = "/sys/bus/pci/devices/0000:0a:00.0/ras/umc_err_count"
SICK_TOO = "/sys/bus/pci/devices/0000:0a:00.0/ras/gfx_err_count"
WELL = "/sys/bus/pci/devices/0001:0b:00.0/ras/umc_err_count"
OTHER = "/run/state"


class Driver:
    """Answers at once, but for the files in ``silent``, which answer when ``answers`` is set."""

    def __init__(self) -> None:
        self.lines: dict[str, str | None] = {SICK: "ue: 0", SICK_TOO: "ue: 0", WELL: "ue: 0"}
        self.silent: set[str] = set()
        self.answers = threading.Event()
        self.news = 0

    def read(self, path: str) -> str | None:
        if path in self.silent:
            self.answers.wait(60)
        return self.lines.get(path)

    def tell(self) -> None:
        self.news += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr(health_files, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(health_files, "LATE_SECONDS", 0.2)
    made = Driver()
    yield made
    made.answers.set()


async def test_the_first_answer_is_there_at_once_and_a_missing_file_is_one(driver: Driver) -> None:
    files = HealthFiles(driver.read, driver.tell)
    assert (files.first_line(WELL), files.first_line(OTHER)) == ("ue: 0", None)
    files.close()


async def test_another_answer_is_news_and_the_same_is_not(driver: Driver) -> None:
    files = HealthFiles(driver.read, driver.tell)
    for _ in range(5):
        assert files.first_line(WELL) == "ue: 0"
        await asyncio.sleep(0.02)
    assert driver.news == 0
    driver.lines[WELL] = "ue: 1"
    assert files.first_line(WELL) == "ue: 0", "as it was read last"
    await until(lambda: driver.news == 1, 5)
    assert files.first_line(WELL) == "ue: 1"
    files.close()


async def test_a_driver_that_never_answered_costs_the_loop_a_moment_once(driver: Driver) -> None:
    driver.silent = {SICK, SICK_TOO}
    files = HealthFiles(driver.read, driver.tell)
    began = time.monotonic()
    for _ in range(20):
        for path in (SICK, SICK_TOO):
            with pytest.raises(TimeoutError):
                files.first_line(path)
        assert files.first_line(WELL) == "ue: 0"
        assert files.first_line(OTHER) is None
    assert time.monotonic() - began < 0.5 * PATIENCE
    driver.answers.set()
    await until(lambda: driver.news == 2, 5)
    assert (files.first_line(SICK), files.first_line(SICK_TOO)) == ("ue: 0", "ue: 0")
    files.close()


async def test_a_driver_that_falls_silent_counts_by_its_last_answer_for_a_while(driver: Driver) -> None:
    files = HealthFiles(driver.read, driver.tell)
    assert files.first_line(SICK) == "ue: 0"
    await asyncio.sleep(0.02)
    driver.silent = {SICK}
    assert files.first_line(SICK) == "ue: 0"
    await asyncio.sleep(0.3)
    with pytest.raises(TimeoutError):
        files.first_line(SICK)
    assert files.first_line(WELL) == "ue: 0"
    driver.answers.set()
    await until(lambda: driver.news == 1, 5)
    assert files.first_line(SICK) == "ue: 0"
    files.close()


async def test_a_read_that_fails_is_no_answer(driver: Driver) -> None:
    def fail(path: str) -> str | None:
        raise ValueError(path)

    files = HealthFiles(fail, driver.tell)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            files.first_line(WELL)
        await asyncio.sleep(0.02)
    files.close()
