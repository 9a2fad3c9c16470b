"""Run the simulated kubelet as a process of its own, which can be stopped and killed as a real one.

    python -m drabridge.sim.kubelet.control ROOT

prints ``{"ready": true}`` once its sockets are bound. Each line on stdin is a request, ``{"do": "run_pod", "pod": {...a
Kubernetes Pod...}}`` or ``{"do": "status"}``. Its answer is a line with the request's ``id`` and the ``result``. End of
input stops the kubelet.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.pod_json import pod_from_manifest
from drabridge.sim.kubelet.timings import Timings


async def answer(kubelet: SimKubelet, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "run_pod":
        status = await kubelet.run_pod(pod_from_manifest(request["pod"]))
        return {"phase": status.phase, "message": status.message}
    return {
        "crashed": kubelet.crashed,
        "resources": {name: {"streams": view.streams} for name, view in kubelet.resources.items()},
        "published": kubelet.node.published,
    }


async def serve(root: Path) -> None:
    """Answer one request after the other, until the end of input."""
    async with SimKubelet(root, timings=Timings.fast()) as kubelet:
        print(json.dumps({"ready": True}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            request = json.loads(line)
            result = await answer(kubelet, request)
            print(json.dumps({"id": request["id"], "result": result}), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
