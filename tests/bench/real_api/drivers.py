"""Our driver for several nodes in a process of its own: ``python -m tests.bench.real_api.drivers NODE=KUBECONFIG ...``.

Prints the nodes' sockets as JSON once all serve; ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from drabridge.kube.client import KubernetesCluster
from tests.support.dra_node import DraNode, gpu
from tests.support.waiting import short_directory

DEVICES = 8


@contextlib.asynccontextmanager
async def drivers(kubeconfigs: Mapping[str, Path]) -> AsyncIterator[dict[str, str]]:
    """Start such a process for node -> kubeconfig; yields node -> socket, and ends it with the block.

    Raises RuntimeError if it fails.
    """
    words = [sys.executable, "-m", __name__, *(f"{node}={file}" for node, file in kubeconfigs.items())]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not (told := await process.stdout.readline()):
            raise RuntimeError(f"the drivers ended with exit status {await process.wait()}")
        yield json.loads(told)
    finally:
        process.stdin.close()
        await process.wait()


async def _serve(kubeconfigs: Mapping[str, Path]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        sockets = {}
        for name, file in kubeconfigs.items():
            root = stack.enter_context(short_directory())
            node = DraNode(root, None, devices=tuple(map(gpu, range(DEVICES))), name=name)
            await node.start(cluster=KubernetesCluster.from_kubeconfig(file))
            stack.push_async_callback(node.stop)
            sockets[name] = str(node.service)
        print(json.dumps(sockets), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve({name: Path(file) for name, file in (word.split("=", 1) for word in sys.argv[1:])}))
