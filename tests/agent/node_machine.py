"""A node as a state machine for Hypothesis: what can happen to a real agent, and what must hold after each step."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.cluster import LINGER_SECONDS_ANNOTATION
from drabridge.sim.kubelet.faults import ListFault
from tests.soak.bed import LOOP, Bed, bed
from tests.soak.judge import OPENS
from tests.soak.run import leaks
from tests.soak.workload import SHAPES, Shape, documents
from tests.support.waiting import PATIENCE, until

LOOPS = 2


SETTLE_SECONDS = 0.3  # after a rule: most of what it sets off has happened; the next rule may also come in the middle


AGREE_SECONDS = 5.0  # how long views may differ while things move


DRAIN_SECONDS = 60.0


LIST_SLACK_SECONDS = 1.5  # between kubelet's note of a list and the list's making, on a busy machine


T = TypeVar("T")


class Node(RuleBasedStateMachine):
    """One node. All histories share one loop: gRPC's sockets belong to the loop that made them."""

    loop: asyncio.AbstractEventLoop
    command: tuple[str, ...] = ("-m", "drabridge")

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.AsyncExitStack()
        self.pods: dict[str, str] = {}  # name -> its claim, or ""
        self.unplugged: set[int] = set()
        self.serial = 0
        self.lists_read = 0

    def do(self, work: Coroutine[Any, Any, T], settle: float = SETTLE_SECONDS) -> T:
        async def whole() -> T:
            result = await work
            await asyncio.sleep(settle)
            return result

        return self.loop.run_until_complete(asyncio.wait_for(whole(), 60 * PATIENCE))

    # --- rules ------------------------------------------------------------------------------------------------------

    @initialize(seed=st.integers(0, 3))
    def begin(self, seed: int) -> None:
        self.stage: Bed = self.do(self.stack.enter_async_context(bed(seed, self.command, LOOPS)))

    @rule(shape=st.sampled_from(SHAPES), data=st.data())
    def run_pod(self, shape: Shape, data: st.DataObject) -> None:
        resource = data.draw(st.sampled_from(sorted(self.stage.capacity)))
        opens = resource == LOOP and data.draw(st.booleans())
        self.place(shape, resource, opens=opens, linger=data.draw(st.floats(0, 4 if opens else 0.1)))

    def place(
        self, shape: Shape, resource: str, *, opens: bool = False, linger: float = 0.0, init_seconds: float = 5.0
    ) -> None:
        self.serial += 1
        name = f"{shape.name}-{OPENS if opens else ''}{self.serial}"
        whole = documents(shape, name, resource, {LINGER_SECONDS_ANNOTATION: f"{linger:.2f}"}, init_seconds)
        self.do(self._apply(whole))
        own_claim = shape.name.startswith("claim") and not shape.template
        self.pods[name] = f"{name}-claim" if own_claim else ""

    async def _apply(self, whole: list[dict[str, Any]]) -> None:
        for document in whole:
            await self.stage.cluster.apply(document)

    @precondition(lambda self: self.pods)
    @rule(data=st.data(), forced=st.booleans())
    def end_pod(self, data: st.DataObject, forced: bool) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.pods))), forced=forced)

    def end(self, name: str, *, forced: bool) -> None:
        if forced:
            self.stage.judge.force_deleted.add(f"default/{name}")
        self.do(self._delete(name, self.pods.pop(name), forced=forced))

    async def _delete(self, pod: str, claim: str, *, forced: bool) -> None:
        objects = self.stage.cluster.api.objects
        for plural, name in (("pods", pod), ("resourceclaims", claim)):
            with contextlib.suppress(ApiError):
                if name:
                    objects.delete(plural, name, "default", grace_seconds=0 if forced and plural == "pods" else None)

    @rule(data=st.data())
    def move_lanes(self, data: st.DataObject) -> None:
        resource = data.draw(st.sampled_from(sorted(self.stage.capacity)))
        self.set_lanes(resource, data.draw(st.integers(0, self.stage.capacity[resource])))

    def set_lanes(self, resource: str, legacy: int) -> None:
        body = f'{{"resource": "{resource}", "legacy": {legacy}, "dra": "*"}}'.encode()
        self.do(self._post("/lanes", body))

    async def _post(self, page: str, body: bytes) -> None:
        await self.stage.agent.up(20)
        code, answer = await self.stage.agent.ask(page, body)
        assert code == 200, answer

    @rule(away=st.sampled_from([0.0, 1.0]))
    def kill_agent(self, away: float) -> None:
        async def work() -> None:
            await self.stage.agent.stop(9)
            await asyncio.sleep(away)
            await self.stage.start_agent()

        self.do(work())

    @rule(away=st.sampled_from([0.0, 0.5]))
    def restart_kubelet(self, away: float) -> None:
        self.do(self.stage.kubelet.restart(downtime_seconds=away))

    @rule()
    def reboot(self) -> None:
        self.do(self.stage.reboot())

    @rule(seconds=st.sampled_from([0.5, 2.0]))
    def partition(self, seconds: float) -> None:
        self._for_a_while(self.stage.cluster.api.faults.partition, self.stage.cluster.api.faults.heal, seconds)

    @rule(fault=st.sampled_from([fault for fault in ListFault if fault is not ListFault.NONE]))
    def blind(self, fault: ListFault) -> None:
        faults = self.stage.kubelet.faults

        def set_to(value: ListFault) -> Callable[[], None]:
            return lambda: setattr(faults, "podresources", value)

        self._for_a_while(set_to(fault), set_to(ListFault.NONE), 1.0)

    def _for_a_while(self, on: Callable[[], Any], off: Callable[[], Any], seconds: float) -> None:
        async def work() -> None:
            on()
            asyncio.get_running_loop().call_later(seconds, off)

        self.do(work())

    @rule(data=st.data())
    def drop_stream(self, data: st.DataObject) -> None:
        self.do(self.stage.kubelet.drop_stream(data.draw(st.sampled_from(sorted(self.stage.capacity)))))

    @precondition(lambda self: self.stage.loops is not None)
    @rule(index=st.integers(0, LOOPS - 1))
    def unplug_or_replug(self, index: int) -> None:
        assert self.stage.loops is not None
        if index in self.unplugged:
            self.stage.loops.add(index)
            self.unplugged.discard(index)
        else:
            with contextlib.suppress(OSError):  # a container has it open
                self.stage.loops.remove(index)
                self.unplugged.add(index)
        self.do(asyncio.sleep(0))

    @rule(seconds=st.sampled_from([1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds), settle=0)

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def nobody_shares(self) -> None:
        assert not self.stage.judge.double_holds()

    @invariant()
    def everybody_lives(self) -> None:
        process = self.stage.agent.process
        assert process is not None
        assert process.returncode is None, self.stage.agent.text()[-3000:]
        assert not self.stage.kubelet.crashed

    @invariant()
    def one_side_at_a_time(self) -> None:
        """What kubelet could give to a new pod, the scheduler cannot give to a claim."""
        assert not self.on_both_sides()

    def on_both_sides(self) -> set[str]:
        free = set[str]().union(*(view.healthy - view.allocated for view in self.stage.kubelet.resources.values()))
        return free & self.stage.schedulable()

    @invariant()
    def held_devices_stay_healthy(self) -> None:
        """In every list that kubelet was sent while a container ran with a device that is there."""
        calls = self.stage.kubelet.calls.of("ListAndWatch")
        for call in calls[self.lists_read :]:
            response: Any = call.response
            sick = {device.ID for device in response.devices if device.health != "Healthy"} if response else set()
            for span in self.stage.judge.spans.values():
                settled = span.began + LIST_SLACK_SECONDS < call.at < span.ended - LIST_SLACK_SECONDS
                if settled and span.pod not in self.stage.judge.force_deleted:
                    assert not sick & (set(span.limits) - self._unplugged_names()), (span, call)
        self.lists_read = len(calls)

    @invariant()
    def status_agrees(self) -> None:
        """The agent says of every running container that its devices are held, on its side."""
        self.do(until(self._agrees, AGREE_SECONDS, self._disagreement), settle=0)

    async def _agrees(self) -> bool:
        return not await self._disagreements()

    async def _disagreements(self) -> list[str]:
        try:
            rows = {row["name"]: row for row in (await self.stage.agent.status())["devices"]}
        except (OSError, IndexError, TimeoutError):
            return ["the agent does not answer"]
        if not rows:
            return ["the agent knows no devices yet"]
        found = []
        for span in self._running():
            found += [f"{d}: {span.pod}, {rows.get(d)}" for d in span.limits if _owner(rows, d) in _NOT_PODS]
            claimed = [device for _, _, device in span.options.dra_devices]
            found += [f"{d}: {span.pod}, {rows.get(d)}" for d in claimed if _owner(rows, d) in _NOT_CLAIMS]
        self.last = found
        return found

    def _running(self) -> list[Any]:
        judge, now = self.stage.judge, time.monotonic()
        return [span for span in judge.spans.values() if span.ended > now and span.pod not in judge.force_deleted]

    def _disagreement(self) -> str:
        return f"{getattr(self, 'last', '')}\n{self.stage.agent.text()[-3000:]}"

    def _unplugged_names(self) -> set[str]:
        return (
            {self.stage.loops.name(index) for index in range(LOOPS)} if self.stage.loops and self.unplugged else set()
        )

    # --- the end ----------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Without faults, every device is offered on one side again."""
        try:
            if hasattr(self, "stage"):
                self.loop.run_until_complete(self._drain())
        finally:
            self.loop.run_until_complete(self.stack.aclose())

    async def _drain(self) -> None:
        stage = self.stage
        stage.cluster.api.faults.heal()
        stage.kubelet.faults.podresources = ListFault.NONE
        for index in sorted(self.unplugged):
            assert stage.loops is not None
            stage.loops.add(index)
        for name, claim in self.pods.items():
            await self._delete(name, claim, forced=False)
        left: list[str] = []

        async def nothing_left() -> bool:
            left[:] = await leaks(stage)
            return not left

        await until(nothing_left, DRAIN_SECONDS, lambda: f"{left}\n{stage.agent.text()[-3000:]}")
        assert not stage.judge.double_holds()


_NOT_PODS = frozenset({"none", "dra-pending", "dra-granted", "dra-prepared"})


_NOT_CLAIMS = frozenset({"none", "legacy", "dra-pending", "dra-granted"})


def _owner(rows: dict[str, dict[str, Any]], device: str) -> str:
    return str(rows[device]["owner"]) if device in rows else "none"
