"""``python -m tests.fuzz [READER ...] --minutes 5``: which bytes does a reader of others' bytes not bear?"""

from __future__ import annotations

import argparse
import hashlib
import logging
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.fuzz.hunt import bounded, hunt, opened
from tests.fuzz.reader import CORPUS, CRASH, Reader
from tests.fuzz.readers import READERS

LATE_SECONDS = 120.0  # a reader that is not back by then hangs in something that no signal ends
MOST_BYTES = 4 << 30  # of a reader's data: the machine shall live, too


def main() -> int:
    names = "\n".join(f"  {one.name:<16} {one.what}" for one in READERS.values())
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Give every reader of foreign bytes changed forms of good inputs. Only its own documented errors\n"
        "may come out, in bounded time and memory. An input that fails is kept in tests/fuzz/corpus, and\n"
        "tried by the tests from then on. Exit status 1 when there is one.",
        epilog=f"readers:\n{names}\n\nexample: python -m tests.fuzz manifests config --minutes 2",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("readers", nargs="*", metavar="READER", help="default: all")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all of them together (default 5)")
    parser.add_argument("--seed", type=int, help="begin with this number; default: another one each time")
    parser.add_argument("--input", type=Path, help="give READER this file alone, and show what it raises")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)  # of a reader's own process: its last input
    given = parser.parse_args()
    unknown = [name for name in given.readers if name not in READERS]
    if unknown:
        parser.error(f"no reader {', '.join(unknown)}; --help lists them")
    chosen = [READERS[name] for name in given.readers] or list(READERS.values())
    first = random.randrange(10**6) * 1000 if given.seed is None else given.seed
    seconds = 60 * given.minutes / len(chosen)
    logging.disable(logging.CRITICAL)
    if given.input:
        return show(chosen[0], given.input.read_bytes())
    if given.child:
        return child(chosen[0], seconds, first, given.child)
    print(f"{len(chosen)} readers, {seconds:.0f} s each, seed {first}", flush=True)
    return int(sum(try_one(one, seconds, first) for one in chosen) > 0)


def try_one(reader: Reader, seconds: float, first: int) -> bool:
    """Run a reader in a process of its own, and report. Returns whether it failed."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        last = Path(folder) / "last"
        command = [sys.executable, "-m", "tests.fuzz", reader.name, "--seed", str(first), "--child", str(last)]
        began = time.monotonic()
        try:
            done = subprocess.run(
                [*command, "--minutes", str(seconds / 60)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                timeout=seconds + LATE_SECONDS, check=False,
            )  # fmt: skip
            status, said = done.returncode, done.stdout
        except subprocess.TimeoutExpired:
            status, said = -1, "it hangs"
        spent = time.monotonic() - began
        if status == 0:
            print(f"{reader.name:<16} {said.strip()} inputs in {spent:.0f} s", flush=True)
            return False
        kept = keep(reader, last.read_bytes()) if last.exists() else None
        print(f"{reader.name:<16} FAILED (status {status}); the input is {kept}\n{said.rstrip()[-3000:]}", flush=True)
        return True


def child(reader: Reader, seconds: float, first: int, last: Path) -> int:
    """Hunt in this process, which may die of it; the input that it dies of is in ``last``."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    with last.open("r+b" if last.exists() else "w+b", buffering=0) as file:

        def note(data: bytes) -> None:
            file.seek(0)
            file.write(data)
            file.truncate()

        count, failure = hunt(reader, seconds, first, note)
        if failure is None:
            print(count)
            return 0
        note(failure.data)
    traceback.print_exception(failure.error, limit=-6)
    return 1


def keep(reader: Reader, data: bytes) -> Path:
    """Keep an input that failed as an example that the tests try."""
    path = CORPUS / reader.name / f"{CRASH}{hashlib.sha256(data).hexdigest()[:12]}"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def show(reader: Reader, data: bytes) -> int:
    """Give a reader one input, and let it raise."""
    with opened(reader) as read, bounded():
        read(data)
    print("fine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
