"""Other device plugins on the node, as processes of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.cluster.bed import NODES, Bed, wait_for
from tests.cluster.real_bed import RealBed

DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins/"


@contextlib.asynccontextmanager
async def plugin(command: Sequence[str | Path], **variables: str) -> AsyncIterator[None]:
    """Another device plugin on the node, for as long as the block takes."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **variables}, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def plugins(bed: Bed) -> Path:
    if bed.kubelet_directory is None:
        pytest.skip("a plugin cannot be started there: the node's files are out of reach")
    return bed.kubelet_directory / "device-plugins"


def on_node(bed: Bed, path: str) -> Path:
    """A path of the node as this process can open it. Skips the test where the node is out of reach."""
    assert isinstance(bed, RealBed)
    return bed.own("open the node's files").node(bed.node_object).path(path)


def beside(bed: Bed) -> list[str]:
    """The words before a command that is to see the node's files and network."""
    assert isinstance(bed, RealBed)
    return bed.own("run programs there").node(bed.node_object).beside()


async def allocatable(bed: Bed, resource: str, number: int) -> None:
    async def there() -> bool:
        node = await bed.api.get(NODES, bed.node_object)
        return bool(node["status"]["allocatable"].get(resource, "0") == str(number))

    await wait_for(bed, f"{number} of {resource} to be allocatable", there)
