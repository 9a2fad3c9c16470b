"""``python -m tests.bench.hand_overs``: how fast a device passes from pod to pod on a real node, and how it is divided.

Six pods with limits and six with claims at any time want four devices: a new one comes for each that has ended. Each
container writes when it starts and ends, and with which device; so the times are those of the workloads themselves.
Three ways to offer the devices: ``shared``; ``lanes``, half each; ``plugin``, to limits alone as any device plugin
does, which is kubelet's own measure. It starts a node where there is none, as ``python -m tests.cluster`` does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from drabridge.errors import ClusterError
from drabridge.kube.json_reader import ObjectIdentity, ObjectView
from drabridge.kube.watch import follow
from drabridge.offers.slices import lease_condition, lease_denied_condition
from tests.cluster.__main__ import UsageError, cluster
from tests.cluster.bed import (
    CLAIMS,
    CONFIG,
    DEVICES,
    DRIVER,
    NAMESPACE,
    PODS,
    RESOURCE,
    TEMPLATES,
    Json,
    at_the_beginning,
)
from tests.cluster.real_bed import RealBed, real
from tests.cluster.workloads import pod, spec_of, template
from tests.node.releases import DEFAULT

LIMITS, CLAIM = "limits", "claim"
WAITING = 6  # pods of each kind that have not ended, for four devices
POLL_SECONDS = 0.2
SETTLE_SECONDS = 10  # after the agent's start; all else that waits is as by default
STAMPS = "/tmp/drabridge-hand-overs"  # on the node
LANES: dict[str, Json] = {
    "shared": {"legacy": 0, "dra": 0, "shared": DEVICES},
    "lanes": {"legacy": DEVICES // 2, "dra": DEVICES - DEVICES // 2},
    "plugin": {"legacy": DEVICES, "dra": 0},
}
# Busybox' date knows no fractions of a second; adjtimex, which reads the clock only, says nanoseconds with STA_NANO.
_PROGRAM = """\
now() {{ adjtimex | awk '/status:/{{n=$2}} /tv_sec/{{s=$2}} /tv_usec/{{u=$2}} \
END{{if (int(n/8192)%2) u/=1000; printf "%d.%06d", s, u}}'; }}
set -- /dev/test-*
device=${{1#/dev/test-}}
echo "$(now) start $POD $device" >>/stamps/journal
sleep {seconds:g}
echo "$(now) end $POD $device" >>/stamps/journal
"""


class Stamp(NamedTuple):
    """A line of the containers' journal."""

    at: float
    verb: str
    pod: str
    device: str

    @property
    def kind(self) -> str:
        return self.pod.partition("-")[0]


class Job(NamedTuple):
    """One container's time with its device."""

    kind: str
    device: str
    start: float
    end: float


def jobs_of(journal: str) -> list[Job]:
    """Return what has started and ended, in the order of the starts."""
    words = (line.split() for line in journal.splitlines())
    stamps = [Stamp(float(one[0]), *one[1:]) for one in words if len(one) == 4]
    ends = {one.pod: one.at for one in stamps if one.verb == "end"}
    starts = sorted(one for one in stamps if one.verb == "start")
    return [Job(one.kind, one.device, one.at, ends[one.pod]) for one in starts if one.pod in ends]


def hand_overs(jobs: Iterable[Job]) -> dict[tuple[str, str], list[float]]:
    """Return the seconds from the end of a holder to the start of the next, by the kinds of both."""
    last: dict[str, Job] = {}
    found: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        if before := last.get(job.device):
            found.setdefault((before.kind, job.kind), []).append(job.start - before.end)
        last[job.device] = job
    return found


def shares(jobs: Sequence[Job]) -> dict[str, tuple[float, float]]:
    """Return for each kind the device-seconds that it ran, and those that it kept the devices from others.

    The latter begin with the end of the holder before.
    """
    last: dict[str, float] = {}
    found = dict.fromkeys((LIMITS, CLAIM), (0.0, 0.0))
    for job in jobs:
        ran, kept = found[job.kind]
        ran += job.end - job.start
        found[job.kind] = ran, kept + job.end - last.get(job.device, job.start)
        last[job.device] = job.end
    return found


class Claims:
    """Follows claims: when each was allocated, and told that it has its lease or not, as a watch shows it."""

    def __init__(self) -> None:
        self.view: ObjectView[Json] = ObjectView(dict)
        self.allocated: dict[str, float] = {}
        self.leased: dict[str, float] = {}
        self.told: list[float] = []
        """Seconds from an allocation to the condition."""
        self.denied = 0
        self._done: set[tuple[str, str]] = set()

    def listed(self, objects: tuple[Json, ...]) -> None:
        pass

    def changed(self, kind: str, obj: Json) -> None:
        uid, status, now = obj["metadata"]["uid"], obj.get("status") or {}, time.monotonic()
        if not status.get("allocation"):
            self.allocated.pop(uid, None)
            self._done = {one for one in self._done if one[0] != uid}
            return
        began = self.allocated.setdefault(uid, now)
        said = {one["type"] for each in status.get("devices") or () for one in each.get("conditions") or ()}
        for condition in said - {one[1] for one in self._done if one[0] == uid}:
            self._done.add((uid, condition))
            self.denied += condition == lease_denied_condition(DRIVER)
            if condition == lease_condition(DRIVER):
                self.told.append(now - began)
                for user in status.get("reservedFor") or ():
                    self.leased[user["uid"]] = now

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        pass

    def lost(self, error: ClusterError) -> None:
        pass


class Pods:
    """Follows pods: how long each is not bound after its claim was told that it has its lease."""

    def __init__(self, claims: Claims) -> None:
        self.view: ObjectView[Json] = ObjectView(dict)
        self.bound: list[float] = []
        self._claims = claims

    def listed(self, objects: tuple[Json, ...]) -> None:
        pass

    def changed(self, kind: str, obj: Json) -> None:
        told = self._claims.leased.pop(obj["metadata"]["uid"], None) if obj["spec"].get("nodeName") else None
        if told is not None:
            self.bound.append(time.monotonic() - told)

    def unreadable(self, kind: str, identity: ObjectIdentity) -> None:
        pass

    def lost(self, error: ClusterError) -> None:
        pass


class Load:
    """Pods that come, run for some seconds, and end; as many of each kind at any time."""

    def __init__(self, bed: RealBed, kinds: Sequence[str], seconds: float) -> None:
        self._bed = bed
        self._kinds = kinds
        self._seconds = seconds
        self._serial = 0
        self.failed: Counter[tuple[str, str]] = Counter()

    async def run(self, until: float) -> None:
        """Run until that moment (monotonic), then take away what is left."""
        while time.monotonic() < until:
            await self._look(make=True)
            await asyncio.sleep(POLL_SECONDS)
        while await self._look(make=False):
            await asyncio.sleep(POLL_SECONDS)

    async def _look(self, *, make: bool) -> int:
        pods = [one for one in await self._bed.workload_pods() if not one["metadata"].get("deletionTimestamp")]
        alive: Counter[str] = Counter()
        for one in pods:
            name, status = one["metadata"]["name"], one["status"]
            kind = name.partition("-")[0]
            over = status.get("phase") in ("Succeeded", "Failed")
            if status.get("phase") == "Failed":
                self.failed[kind, status.get("reason", "")] += 1
            if over or not make:
                await self._bed.api.delete(PODS, name, namespace=NAMESPACE)
            else:
                alive[kind] += 1
        for _ in range(WAITING if make else 0):
            for kind in self._kinds:
                if alive[kind] < WAITING:
                    alive[kind] += 1
                    await self._make(kind)
        return len(pods)

    async def _make(self, kind: str) -> None:
        self._serial += 1
        name = f"{kind}-{self._serial}"
        resources: Json = {"limits": {RESOURCE: "1"}} if kind == LIMITS else {"claims": [{"name": "device"}]}
        container: Json = {
            "name": "main",
            "image": self._bed.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", _PROGRAM.format(seconds=self._seconds)],
            "env": [{"name": "POD", "value": name}],
            "resources": resources,
            "volumeMounts": [{"name": "stamps", "mountPath": "/stamps"}],
        }
        more: Json = {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "volumes": [{"name": "stamps", "hostPath": {"path": STAMPS, "type": "DirectoryOrCreate"}}],
        }
        if kind == CLAIM:
            more["resourceClaims"] = [{"name": "device", "resourceClaimTemplateName": "each"}]
        await self._bed.api.create(PODS, pod(name, spec_of(self._bed.node, container, **more)), namespace=NAMESPACE)


async def measure(bed: RealBed, way: str, job_seconds: float, seconds: float, say: Callable[[str], None]) -> Json:
    """Load the node for ``seconds``, and say what was seen. Returns it as well."""
    journal = bed.own("read the stamps").node(bed.node_object).disk(STAMPS) / "journal"
    journal.unlink(missing_ok=True)
    kinds = (LIMITS,) if way == "plugin" else (LIMITS, CLAIM)
    load, claims = Load(bed, kinds, job_seconds), Claims()
    pods = Pods(claims)
    await bed.api.create(TEMPLATES, template("each"), namespace=NAMESPACE)
    following = [
        asyncio.create_task(follow(bed.api, CLAIMS, "", claims, namespace=NAMESPACE)),
        asyncio.create_task(follow(bed.api, PODS, "", pods, namespace=NAMESPACE)),
    ]
    try:
        await load.run(time.monotonic() + seconds)
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await bed.api.delete(TEMPLATES, "each", namespace=NAMESPACE)
    jobs = jobs_of(journal.read_text())
    found = {
        "way": way,
        "job_seconds": job_seconds,
        "seconds": seconds,
        "jobs": Counter(job.kind for job in jobs),
        "hand_overs": {f"{a} to {b}": sorted(times) for (a, b), times in sorted(hand_overs(jobs).items())},
        "shares": shares(jobs),
        "failed": {" ".join(key): count for key, count in load.failed.items()},
        "denied": claims.denied,
        "told": sorted(claims.told),
        "bound": sorted(pods.bound),
    }
    for line in lines_of(found):
        say(line)
    return found


def _quantiles(times: Sequence[float]) -> str:
    ordered = sorted(times)
    p90 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]
    least, p50, most = ordered[0], statistics.median(ordered), ordered[-1]
    return f"p50 {p50:6.2f} s  p90 {p90:6.2f} s  least {least:6.2f} s  most {most:6.2f} s  of {len(ordered)}"


def lines_of(found: Json) -> list[str]:
    """Return what was measured, for people."""
    lines = [f"{found['way']}, jobs of {found['job_seconds']:g} s, for {found['seconds']:.0f} s: {dict(found['jobs'])}"]
    lines += [f"  {name:<18} {_quantiles(times)}" for name, times in found["hand_overs"].items()]
    for index, what in enumerate(("running", "kept from others")):
        total = sum(one[index] for one in found["shares"].values()) or 1.0
        each = (f"{kind} {one[index]:.0f} ({one[index] / total:.0%})" for kind, one in found["shares"].items())
        lines.append(f"  device-seconds {what}: {', '.join(each)}")
    lines.append(f"  pods that failed: {found['failed'] or 'none'}; leases denied: {found['denied']}")
    for what, name in (("allocated to told", "told"), ("told to bound", "bound")):
        if found[name]:
            lines.append(f"  {what:<18} {_quantiles(found[name])}")
    return lines


async def run(
    ways: Sequence[str], jobs: Sequence[float], seconds: float, say: Callable[[str], None] = print
) -> list[Json]:
    """Measure every way with jobs of every length."""
    found = []
    for way in ways:
        resource = {**CONFIG["resources"][0], "lanes": LANES[way]}
        config: Json = {**CONFIG, "safety": {"settleSeconds": SETTLE_SECONDS}, "resources": [resource]}
        async with real(config) as bed:
            await bed.install()
            await at_the_beginning(bed)
            found += [await measure(bed, way, job_seconds, seconds, say) for job_seconds in jobs]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hand_overs", description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default=DEFAULT, help="of the node that is started (default: %(default)s)")
    parser.add_argument("--ways", default=",".join(LANES), help="default: %(default)s")
    parser.add_argument("--jobs", default="1,5,30", help="seconds of a job (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=180.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all times there")
    arguments = parser.parse_args()
    ways = arguments.ways.split(",")
    if unknown := set(ways) - LANES.keys():
        parser.error(f"--ways: {', '.join(sorted(unknown))} is none of {', '.join(LANES)}")
    try:
        with cluster(os.environ, arguments.release) as environment:
            os.environ.update(environment)
            found = asyncio.run(run(ways, [float(one) for one in arguments.jobs.split(",")], arguments.seconds))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
