"""``python -m tests.glue --minutes 5``: tell random stories of a node with the real agent, and judge each."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time

from tests.glue import processes  # first: it brings the clock
from tests.glue.broken import BROKEN
from tests.glue.story import Story
from tests.glue.worlds import WORLDS


class _Lines(logging.Formatter):
    """The agent's lines with their fields, and the story's seconds."""

    def format(self, record: logging.LogRecord) -> str:
        usual = logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys() | {"message"}
        fields = " ".join(f"{key}={value}" for key, value in record.__dict__.items() if key not in usual)
        seconds, who = time.monotonic() - processes.START_SECONDS, processes.PROCESS.get().name
        text = f"{seconds:8.2f}  [{who}] {record.getMessage()} {fields}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.glue", description=__doc__)
    parser.add_argument("--stories", type=int, default=10, help="so many of each world (default 10)")
    parser.add_argument("--minutes", type=float, default=0.0, help="stories until so many minutes have passed")
    parser.add_argument("--seed", type=int, default=1, help="of the first story")
    parser.add_argument("--steps", type=int, default=25, help="happenings in a story (default 25)")
    parser.add_argument("--world", choices=[one.name for one in WORLDS], help="this one alone")
    parser.add_argument("--verbose", action="store_true", help="print what happens, and the agent's log")
    parser.add_argument("--broken", choices=BROKEN, help="break the agent in this way first")
    parser.add_argument("--stop", action="store_true", help="stop at the first story with a fault")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # one seed is to be one story
        os.execve(
            sys.executable, [sys.executable, "-m", "tests.glue", *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"}
        )
    logging.basicConfig(level=logging.INFO if given.verbose else logging.CRITICAL + 1)
    logging.getLogger().handlers[0].setFormatter(_Lines())
    began, told, bad = time.monotonic(), 0, 0
    starts = 0
    for seed in range(given.seed, sys.maxsize):
        if given.minutes and time.monotonic() - began > 60 * given.minutes:
            break
        if not given.minutes and seed >= given.seed + given.stories:
            break
        for world in WORLDS:
            if given.world in (None, world.name):
                with BROKEN[given.broken].breaks() if given.broken else contextlib.nullcontext():
                    story = Story(world, seed, given.steps).run()
                told += 1
                starts += story.starts
                if story.faults or given.verbose:
                    print(f"world {world.name}, seed {seed}:", *story.told, sep="\n", flush=True)
                    print(*story.faults, sep="\n", flush=True)
                bad += bool(story.faults)
        if bad and given.stop:
            break
    seconds = time.monotonic() - began
    print(f"{told} stories, {starts} containers with devices, {bad} with faults, {seconds:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
