"""The simulated kubelet as a process of its own, driven by JSON lines on stdin and stdout.

    python -m drabridge.sim.kubelet.kubelet --root DIR

prints ``{"ready": true, ...}`` once its sockets are bound. Each line on stdin is a request such as
``{"id": 1, "do": "run_pod", "pod": {...a Kubernetes Pod...}}``; its answer carries the same ``id``, and ``result`` or
``error``. Answers may come out of order: a pod whose Allocate hangs does not stop ``status``. End of input stops the
kubelet. ``kill -9`` leaves sockets, checkpoint and ``sim-pods.json`` (what API server and container runtime would
still know), from which a new process on the same directory goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drabridge.sim.kubelet import pod_json
from drabridge.sim.kubelet.faults import ListFault
from drabridge.sim.kubelet.kubelet import SimKubelet
from drabridge.sim.kubelet.timings import Timings
from drabridge.sim.kubelet.topology import NONE, POLICIES
from drabridge.sim.releases import DEFAULT

PODS_FILE = "sim-pods.json"

Request = Mapping[str, Any]
Command = Callable[[Request], Awaitable[Any]]


class Control:
    """Requests by name. Every public coroutine is one; its docstring is its help."""

    def __init__(self, kubelet: SimKubelet) -> None:
        self._kubelet = kubelet
        self.commands: dict[str, Command] = {
            name: getattr(self, name)
            for name in (
                "run_pod",
                "finish_pod",
                "delete_pod",
                "restart_container",
                "restart",
                "status",
                "fault",
                "calls",
            )
        }

    async def run_pod(self, request: Request) -> Any:
        """``pod``: a Kubernetes Pod object. Answers its status."""
        pod = pod_json.pod_from_manifest(request["pod"])
        return {"uid": pod.uid, **pod_json.status_to_json(await self._kubelet.run_pod(pod))}

    async def finish_pod(self, request: Request) -> Any:
        """``uid``, ``failed``: its containers exit."""
        return pod_json.status_to_json(
            await self._kubelet.finish_pod(request["uid"], failed=bool(request.get("failed")))
        )

    async def delete_pod(self, request: Request) -> None:
        """``uid``, ``force``, ``linger_seconds``."""
        linger = float(request.get("linger_seconds", 0))
        await self._kubelet.delete_pod(request["uid"], force=bool(request.get("force")), linger_seconds=linger)

    async def restart_container(self, request: Request) -> None:
        """``uid``, ``container``."""
        await self._kubelet.restart_container(request["uid"], request["container"])

    async def restart(self, request: Request) -> None:
        """``downtime_seconds``: a new kubelet inside this process."""
        await self._kubelet.restart(downtime_seconds=float(request.get("downtime_seconds", 0)))

    async def status(self, request: Request) -> Any:
        """Resources, node status, pods, events, and why it crashed if it did."""
        kubelet = self._kubelet
        return {
            "crashed": kubelet.crashed,
            "resources": {
                name: {
                    "devices": sorted(view.devices),
                    "healthy": sorted(view.healthy),
                    "allocated": sorted(view.allocated),
                    "registered": view.registered,
                    "streams": view.streams,
                }
                for name, view in kubelet.resources.items()
            },
            "node": kubelet.node_status(),
            "published": kubelet.published_node_status,
            "pods": {uid: pod_json.status_to_json(status) for uid, status in kubelet.pods.items()},
            "events": [{"reason": e.reason, "message": e.message, "pod": e.pod} for e in kubelet.events],
            "log": kubelet.node.log,
        }

    async def fault(self, request: Request) -> None:
        """Any field of Faults, or ``frozen``: true or false. Raises ValueError for another name."""
        for name, value in request.items():
            match name:
                case "id" | "do":
                    continue
                case "frozen":
                    self._kubelet.freeze() if value else self._kubelet.thaw()
                case "podresources":
                    self._kubelet.faults.podresources = ListFault(value)
                case "refuse_register" | "hang_dial_back" | "list_delay_seconds" | "notify_error":
                    setattr(self._kubelet.faults, name, value)
                case _:
                    raise ValueError(f"unknown fault {name!r}")

    async def calls(self, request: Request) -> Any:
        """Every RPC so far, requests as text."""
        return [
            {
                "direction": c.direction,
                "method": c.method,
                "peer": c.peer,
                "request": str(c.request),
                "error": c.error,
                "seconds": c.seconds,
            }
            for c in self._kubelet.calls
        ]

    async def answer(self, line: bytes) -> dict[str, Any]:
        """One request line to one answer; a bad request is answered, never fatal."""
        request: Any = None
        try:
            request = json.loads(line)
            command = self.commands[request["do"]]
            return {"id": request.get("id"), "result": await command(request)}
        except KeyError as error:
            text = f"missing or unknown: {error}; requests: {', '.join(self.commands)}"
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        return {"id": request.get("id") if isinstance(request, dict) else None, "error": text}


def load_pods(kubelet: SimKubelet) -> None:
    """Take over what an earlier process left. Raises ValueError or KeyError for a file that is not ours."""
    path = kubelet.node.root / PODS_FILE
    if path.exists():
        records = map(pod_json.record_from_json, json.loads(path.read_text()))
        kubelet.node.pods.update({record.spec.uid: record for record in records})


def save_pods(kubelet: SimKubelet) -> None:
    """Atomically, whenever it differs."""
    path = kubelet.node.root / PODS_FILE
    text = json.dumps([pod_json.record_to_json(record) for record in kubelet.node.pods.values()])
    if not path.exists() or path.read_text() != text:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text)
        os.replace(temporary, path)


async def serve(kubelet: SimKubelet) -> None:
    """Until end of input."""
    control = Control(kubelet)
    load_pods(kubelet)
    await kubelet.start()
    reader = asyncio.StreamReader(limit=16 * 1024 * 1024)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )

    async def reply(line: bytes) -> None:
        answer = await control.answer(line)
        save_pods(kubelet)
        print(json.dumps(answer), flush=True)

    async def save_often() -> None:
        while True:
            await asyncio.sleep(0.05)
            save_pods(kubelet)

    print(json.dumps({"ready": True, "root": str(kubelet.node.root), "pid": os.getpid()}), flush=True)
    saver = asyncio.create_task(save_often())
    replies: set[asyncio.Task[None]] = set()
    try:
        while line := await reader.readline():
            if line.strip():
                task = asyncio.create_task(reply(line))
                replies.add(task)
                task.add_done_callback(replies.discard)
    finally:
        for task in (saver, *replies):
            task.cancel()
        await asyncio.gather(saver, *replies, return_exceptions=True)
        transport.close()
        save_pods(kubelet)
        await kubelet.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m drabridge.sim.kubelet.kubelet", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--root", type=Path, required=True, help="the kubelet's --root-dir")
    parser.add_argument("--device-plugin-dir", type=Path, help="default: ROOT/device-plugins")
    parser.add_argument("--node-name", default="node-a")
    parser.add_argument("--topology-policy", choices=POLICIES, default=NONE)
    parser.add_argument("--numa-nodes", type=int, default=1, help="how many NUMA nodes the machine has")
    parser.add_argument("--version", default=DEFAULT, help="of Kubernetes")
    parser.add_argument("--fast", action="store_true", help="short waits, for tests")
    parser.add_argument(
        "--timing", action="append", default=[], metavar="NAME=SECONDS", help="change one field of Timings"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    timings = Timings.fast() if options.fast else Timings()
    try:
        changes: dict[str, Any] = {name: float(value) for name, _, value in (c.partition("=") for c in options.timing)}
        timings = replace(timings, **changes)
    except (TypeError, ValueError) as error:
        parser.error(f"--timing: {error}")
    kubelet = SimKubelet(
        options.root,
        node_name=options.node_name,
        device_plugin_dir=options.device_plugin_dir,
        topology_policy=options.topology_policy,
        numa_nodes=tuple(range(options.numa_nodes)),
        version=options.version,
        timings=timings,
        seed=options.seed,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(kubelet))
    return 0
