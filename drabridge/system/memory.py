"""Release the memory that only the start needed.

The start uses much more program text than serving: of some 27 MiB of mapped libraries, a running agent uses 12
(measured, grpcio 1.85 on CPython 3.11). The kernel takes the rest back only under memory pressure. Dropping the pages
costs only minor faults for those that are used again: the text is clean and stays in the page cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import re
from pathlib import Path

log = logging.getLogger(__name__)

MADV_DONTNEED = 4  # asm-generic/mman-common.h
M_ARENA_MAX = -8  # malloc.h
_TEXT = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp [0-9a-f]+ \S+ [1-9]\d*\s+/")


def share_one_heap() -> None:
    """Let all threads allocate from one heap. Call it before there is a second thread.

    glibc gives each thread an arena, so that threads need not wait for each other. Ours wait anyway, for Python's lock.
    The arenas of twenty threads with little in each take 2 MiB (mallopt(3), M_ARENA_MAX).
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def release_freed_memory() -> None:
    """Return freed memory to the kernel; glibc would keep it for later."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def release_memory_of_start(maps: Path = Path("/proc/self/maps")) -> int:
    """Drop the memory pages of program text, once the start is over; return how many bytes, 0 if impossible.

    Objects that are alive now will most likely live until the end: the garbage collector no longer looks at them.
    """
    gc.collect()
    gc.freeze()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.malloc_trim(0)
        text = [match.groups() for line in maps.read_text().splitlines() if (match := _TEXT.match(line))]
    except (OSError, AttributeError):  # not glibc, or no /proc
        return 0
    dropped = 0
    for first, end in text:
        start, size = int(first, 16), int(end, 16) - int(first, 16)
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), MADV_DONTNEED) == 0:
            dropped += size
    log.debug("memory of the start given back", extra={"text_bytes": dropped})
    return dropped
