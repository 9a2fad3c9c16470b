"""Pods on a real node, from their creation to Running as a client's watch shows both: our agent's and the Go programs'.

All of them serve at once, and the pods come one after the other, in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from types import FrameType

from drabridge.errors import ClusterError, DrabridgeError
from drabridge.kube.api import NotFoundError
from drabridge.kube.json_reader import ObjectIdentity, ObjectView
from drabridge.kube.watch import follow
from tests.bench.core import Benchmark, NotHere
from tests.bench.peers import programs
from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.__main__ import UsageError, cluster
from tests.cluster.bed import CLAIMS, CLASSES, NAMESPACE, PODS, SLICES, Json, at_the_beginning, wait_for
from tests.cluster.other_plugins import allocatable
from tests.cluster.real_bed import WANTED, RealBed, real

ROUNDS = 30
PATIENCE_SECONDS = 60.0
GO_CLASS = "drabridge-bench-go"
LIMITS, CLAIMS_API = "limits", "claims"
OURS, GO = "ours", "Go"
KINDS = ((LIMITS, OURS), (LIMITS, GO), (CLAIMS_API, OURS), (CLAIMS_API, GO))
PROGRAM = "trap 'exit 0' TERM; sleep 3600 & wait"

Starts = dict[tuple[str, str], list[float]]


class Watched:
    """When each pod was added, and when it ran."""

    def __init__(self) -> None:
        self.added: dict[str, float] = {}
        self.ran: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        self.begun = asyncio.Event()
        self.view: ObjectView[Json] = ObjectView(dict)

    def listed(self, objects: tuple[Json, ...]) -> None:
        """The watch begins here: what comes from now on is timed."""
        self.begun.set()

    def changed(self, kind: str, obj: Json) -> None:
        name, phase = str(obj["metadata"]["name"]), str(obj.get("status", {}).get("phase"))
        if kind == "ADDED":
            self.added.setdefault(name, time.monotonic())
        elif kind == "MODIFIED" and phase == "Running":
            self.ran.setdefault(name, time.monotonic())
        elif phase in ("Failed", "Succeeded"):
            self.ended[name] = str(obj["status"].get("message") or phase)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        """It is not timed."""

    def lost(self, error: ClusterError) -> None:
        """A pod that is under way is waited for in vain, which ends the run."""


def _pod(bed: RealBed, name: str, api: str, program: str) -> Json:
    resources: Json = {"claims": [{"name": "device"}]}
    more: Json = {"resourceClaims": [{"name": "device", "resourceClaimName": name}]}
    if api == LIMITS:
        resources, more = {"limits": {b.RESOURCE if program == OURS else programs.RESOURCE: "1"}}, {}
    container = {
        "name": "main",
        "image": bed.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", PROGRAM],
        "resources": resources,
    }
    return w.pod(name, w.spec_of(bed.node, container, volumes=[], **more))


async def _start(bed: RealBed, watched: Watched, number: int, api: str, program: str) -> float:
    """Seconds from creation to Running of one pod, which is gone on return."""
    name = f"{api}-{program.lower()}-{number}"
    if api == CLAIMS_API:
        request = w.request(device_class=b.CLASS if program == OURS else GO_CLASS)
        await bed.api.create(CLAIMS, w.claim(name, request), namespace=NAMESPACE)
    await bed.api.create(PODS, _pod(bed, name, api, program), namespace=NAMESPACE)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while name not in watched.ran:
            assert name not in watched.ended, f"{name}: {watched.ended[name]}"
            await asyncio.sleep(0.02)
    await bed.api.delete(PODS, name, namespace=NAMESPACE)

    async def gone() -> bool:
        with contextlib.suppress(NotFoundError):
            await bed.api.get(PODS, name, namespace=NAMESPACE)
            return False
        return True

    await wait_for(bed, f"pod {name} to be gone", gone)
    if api == CLAIMS_API:
        await bed.api.delete(CLAIMS, name, namespace=NAMESPACE)
    return watched.ran[name] - watched.added[name]


@contextlib.asynccontextmanager
async def _go_programs(bed: RealBed, directory: Path) -> AsyncIterator[None]:
    """Both of them on kubelet's own directories, known to it and to the API server."""
    kubelet, kubeconfig = bed.kubelet_directory, Path(os.environ["KUBECONFIG"]).expanduser()
    assert kubelet is not None
    selector = {"cel": {"expression": f"device.driver == '{programs.DRIVER}'"}}
    device_class = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": GO_CLASS}}
    sockets = kubelet / "plugins" / programs.DRIVER
    sockets.mkdir(parents=True, exist_ok=True)
    beside = bed.own("run programs there").node(bed.node_object).beside()
    words: list[str | Path] = [*beside, programs.find("dra-test-driver"), "kubelet-plugin", "--kubeconfig", kubeconfig]
    words += ["--node-name", bed.node_object, "--num-devices", "2", programs.METADATA]
    plugin = {"PLUGIN_SOCK_DIR": f"{kubelet / 'device-plugins'}/"}
    try:
        await bed.api.create(CLASSES, {**device_class, "spec": {"selectors": [selector]}})
        with (
            programs.running([programs.find("sample-device-plugin")], directory / "plugin.log", plugin),
            programs.running(words, directory / "driver.log"),
        ):
            await allocatable(bed, programs.RESOURCE, len(programs.DEVICES))

            async def published() -> bool:
                return bool((await bed.api.list(SLICES, field_selector=f"spec.driver={programs.DRIVER}")).items)

            await wait_for(bed, "the test driver's slices", published)
            yield
    finally:
        for one in (await bed.api.list(SLICES, field_selector=f"spec.driver={programs.DRIVER}")).items:
            await bed.api.delete(SLICES, one["metadata"]["name"])
        with contextlib.suppress(DrabridgeError):
            await bed.api.delete(CLASSES, GO_CLASS)
        shutil.rmtree(sockets, ignore_errors=True)


async def pod_starts() -> Starts:
    """Seconds of each pod, by API and program. Raises NotHere without a cluster whose node is this machine."""
    if missing := [name for name in (*WANTED, "DRABRIDGE_TEST_CLUSTER") if not os.environ.get(name)]:
        raise NotHere(f"no cluster on this machine: {', '.join(missing)} not set")
    for program in ("sample-device-plugin", "dra-test-driver"):
        programs.find(program)
    found: Starts = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(prefix="drabench") as directory:
        async with real() as bed:
            await bed.install()
            await at_the_beginning(bed)
            async with _go_programs(bed, Path(directory)):
                watched = Watched()
                following = asyncio.create_task(follow(bed.api, PODS, f"metadata.namespace={NAMESPACE}", watched))
                try:
                    await asyncio.wait_for(watched.begun.wait(), PATIENCE_SECONDS)
                    for api, program in KINDS:  # the first of each finds nothing warm
                        await _start(bed, watched, ROUNDS, api, program)
                    for number in range(ROUNDS):
                        first = number % len(KINDS)
                        for api, program in KINDS[first:] + KINDS[:first]:
                            found[api, program].append(await _start(bed, watched, number, api, program))
                finally:
                    following.cancel()
    return found


@cache
def measured(start_cluster: bool) -> Starts:
    """What :func:`pod_starts` returns. ``start_cluster``: on a node that is started for it, where there is none."""
    if not start_cluster:
        return asyncio.run(pod_starts())
    signal.signal(signal.SIGTERM, _interrupt)  # or the node would outlive us
    try:
        with cluster(os.environ) as environment:
            os.environ.update(environment)
            return asyncio.run(pod_starts())
    except UsageError as error:
        raise NotHere(str(error).partition("\n")[0]) from error


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ratio(api: str, start_cluster: bool) -> float:
    found = measured(start_cluster)
    return statistics.median(found[api, OURS]) / statistics.median(found[api, GO])


def lines(found: Starts) -> Iterator[str]:
    """What stands behind the ratios, for people."""
    for (api, program), seconds in found.items():
        ordered = sorted(seconds)
        yield (
            f"create to Running, {api}, {program}: {len(ordered)} pods, median {statistics.median(ordered):.3f} s, "
            f"mean {statistics.mean(ordered):.3f} s, fastest {ordered[0]:.3f} s, slowest {ordered[-1]:.3f} s"
        )


def benchmarks(*, start_cluster: bool = False) -> list[Benchmark]:
    return [
        Benchmark("pod_start_ratio_limits", "x", 1.05, lambda: _ratio(LIMITS, start_cluster)),
        Benchmark("pod_start_ratio_claims", "x", 1.05, lambda: _ratio(CLAIMS_API, start_cluster)),
    ]
