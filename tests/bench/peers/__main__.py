"""``python -m tests.bench.peers``: the times behind the ratios, with the floor of Allocate."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.bench.core import NotHere
from tests.bench.peers import calls, pod_starts


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.peers",
        description="The times behind the ratios of python -m tests.bench --peers, with the floor of Allocate.",
    )
    parser.add_argument("what", nargs="?", choices=["allocate", "claims", "pods"], help="only these")
    asked = parser.parse_args().what or ("allocate", "claims", "pods")
    try:
        if "allocate" in asked:
            print(*calls.lines("Allocate", asyncio.run(calls.allocate_times(floors=True))), sep="\n", flush=True)
        if "claims" in asked:
            for what, times in zip(("prepare", "unprepare"), calls.claims_measured(), strict=True):
                print(*calls.lines(what, times), sep="\n", flush=True)
        if "pods" in asked:
            print(*pod_starts.lines(pod_starts.measured(start_cluster=True)), sep="\n", flush=True)
    except NotHere as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
