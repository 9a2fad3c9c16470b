"""The steps, and what they need of a node. A step's docstring is what is expected; it returns what was seen."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from drabridge.errors import ClusterError
from drabridge.sim.cluster import RUN_SECONDS_ANNOTATION
from tests.bench.processes import children
from tests.cluster import workloads as w
from tests.cluster.bed import (
    CLAIMS,
    MANAGER,
    NAMESPACE,
    NAMESPACES,
    NODES,
    PODS,
    SLICES,
    Bed,
    Json,
    clear,
    failed,
    wait_for,
)
from tests.cluster.real_bed import LABELS
from tests.cluster.steps import deleted, event, has_phase, phase, running
from tests.node.errors import NodeError
from tests.soak.real.bed import anonymous_kib
from tests.support.agent_process import AgentProcess, metric

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy/examples/nvidia-gpu.yaml"
MANIFESTS = ROOT / "tests/dra/nvidia_manifests"
GPU, DRIVER = "nvidia.com/gpu", "gpu.nvidia.com"
DRA_DRIVER = "gpu-kubelet-plugin"  # NVIDIA's program
CLASS = DRIVER  # NVIDIA's own name
AT_ONCE_SECONDS = 60.0  # a second or two; 12 to 15 after `turns`, when it is a side's turn; a doubt takes 120
PENDING_SECONDS = 3.0
SMALL_MIB = 48.0  # agent and NVML's process, anonymous
HELD_MIB = 512  # kernel.py's
NVML = """
import json, pynvml as n
n.nvmlInit()
found = []
for index in range(n.nvmlDeviceGetCount()):
    handle = n.nvmlDeviceGetHandleByIndex(index)
    memory = n.nvmlDeviceGetMemoryInfo(handle)
    major, minor = n.nvmlDeviceGetCudaComputeCapability(handle)
    found.append({"uuid": n.nvmlDeviceGetUUID(handle), "name": n.nvmlDeviceGetName(handle), "total": memory.total,
                  "used": memory.used, "capability": f"{major}.{minor}.0"})
print(json.dumps({"driver": n.nvmlSystemGetDriverVersion(), "gpus": found}))
"""


class SkipStep(Exception):
    """Why a step cannot be tried here."""


class Ground(abc.ABC):
    """A node with a GPU, and an agent that is not there yet."""

    bed: Bed
    agent: AgentProcess
    cdi_file: Path
    """nvidia.yaml, as this process can open it."""
    environment: dict[str, str]
    """In which Python finds NVML."""
    python = sys.executable
    kernel = Path(__file__).with_name("kernel.py")
    volumes: dict[str, str]
    """More of the node's folders for containers: name -> path, the same inside."""
    before = ""
    """The pod that another plugin served."""
    theirs: list[Json] = []  # noqa: RUF012 - replaced, never changed
    """The devices in the slices of NVIDIA's DRA driver."""
    ours: list[Json] = []  # noqa: RUF012 - likewise

    def other_driver(self) -> contextlib.AbstractAsyncContextManager[str]:
        """NVIDIA's DRA driver, once its slices are there; its name. Raises SkipStep."""
        raise SkipStep(f"there is no stand-in for {DRA_DRIVER}")

    @abc.abstractmethod
    def other_plugin(self) -> contextlib.AbstractAsyncContextManager[str]:
        """NVIDIA's device plugin, or one in its place; its name. Raises SkipStep."""

    @abc.abstractmethod
    async def generate(self) -> str:
        """Write ``cdi_file``; by what. Raises SkipStep."""

    @abc.abstractmethod
    def pid(self) -> int:
        """The agent's number."""

    @abc.abstractmethod
    async def said(self, pod: str) -> str:
        """What the pod's kernel has printed."""

    def nvml(self) -> Json:
        """What NVML says of the driver and each GPU. Raises SkipStep where it does not answer."""
        words = [sys.executable, "-c", NVML]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise SkipStep(f"NVML does not answer: {done.stderr.strip().splitlines()[-1]}")
        return dict(json.loads(done.stdout))

    # --- pods that run the kernel -----------------------------------------------------------------------------------

    async def pod(self, name: str, *words: object, claim: Json | None = None, config: tuple[Json, ...] = ()) -> None:
        """Start ``kernel.py`` with these words, by limits or with a claim for this request with these parameters."""
        resources: Json = {"limits": {GPU: "1"}}
        more: Json = {}
        if claim is not None:
            await self.bed.api.create(CLAIMS, w.claim(name, claim, config=config), namespace=NAMESPACE)
            resources = {"claims": [{"name": "device"}]}
            more = {"resourceClaims": [{"name": "device", "resourceClaimName": name}]}
        container = w.container(self.bed.image, resources)
        container["command"] = [self.python, str(self.kernel), *map(str, words)]
        container["volumeMounts"] += [{"name": one, "mountPath": path} for one, path in self.volumes.items()]
        spec = w.spec_of(self.bed.node, container, **more)
        spec["volumes"] += [{"name": one, "hostPath": {"path": path}} for one, path in self.volumes.items()]
        pod = w.pod(name, spec)
        pod["metadata"]["annotations"] = {RUN_SECONDS_ANNOTATION: str(words[1] if words[1:] else 0)}  # the simulation's
        await self.bed.api.create(PODS, pod, namespace=NAMESPACE)

    async def ended(self, name: str) -> str:
        """The first line of a pod that succeeds."""

        async def over() -> str:
            found = await phase(self.bed, name)
            return found if found in ("Succeeded", "Failed", "gone") else ""

        ended = await wait_for(self.bed, f"pod {name} to end", over)
        said = (await self.said(name)).partition("\n")[0]
        if ended != "Succeeded" or " on GPU-" not in said:
            raise await failed(self.bed, f"pod {name} {ended.lower()}: {said or 'it said nothing'}")
        return said

    async def done(self, name: str) -> str:
        """Likewise, and the agent knows that it has ended: the first pod of the next step need not wait for that."""
        said = await self.ended(name)

        async def known() -> bool:
            return name not in await self.holders()

        await wait_for(self.bed, f"the GPU of {name} to be free", known)
        return said

    async def rows(self) -> list[Json]:
        """What status says of each GPU."""
        return list((await self.agent.status())["devices"])

    async def holders(self) -> list[str]:
        """Names of the pods and claims that have a GPU."""
        return [one.get("pod", one.get("claim")) for row in await self.rows() for one in row["holders"]]

    async def free(self) -> bool:
        """Whether every GPU is offered to both APIs."""
        return all(row["owner"] == "none" and row["offered"] == ["legacy", "dra"] for row in await self.rows())


async def devices(g: Ground) -> list[Json]:
    """Those in the slices of the driver's name."""
    slices = (await g.bed.api.list(SLICES, field_selector=f"spec.driver={DRIVER}")).items
    return [device for one in slices for device in one["spec"].get("devices") or ()]


def config() -> Json:
    """The shipped profile, with every GPU for limits and for claims."""
    found: Json = yaml.safe_load(EXAMPLE.read_text())
    found["resources"][0]["lanes"] = {"shared": "*"}
    return found


def _request(*selectors: str) -> Json:
    return w.request(device_class=CLASS, selectors=[{"cel": {"expression": one}} for one in selectors])


# --- the steps ------------------------------------------------------------------------------------------------------


async def driver(g: Ground) -> str:
    """NVIDIA's DRA driver gives a claim the GPU, and its kernel runs. The step ``attributes`` compares its slices."""
    async with g.other_driver() as name:
        g.theirs = await devices(g)
        try:
            await g.pod("theirs", "run", 0, claim=_request())
            said = await g.ended("theirs")
        finally:
            await clear(g.bed)  # while the driver is there, as kubelet needs it for the claim
    return f"{name}: {said}"


async def plugin(g: Ground) -> str:
    """NVIDIA's device plugin gives a pod with limits the GPU, and its kernel runs."""
    async with g.other_plugin() as name:
        await g.pod("before", "run", 3600)
        await running(g.bed, "before")
        g.before = "before"
        said = (await g.said("before")).partition("\n")[0]
        assert said.startswith("kernel ran on "), said
    return f"{name}: {said}"


async def takeover(g: Ground) -> str:
    """The agent starts in the plugin's place, names that pod as the GPU's holder, and the pod runs on."""
    began = time.monotonic()
    await g.bed.install()
    await wait_for(g.bed, "the agent to be ready", g.bed.ready)
    seconds = time.monotonic() - began
    if not g.before:
        raise SkipStep(f"no pod runs; the agent was ready after {seconds:.1f} s")

    async def named() -> bool:
        return await g.holders() == ["before"]

    await wait_for(g.bed, "the pod to be named as holder", named)
    await running(g.bed, "before")
    assert not await g.bed.restarted("before")
    return f"ready after {seconds:.1f} s; the GPU's holder is pod before, which runs"


async def limits(g: Ground) -> str:
    """A pod with limits runs the kernel on a GPU that NVML knows."""
    await g.pod("limits", "run", 0)
    said = await g.done("limits")
    with contextlib.suppress(SkipStep):
        assert any(one["uuid"] in said for one in g.nvml()["gpus"]), said
    return said


async def attributes(g: Ground) -> str:
    """Each attribute and capacity in the slices of NVIDIA's driver has the same value in ours."""
    if not g.theirs:
        raise SkipStep("NVIDIA's driver has published no slice here")
    await wait_for(g.bed, "the GPU to be offered", g.free)
    g.ours = await devices(g)
    ours = {_uuid(one): one for one in g.ours}
    other, more = [], set()
    for theirs in g.theirs:
        for kind in ("attributes", "capacity"):
            here = ours.get(_uuid(theirs), {}).get(kind) or {}
            there = theirs.get(kind) or {}
            other += [
                f"{name}: {value}, ours {here.get(name)}" for name, value in there.items() if here.get(name) != value
            ]
            more |= {*here} - {*there}
    assert not other, "; ".join(other)
    names = [name for kind in ("attributes", "capacity") for name in g.theirs[0].get(kind) or ()]
    return f"the same: {', '.join(sorted(names))}; ours has also: {', '.join(sorted(more)) or 'nothing'}"


def _uuid(device: Json) -> str:
    return str(device["attributes"]["uuid"]["string"])


async def claims(g: Ground) -> str:
    """A claim with NVIDIA's class, product, capability and memory gets the GPU; one for another product waits."""
    (gpu, *_) = g.nvml()["gpus"]
    of = f'device.attributes["{DRIVER}"]'
    await g.pod("another", "run", 0, claim=_request(f'{of}.productName == "another"'))
    selectors = (
        f'{of}.productName == "{gpu["name"]}"',
        f'{of}.cudaComputeCapability.compareTo(semver("{gpu["capability"]}")) >= 0',
        f'device.capacity["{DRIVER}"].memory.compareTo(quantity("{gpu["total"] >> 30}Gi")) >= 0',
    )
    await g.pod("claim", "run", 0, claim=_request(*selectors))
    said = await g.done("claim")
    await asyncio.sleep(PENDING_SECONDS)
    assert await has_phase(g.bed, "another", "Pending"), "a claim for another product was served"
    return f"{gpu['name']}, {gpu['capability']}, {gpu['total'] >> 20} MiB: {said}"


async def parameters(g: Ground) -> str:
    """A claim with NVIDIA's parameters runs, or an Event of its pod says why not, as docs/nvidia.md has it."""
    await g.pod("sliced", "run", 0, claim=_request(), config=_parameters("time-slicing")[0])
    found = [await g.done("sliced")]
    for name in ("time-slicing-long", "mps", "unknown-field"):
        await clear(g.bed)
        given, sentence = _parameters(name)
        await g.pod(name, "run", 0, claim=_request(), config=given)
        told = await event(g.bed, name, "FailedPrepareDynamicResources", sentence)
        found.append(f"{name}: {told['message']}")
    return "; ".join(found)


def _parameters(name: str) -> tuple[tuple[Json, ...], str]:
    """The parameters of one of the manifests, and the sentence that refuses it."""
    text = (MANIFESTS / f"{name}.yaml").read_text()
    template = next(one for one in yaml.safe_load_all(text) if one["kind"] == "ResourceClaimTemplate")
    (head,) = re.findall(r"^# pods: (.*)$", text, re.MULTILINE)
    config = template["spec"]["spec"]["devices"]["config"]
    return tuple({**one, "requests": ["one"]} for one in config), yaml.safe_load(head)["shared"]


async def turns(g: Ground) -> str:
    """Pods with limits and with claims that start together all get the GPU, never two at once."""
    began = time.monotonic()
    names = ["turn-l1", "turn-c1", "turn-l2", "turn-c2"]
    for name in names:
        await g.pod(name, "run", 1, claim=_request() if "-c" in name else None)
    for name in names:
        await g.done(name)
    assert not await g.bed.conflicts(), await g.bed.conflicts()
    return f"four pods of 1 s in {time.monotonic() - began:.1f} s"


async def short(g: Ground) -> str:
    """After a job of one second the GPU is free for both APIs at once, and a claim gets it."""
    await g.pod("job", "run", 1)
    await g.ended("job")
    began = time.monotonic()
    await wait_for(g.bed, "the GPU to be free after a job of one second", g.free, AT_ONCE_SECONDS)
    seconds = time.monotonic() - began
    await g.pod("next", "run", 0, claim=_request())
    await g.done("next")
    return f"free after {seconds:.1f} s; a claim has run"


async def fault(g: Ground) -> str:
    """An illegal address of a kernel is logged as XID 31, the GPU stays healthy, and the next pod runs."""
    before = await metric(g.agent, "nvml_xids_total", xid="31")
    await g.pod("fault", "fault")
    said = await g.done("fault")
    g.nvml()  # where it does not answer there is no XID to be seen

    async def counted() -> bool:
        return await metric(g.agent, "nvml_xids_total", xid="31") > before

    await wait_for(g.bed, "XID 31 in drabridge_nvml_xids_total", counted, AT_ONCE_SECONDS)
    faulty = [f"{row['name']} is {row['presence']}: {row['reason']}" for row in await g.rows() if row["reason"]]
    assert not faulty, faulty
    await g.pod("after", "run", 0)
    return f"{said}; XID 31 counted; then {await g.done('after')}"


async def bare(g: Ground) -> str:
    """Without nvidia.yaml a container has what CUDA needs all the same, or the GPU is not given out, with a reason."""
    if not g.cdi_file.exists():
        raise SkipStep("nvidia.yaml was never here: the steps before are this one")
    aside = g.cdi_file.with_name("nvidia.yaml.aside")

    async def named() -> bool:
        return all(row.get("cdiDevices") for row in await g.rows())

    async def missed() -> bool:
        return not await named()

    g.cdi_file.rename(aside)
    try:
        await wait_for(g.bed, "the agent to miss nvidia.yaml", missed)
        row = (await g.rows())[0]
        notes = [one for one in (await g.agent.status())["notes"] if "cdi" in one.lower()]
        if not row["offered"]:
            assert row["reason"] or notes, "the GPU is not given out, and nothing says why"
            return f"not given out: {row['reason'] or notes[0]}"
        await g.pod("bare", "run", 0)
        return await g.done("bare")
    finally:
        aside.rename(g.cdi_file)
        await wait_for(g.bed, "the agent to find nvidia.yaml again", named)


async def generated(g: Ground) -> str:
    """While a pod has the GPU nvidia.yaml is written anew: the pod runs on, and the next one runs as well."""
    await g.pod("during", "run", 3600)
    await running(g.bed, "during")
    by = await g.generate()
    await running(g.bed, "during")
    assert not await g.bed.restarted("during")
    assert await g.holders() == ["during"]
    await deleted(g.bed, "during")
    await g.pod("then", "run", 0)
    return f"by {by}; {await g.done('then')}"


async def joined(g: Ground) -> str:
    """NVML's memory in use, joined with drabridge_device_allocation_info, is the claim's; its total is the capacity."""
    before = {one["uuid"]: one["used"] >> 20 for one in g.nvml()["gpus"]}
    await g.pod("busy", "run", 3600, claim=_request())
    await running(g.bed, "busy")
    await g.said("busy")

    async def held() -> list[str]:
        shown = {
            one: await metric(g.agent, "device_allocation_info", device=one.lower(), claim="busy") for one in before
        }
        return [one for one, value in shown.items() if value == 1]

    (uuid,) = await wait_for(g.bed, "the metric of claim busy", held)
    (gpu,) = (one for one in g.nvml()["gpus"] if one["uuid"] == uuid)
    more = (gpu["used"] >> 20) - before[uuid]
    assert more >= HELD_MIB, f"NVML shows {more} MiB more in use on the claim's GPU: its kernel holds {HELD_MIB}"
    (device,) = (one for one in await devices(g) if one["name"] == uuid.lower())
    capacity = device["capacity"]["memory"]["value"]
    assert f"{gpu['total'] >> 20}Mi" == capacity, f"NVML has {gpu['total'] >> 20}Mi, the slice {capacity}"
    return f"{uuid}: {more} MiB more in use, of claim busy; {capacity} in all"


async def memory(g: Ground) -> str:
    """Agent and NVML's process together have at most 48 MiB of anonymous memory."""
    sizes = {pid: await asyncio.to_thread(anonymous_mib, pid) for pid in family(g.pid())}
    said = " + ".join(f"{one:.1f}" for one in sizes.values())
    assert sum(sizes.values()) <= SMALL_MIB, f"{said} MiB"
    return f"{said} MiB"


async def shares(g: Ground) -> str:
    """Configured as NVIDIA's ``--consumable-shares=unlimited``, two claims have the GPU at once, both kernels run."""
    found = yaml.safe_load(g.agent.config.read_text())
    policy = {"default": 0, "validRange": {"min": 0, "step": "1Mi"}}
    (resource,) = found["resources"]
    memory = resource["capacity"].get("memory", {"value": "1Gi"})
    resource |= {
        "sharing": {"allowMultipleAllocations": True},
        "capacity": {"memory": {**memory, "requestPolicy": policy}},
    }
    await g.agent.stop()
    g.agent.config.write_text(yaml.safe_dump(found))
    await g.agent.start()

    async def shared() -> bool:
        return any(one.get("allowMultipleAllocations") for one in await devices(g))

    await wait_for(g.bed, "slices with shared devices", shared)
    names = ["shared-1", "shared-2"]
    for name in names:
        await g.pod(name, "share", 3600, claim=_request())
    for name in names:
        await running(g.bed, name)
    assert sorted(await g.holders()) == names, await g.holders()
    said = [(await g.said(name)).partition("\n")[0] for name in names]
    assert all(one.startswith("kernel ran on ") for one in said), said
    return f"both at once: {said[0]}"


STEPS: tuple[Callable[[Ground], Awaitable[str]], ...] = (
    *(driver, plugin, takeover, attributes, limits, claims, parameters, turns, short, fault, bare, generated, joined),
    *(memory, shares),
)


def family(pid: int) -> list[int]:
    """A process and those below it."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def anonymous_mib(pid: int) -> float:
    return anonymous_kib(Path(f"/proc/{pid}/smaps_rollup").read_text()) / 1024


# --- all of them ----------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What a step came to: ``ok``, ``failed`` or ``skipped``. ``story``: all there is to know of a failure."""

    number: int
    step: str
    outcome: str
    seconds: float
    expected: str
    seen: str
    story: str = ""

    def __str__(self) -> str:
        head = f"{self.number:2}  {self.step:10} {self.outcome:8} {self.seconds:5.1f} s"
        return f"{head}\n    expected  {self.expected}\n    seen      {self.seen}"


async def play(g: Ground, say: Callable[[str], None], chosen: Collection[str] = ()) -> list[Result]:
    """Run the steps, or the chosen ones and the agent's start; each begins without pods of the one before."""
    results: list[Result] = []
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": LABELS}}
    await g.bed.api.apply(NAMESPACES, namespace, manager=MANAGER)
    for number, one in enumerate(STEPS, 1):
        if chosen and one.__name__ not in chosen and one is not takeover:
            continue
        result = await _played(g, number, one)
        results.append(result)
        say(f"{result}\n--- {result.step}\n{result.story}" if result.story else str(result))
        if one is takeover and result.outcome == "failed":
            return results  # nobody would serve the others
        if one is not plugin:
            await clear(g.bed)
    return results


async def _played(g: Ground, number: int, step: Callable[[Ground], Awaitable[str]]) -> Result:
    began, story = time.monotonic(), ""
    try:
        outcome, seen = "ok", await step(g)
    except (SkipStep, pytest.skip.Exception) as reason:
        outcome, seen = "skipped", str(reason)
    except (AssertionError, ClusterError, NodeError, OSError, TimeoutError, subprocess.SubprocessError) as error:
        seen, _, story = (str(error) or repr(error)).partition("\n--- ")
        outcome = "failed"
    expected = " ".join((step.__doc__ or "").split())
    return Result(number, step.__name__, outcome, time.monotonic() - began, expected, seen, story)


def report(results: list[Result], machine: Json) -> str:
    """All as JSON."""
    return json.dumps({"machine": machine, "steps": [asdict(one) for one in results]}, indent=1)


@contextlib.asynccontextmanager
async def served(g: Ground, process: contextlib.AbstractAsyncContextManager[None], name: str) -> AsyncIterator[str]:
    """While another device plugin offers every GPU."""

    async def there() -> bool:
        node: dict[str, Any] = await g.bed.api.get(NODES, g.bed.node_object)
        return int(node["status"]["allocatable"].get(GPU, "0")) > 0

    async with process:
        await wait_for(g.bed, f"{GPU} to be allocatable by {name}", there)
        yield name
