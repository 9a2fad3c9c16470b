"""``python -m tests.soak``: pods and claims at full load, with crashes and false answers; is a device ever shared?

With ``--real`` on a real node: ``tests/soak/real``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from drabridge.errors import DrabridgeError
from tests.soak.real.bed import missing
from tests.soak.real.go_driver import measure
from tests.soak.real.load import DEMAND
from tests.soak.real.run import soak as soak_real
from tests.soak.run import soak


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Legacy pods and claims at full load on a simulated cluster with a real agent and real devices, "
        "under kill -9, kubelet restarts, partitions and hot-unplug. Locks judge. Exit status 1 when two ever held "
        "one device, or a device was never given back.",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=10.0)
    length.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--least-pods", type=int, default=0, metavar="N", help="go on until so many have run, and one was refused"
    )
    parser.add_argument(
        "--log",
        type=Path,
        metavar="FILE",
        help="keep the agent's log there; with --real: faults, refusals and "
        "the ends of pods, and the agent's log in FILE.agent",
    )
    parser.add_argument("--real", action="store_true", help="on the node that KUBECONFIG leads to, as root on it")
    parser.add_argument(
        "--nodes",
        type=int,
        default=1,
        metavar="N",
        help="with --real: load so many nodes of the cluster; those that it lacks are started (default: %(default)s)",
    )
    parser.add_argument("--shared", action="store_true", help="with --real: every device is offered to both APIs")
    parser.add_argument(
        "--faults",
        metavar="WORDS",
        help="with --real: only those whose names begin so, for example agent,kubelet, or node,cable where there are "
        "several nodes; none, to measure times",
    )
    parser.add_argument(
        "--demand",
        type=float,
        default=DEMAND,
        metavar="X",
        help="with --real: devices asked for by each API, per device of the node (default: %(default)s)",
    )
    parser.add_argument(
        "--go-driver",
        type=Path,
        metavar="PROGRAM",
        help="with --real, and no agent: only measure claims of Kubernetes' own dra-test-driver",
    )
    parser.add_argument("--broken", metavar="VARIANT", help="an agent without one rule (tests.support.broken_agent)")
    arguments = parser.parse_args()
    if arguments.nodes < 1:
        parser.error("--nodes: 1 or more")
    seconds = arguments.seconds if arguments.seconds is not None else arguments.minutes * 60

    def say(line: str) -> None:
        print(line, flush=True)

    if arguments.real:
        if lacking := missing(os.environ):
            say(f"a soak on a real node needs {'; '.join(lacking)}")
            return 2
        try:
            if arguments.go_driver:
                asyncio.run(measure(arguments.go_driver, seconds, arguments.seed, os.environ, say, arguments.demand))
                return 0
            found = asyncio.run(
                soak_real(
                    seconds,
                    arguments.seed,
                    os.environ,
                    say,
                    arguments.log,
                    shared=arguments.shared,
                    faults=None if arguments.faults is None else tuple(arguments.faults.split(",")),
                    demand=arguments.demand,
                    count=arguments.nodes,
                )
            )
        except (DrabridgeError, AssertionError) as error:  # no cluster, or one that is not fit for it
            say(f"soak: {error}")
            return 1
        say(str(found))
        return 0 if found.ok else 1
    command = ("-m", "tests.support.broken_agent", arguments.broken) if arguments.broken else ("-m", "drabridge")
    verdict = asyncio.run(soak(seconds, arguments.seed, say, command, arguments.log, arguments.least_pods))
    say(str(verdict))
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
