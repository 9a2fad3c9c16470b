"""What commands without an agent need: the configuration, one look at this machine."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from drabridge.config.loader import load
from drabridge.config.schema import Config, Resource
from drabridge.errors import ConfigError, HostError
from drabridge.inventory.inventory import Inventory
from drabridge.inventory.model import Snapshot

DEFAULT_CONFIG = Path("/etc/drabridge/config.yaml")
LOOK_SECONDS = 20.0


def add_config(parser: argparse.ArgumentParser) -> None:
    """The option that every such command has."""
    parser.add_argument(
        "--config", "-c", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help=f"default: {DEFAULT_CONFIG}"
    )


def configuration(arguments: argparse.Namespace) -> Config:
    return load(arguments.config)


def chosen(config: Config, name: str | None) -> tuple[Resource, ...]:
    """The resources of ``--resource``: all without it. Raises ConfigError for a name that there is not."""
    found = tuple(resource for resource in config.resources if name in (None, resource.name))
    if not found and name is not None:
        known = ", ".join(resource.name for resource in config.resources) or "none"
        raise ConfigError(f"the configuration has no resource {name}", hint=f"It has {known}")
    return found


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
