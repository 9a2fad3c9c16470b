"""What commands without an agent need: the configuration, one look at this machine."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from drabridge.config.loader import load
from drabridge.config.schema import Config
from drabridge.errors import HostError
from drabridge.inventory.model import Snapshot
from drabridge.inventory.source import Inventory

DEFAULT_CONFIG = Path("/etc/drabridge/config.yaml")
LOOK_SECONDS = 20.0


def add_config(parser: argparse.ArgumentParser) -> None:
    """The option that every such command has."""
    parser.add_argument(
        "--config", "-c", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help=f"default: {DEFAULT_CONFIG}"
    )


def configuration(arguments: argparse.Namespace) -> Config:
    return load(arguments.config)


def look(config: Config) -> tuple[Snapshot, Inventory]:
    """Enumerate once, as the agent does at its start."""

    async def first() -> tuple[Snapshot, Inventory]:
        inventory = Inventory(config)
        complete = asyncio.Event()
        task = asyncio.create_task(inventory.run(lambda snapshot: complete.set() if snapshot.complete else None))
        task.add_done_callback(lambda _: complete.set())
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await complete.wait()
        except TimeoutError:
            raise HostError(f"udev did not list this machine's devices within {LOOK_SECONDS:g} s") from None
        finally:
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome
        return inventory.current, inventory

    return asyncio.run(first())
