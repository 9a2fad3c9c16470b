"""Commands against a real agent: what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.support import forks
from tests.support.agent_process import RESOURCE, drabridge, node
from tests.support.waiting import until


async def test_wrong_arguments_end_with_2() -> None:
    cases = [
        (("lanes", "set", RESOURCE, "legacy=-1"), 2, f'drabridge: lanes of {RESOURCE}: legacy: found "-1", expected'),
        (("lanes", "set", RESOURCE, "dra=101%"), 2, f'drabridge: lanes of {RESOURCE}: dra: found "101%", expected'),
        (("lanes", "set", "example.com/none", "legacy=1"), 2, f"It has {RESOURCE}"),
        (("lanes", "set", RESOURCE, "legacy=1", "legacy=2"), 2, "legacy was given twice"),
        (("lanes", "reset", RESOURCE, "legacy=1"), 2, "reset takes no shares"),
        (("lanes", "release", "none"), 2, "It has full, null, random, zero"),
        (("lanes", "release", "null"), 0, "  - nobody held it"),
        (("lanes", "show", "example.com/none"), 2, f"no resource example.com/none. It has {RESOURCE}"),
        (("status", "--resource", "example.com/none"), 2, f"no resource example.com/none. It has {RESOURCE}"),
        (("status", "-o", "json", "--resource", "example.com/none"), 2, f"It has {RESOURCE}"),
        (("status",), 0, "claims: no ResourceSlices: there is no API server"),
    ]
    async with node() as (agent, _):
        answers = await asyncio.gather(*(drabridge(agent, *words) for words, _, _ in cases))
    for (words, code, said), (found, text) in zip(cases, answers, strict=True):
        assert (found, said in text) == (code, True), (words, found, text)


async def test_status_that_is_watched_outlives_the_agent() -> None:
    """An agent that restarts is what one watches for."""
    async with node() as (agent, _):
        log = agent.root / "watch.log"
        words = ("-m", "drabridge", "status", "--watch", "0.2", "--socket", str(agent.control))
        process = await forks.start(words, log, os.environ)
        try:
            await until(lambda: "SINCE" in log.read_text(), 10, log.read_text)
            await agent.stop()
            await until(lambda: "Is the agent running?" in log.read_text(), 10, log.read_text)
            await agent.start()
            await until(lambda: "SINCE" in log.read_text().rpartition("Is the agent running?")[2], 15, log.read_text)
        finally:
            hears = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # not as a background job of a shell
            process.send_signal(signal.SIGINT if hears else signal.SIGKILL)
            assert await process.wait() == (130 if hears else -signal.SIGKILL)
