"""Read the configuration and this machine's devices, for commands that need no running agent."""

from __future__ import annotations

import asyncio

from drabridge.config.schema import Config, Resource
from drabridge.errors import ConfigError, HostError
from drabridge.inventory.devices import Snapshot
from drabridge.inventory.inventory import Inventory

ENUMERATE_SECONDS = 20.0


def resources_named(config: Config, name: str | None) -> tuple[Resource, ...]:
    """Return the resource of this name, or all without a name. Raises ConfigError for an unknown name."""
    found = tuple(resource for resource in config.resources if name in (None, resource.name))
    if not found and name is not None:
        known = ", ".join(resource.name for resource in config.resources) or "none"
        raise ConfigError(f"the configuration has no resource {name}", hint=f"It has {known}")
    return found


def enumerate_once(config: Config) -> tuple[Snapshot, Inventory]:
    """Enumerate this machine's devices once; return the snapshot and its inventory.

    It is what the agent does at its start. Raises HostError if udev does not answer within ENUMERATE_SECONDS.
    """

    async def first() -> tuple[Snapshot, Inventory]:
        inventory = Inventory(config)
        complete = asyncio.Event()
        task = asyncio.create_task(inventory.run(lambda snapshot: complete.set() if snapshot.complete else None))
        task.add_done_callback(lambda _: complete.set())
        try:
            async with asyncio.timeout(ENUMERATE_SECONDS):
                await complete.wait()
        except TimeoutError:
            raise HostError(f"udev did not list this machine's devices within {ENUMERATE_SECONDS:g} s") from None
        finally:
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(outcome, Exception):
            raise outcome
        return inventory.current, inventory

    return asyncio.run(first())
