"""Run modules one after the other under umockdev, each as ``python -m MODULE ARGUMENTS`` does.

A line of standard input says which module, and where its output goes; a line of standard output says its exit status.
"""

from __future__ import annotations

import json
import os
import sys

from tests.support import forks


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    preload = os.environ["LD_PRELOAD"]
    for line in sys.stdin:
        job = json.loads(line)
        os.environ.clear()
        os.environ.update(job["environment"] | {"LD_PRELOAD": preload})
        output = os.open(job["output"], os.O_WRONLY | os.O_APPEND)
        for target in (1, 2):
            os.dup2(output, target)
        os.close(output)
        code = forks.run("-m", *job["words"])
        sys.stdout.flush()
        print(code, file=answers, flush=True)


if __name__ == "__main__":
    main()
