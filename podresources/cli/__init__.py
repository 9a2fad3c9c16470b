"""The ``podresources`` command: who holds which device, CPU and memory on this node.

Exit codes: 0 success, 1 the request failed, 2 the command line makes no sense. Large modules are imported only once the
command line is understood, so that ``--help`` and errors are shown at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from podresources.cli.parser import parse
from podresources.errors import PodResourcesError
from podresources.table import printable

OK, FAILED, USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        options = parse(arguments)
    except SystemExit as done:  # argparse has said why
        return done.code if isinstance(done.code, int) else USAGE
    try:
        code = options.command(options)
        print(end="", flush=True)
    except PodResourcesError as error:
        print(printable(f"podresources: {error}"), file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # `podresources list | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:  # a full disk
        print(printable(f"podresources: {error}"), file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return OK if options.endless else FAILED
    return int(code)
