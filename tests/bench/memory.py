"""What an agent needs of a node's memory for itself: anonymous pages, which no file backs and nobody shares.

``python -m tests.bench.memory`` measures it on a real node, in the image and as the chart runs it, over TLS: after the
start, and after pods of both kinds have come and gone; beside it Kubernetes' own two programs in Go. It starts a node
where there is none, as ``python -m tests.cluster`` does. The benchmarks here measure an agent beside the simulation,
with the interpreter's settings of the image, over TLS as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from drabridge.sim.apiserver.server import SimApiServer
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from tests.bench.core import Benchmark, NotHere, awaited
from tests.bench.dra import CONFIG as CLAIMS_CONFIG
from tests.bench.legacy import CONFIG as LIMITS_CONFIG
from tests.bench.peers import programs
from tests.bench.processes import anonymous_mib, children, resident_mib
from tests.cluster.__main__ import UsageError, cluster
from tests.soak.real import load as soak_load
from tests.soak.real.bed import CONFIG as NODE_CONFIG
from tests.soak.real.bed import RealNode, real_node
from tests.soak.real.container import Json
from tests.soak.real.judge import parse
from tests.support.agent_process import AgentProcess
from tests.support.dra_node import add_node
from tests.support.waiting import short_directory, until

IMAGE_SETTINGS = ("-OO", "-X", "no_debug_ranges")  # what PYTHONOPTIMIZE and PYTHONNODEBUGRANGES are in the image
BOTH_CONFIG = CLAIMS_CONFIG.format(subsystem="tty", sysname="tty[0-9]*").replace("legacy: 0", 'legacy: "50%"')
QUIET_SECONDS = 20.0  # after the start or the last pod: what ended gives its memory back
SHORT_LIVES = (0.2, 1.0)  # seconds of a pod
LIMITS_ONLY: Json = {
    **NODE_CONFIG,
    "dra": {"enabled": False},
    "resources": [{**NODE_CONFIG["resources"][0], "lanes": {"legacy": "*"}}],
}


# --- beside the simulation


@contextlib.contextmanager
def _bytecode() -> Iterator[None]:
    """A folder for bytecode without docstrings, which agents of this block write and use."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="pyc") as folder:
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


async def _simulated(config: str, *, claims: bool) -> float:
    with _bytecode():
        await _agent(config, claims=claims)  # it compiles, which takes memory
        return await _agent(config, claims=claims)


async def _agent(config: str, *, claims: bool) -> float:
    with short_directory() as root:
        async with SimApiServer(tls=True) as api:
            add_node(api)
            kubelet = SimKubelet(root, timings=Timings.fast())
            await kubelet.start()
            more = ("--kubeconfig", str(api.kubeconfig(root / "kubeconfig"))) if claims else ()
            agent = AgentProcess(root, config, "bench.example.com", more, (*IMAGE_SETTINGS, "-m", "drabridge"))
            await agent.start()
            try:
                await agent.ready()
                if claims:
                    await until(lambda: api.objects.peek("resourceslices"), 30, agent.text)
                await asyncio.sleep(4)
                assert agent.process is not None
                return anonymous_mib(agent.process.pid)
            finally:
                await agent.stop()
                await kubelet.stop()


def benchmarks() -> list[Benchmark]:
    return [
        Benchmark("legacy_anonymous_mib", "MiB", 28, awaited(lambda: _simulated(LIMITS_CONFIG, claims=False))),
        Benchmark("both_anonymous_mib", "MiB", 38, awaited(lambda: _simulated(BOTH_CONFIG, claims=True))),
    ]


# --- on a real node


async def on_node(environ: Mapping[str, str], config: Json, lanes: tuple[str, ...], pods: int) -> list[str]:
    """The rows of one configuration: after the start, and after so many pods."""
    name = "both APIs" if len(lanes) > 1 else "limits only"
    async with real_node(environ, lambda line: None, config=config) as node:
        await asyncio.sleep(QUIET_SECONDS)
        rows = [_row(f"drabridge, {name}, after the start", node.agent_pid())]
        print(rows[-1], file=sys.stderr, flush=True)
        had = await _use(node, lanes, pods)
        await asyncio.sleep(QUIET_SECONDS)
        rows.append(_row(f"drabridge, {name}, after {had} pods", node.agent_pid()))
        print(rows[-1], file=sys.stderr, flush=True)
        await node.restore()
    return rows


async def _use(node: RealNode, lanes: tuple[str, ...], pods: int) -> int:
    """Let pods come and go until so many had a device; return how many."""
    soak_load.LIVES_SECONDS = SHORT_LIVES
    load = soak_load.Load(node, random.Random("memory"), soak_load.DEMAND, lanes=lanes)
    await load.prepare()
    working = asyncio.create_task(load.run())
    while (had := len({line.uid for line in parse(node.journal()) if line.verb == "has"})) < pods:
        print(f"{had} pods", file=sys.stderr, flush=True)
        await asyncio.sleep(10)
        if working.done():
            await working
    load.finish()
    await working
    return had


def go_pair(kubeconfig: Path) -> list[str]:
    """The rows of the two Go programs, each serving and with its devices published."""
    with (
        tempfile.TemporaryDirectory(prefix="go") as directory,
        programs.sample_device_plugin(Path(directory)),
        programs.dra_test_driver(Path(directory), kubeconfig, "node-a", Path(directory), 8),
    ):
        names = ("sample-device-plugin", "dra-test-driver")
        found = {name: pid for pid, name in children(os.getpid()).items() if name in names}
        return [*(_row(name, found[name]) for name in names), _row("both programs in Go", *found.values())]


def _row(name: str, *pids: int) -> str:
    return f"| {name} | {sum(map(anonymous_mib, pids)):.1f} | {sum(map(resident_mib, pids)):.1f} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.memory",
        description="Measure an agent's memory on a real node, beside Kubernetes' own programs. Takes 15 minutes.",
        epilog="example: python -m tests.bench.memory --pods 500",
    )
    parser.add_argument("--pods", type=int, default=500, help="how many pods come and go; half of them for limits only")
    arguments = parser.parse_args()
    try:
        with cluster(os.environ) as environment:
            os.environ.update(environment)
            rows = asyncio.run(on_node(environment, LIMITS_ONLY, (soak_load.LEGACY,), arguments.pods // 2))
            both = (soak_load.LEGACY, soak_load.CLAIM)
            rows += asyncio.run(on_node(environment, NODE_CONFIG, both, arguments.pods))
            rows += go_pair(Path(environment["KUBECONFIG"]))
    except (UsageError, NotHere) as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(["| on a real node, over TLS | anonymous MiB | resident MiB |", "|---|---|---|", *rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
