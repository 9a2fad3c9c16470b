"""Read the files of health rules in threads: a driver that answers late, or never, blocks nothing else.

Some files of sysfs ask the hardware (``ras/umc_err_count`` of an AMD GPU does, Linux amdgpu_ras.c), and faulty
hardware answers late. So the inventory uses the last answer while the file is read again, and is told if it changes.
Each PCI function has a thread of its own: the files of a healthy function do not wait for those of a faulty one.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from drabridge.system.io_thread import IoThread, Job

FIRST_SECONDS = 0.05
"""How long the loop waits for the first answer of a file. After one timeout, no file of that PCI function is waited for
until one of them answers."""

LATE_SECONDS = 2.0
"""A file without an answer for this long counts as not answering."""

FRESH_SECONDS = 1.0
"""A younger answer is used without reading the file again."""

FILES_MAX = 4096
"""When there are this many files, those that are not being read are forgotten: paths may have serial numbers of
replugged devices."""

_PCI_FUNCTION = re.compile(r"/sys/bus/pci/devices/([0-9a-f:.]+)/")


@dataclass
class _File:
    """``job``: the read that is under way; ``asked``: when it, or else the last read, began."""

    asked: float
    job: Job[str | None] | None
    answered: bool = False
    line: str | None = None
    late: bool = False  # a caller got TimeoutError


class HealthFiles:
    """The files that health rules asked for. ``read`` is called in threads, ``on_news`` on the loop."""

    def __init__(self, read: Callable[[str], str | None], on_news: Callable[[], None]) -> None:
        self._read = read
        self._on_news = on_news
        self._files: dict[str, _File] = {}
        self._threads: dict[str, IoThread] = {}
        self._waited_in_vain: set[str] = set()  # keys of threads whose last wait timed out

    def first_line(self, path: str) -> str | None:
        """Return the first line as last read; None when the file cannot be read. Call it on the loop.

        Raises TimeoutError while the file does not answer.
        """
        now = time.monotonic()
        file = self._files.get(path)
        if file is None or (file.job is None and now - file.asked > FRESH_SECONDS):
            file = self._ask(path, file, now)
        if not file.answered and file.job is not None:
            self._wait(path, file, file.job)
        if not file.answered or (file.job is not None and now - file.asked > LATE_SECONDS):
            file.late = True
            raise TimeoutError
        return file.line

    def close(self) -> None:
        """End the threads that are not stuck."""
        for thread in self._threads.values():
            thread.stop()
        self._threads.clear()

    def _ask(self, path: str, file: _File | None, now: float) -> _File:
        loop = asyncio.get_running_loop()

        def call() -> str | None:
            try:
                return self._read(path)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed, so nobody waits
                    loop.call_soon_threadsafe(self._arrived, path)

        thread = self._threads.setdefault(_key(path), IoThread("health-files"))
        job = thread.submit(call)
        if file is None:
            if len(self._files) >= FILES_MAX:
                self._files = {path: file for path, file in self._files.items() if file.job is not None}
            file = self._files[path] = _File(now, job)
        else:
            file.asked, file.job = now, job
        return file

    def _wait(self, path: str, file: _File, job: Job[str | None]) -> None:
        key = _key(path)
        if not job.over(0.0 if key in self._waited_in_vain else FIRST_SECONDS):
            self._waited_in_vain.add(key)
        elif job.error is None:
            file.answered, file.line = True, job.result()

    def _arrived(self, path: str) -> None:
        file = self._files[path]
        job, file.job = file.job, None
        self._waited_in_vain.discard(_key(path))
        if job is None or not job.over(FIRST_SECONDS) or job.error is not None:
            return
        news = file.late or not file.answered or file.line != job.result()
        file.answered, file.line, file.late = True, job.result(), False
        if news:
            self._on_news()


def _key(path: str) -> str:
    match = _PCI_FUNCTION.match(path)
    return match.group(1) if match else ""
