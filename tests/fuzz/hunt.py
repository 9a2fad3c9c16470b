"""Give a reader changed inputs until its time is over, or one is a failure, which is then made small."""

from __future__ import annotations

import random
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from msgspec import Struct

from tests.fuzz.mutate import Mutator
from tests.fuzz.reader import Reader

MOST_SECONDS = 5.0  # of the processor, for one input; the slowest good one takes 0.1 s
MOST_MIB = 128  # that one input may add to the process's peak
SMALLER_SECONDS = 20.0  # to make a failure small
AT_ONCE = 100  # inputs of one round of Hypothesis, which makes a failure small at its end


class TooSlowError(Exception):
    """An input took more of the processor than any may."""


class TooLargeError(Exception):
    """An input took more memory than any may."""


class Failure(Struct):
    """An input that a reader does not take, as small as it became, and what it raised."""

    data: bytes
    error: BaseException


def hunt(
    reader: Reader, seconds: float, first: int, note: Callable[[bytes], None] = lambda data: None
) -> tuple[int, Failure | None]:
    """Return how many inputs the reader was given, and the first failure. ``note`` is told each before it is read."""
    seeds = list(reader.seeds().values())
    assert seeds, f"tests/fuzz/corpus/{reader.name} has no good input"
    over = time.monotonic() + seconds
    count = 0
    with opened(reader) as read:
        for number in range(first, first + 10**9):
            tried, failure = one_round(reader, read, seeds, number, AT_ONCE, note)
            count += tried
            if failure is not None or time.monotonic() > over:
                return count, failure
    raise AssertionError("no end of rounds")


def one_round(
    reader: Reader,
    read: Callable[[bytes], None],
    seeds: Sequence[bytes],
    number: int,
    most: int,
    note: Callable[[bytes], None] = lambda data: None,
) -> tuple[int, Failure | None]:
    """Give a reader so many inputs, which the number decides."""
    count = 0
    found: Failure | None = None
    over = float("inf")

    @seed(number)
    @settings(
        max_examples=most, deadline=None, database=None, report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.sampled_from(range(len(seeds))), st.randoms(use_true_random=False))
    def given_one(chosen: int, rng: random.Random) -> None:
        nonlocal count, found, over
        if time.monotonic() > over:
            return
        count += 1
        data = Mutator(rng, seeds, reader.form).one(seeds[chosen])
        note(data)
        try:
            with bounded():
                read(data)
        except Exception as error:
            if found is None or len(data) < len(found.data):
                found = Failure(data, error)
            over = min(over, time.monotonic() + SMALLER_SECONDS)
            raise

    with suppress(Exception):  # what failed is in ``found``
        given_one()
    return count, found


@contextmanager
def opened(reader: Reader) -> Iterator[Callable[[bytes], None]]:
    """Begin a reader in a folder of its own."""
    # A reader's writer may still be at work while the folder goes.
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder,
        reader.open(Path(folder)) as read,
    ):
        yield read


@contextmanager
def bounded() -> Iterator[None]:
    """Raise TooSlowError or TooLargeError where the block takes too much."""
    peak = _peak_mib()
    before = signal.signal(signal.SIGPROF, _too_slow)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if (more := _peak_mib() - peak) > MOST_MIB:
        raise TooLargeError(f"it took {more:.0f} MiB")


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlowError(f"more than {MOST_SECONDS:g} s of the processor")


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
