"""The kubelet as its own process: the control channel, SIGKILL, SIGSTOP, and a successor on the same directory."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from tests.sim.kubelet.podresources_client import PodResourcesClient
from tests.support.kubelet_peers import GPU, Plugin, device, short_dir
from tests.support.kubelet_process import child
from tests.support.waiting import PATIENCE

MANIFEST = {
    "metadata": {"namespace": "default", "name": "p", "uid": "11111111-2222-3333-4444-555555555555"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {GPU: "1", "cpu": "100m"}}}]},
}


async def test_a_killed_kubelet_has_a_successor_that_knows_its_pods() -> None:
    async with short_dir() as root:
        plugin = Plugin(root, "p.sock", [device("d0"), device("d1")])
        try:
            async with child(root) as first:
                await plugin.serve()
                await plugin.register()
                await first.status_with(lambda s: s["resources"].get(GPU, {}).get("healthy") == ["d0", "d1"])
                assert (await first.do("run_pod", pod=MANIFEST))["phase"] == "Running"
                held = (await first.do("status"))["resources"][GPU]["allocated"]
                first.process.kill()
                await first.process.wait()
            for _ in range(100 * PATIENCE):
                if plugin.streams == 0:
                    break
                await asyncio.sleep(0.01)
            assert plugin.streams == 0, "the stream broke at once"
            assert (root / "device-plugins" / "kubelet.sock").exists()
            async with child(root, "--timing", "pod_source_seconds=3") as second:
                await plugin.stop()
                await plugin.serve()
                await plugin.register()
                status = await second.status_with(lambda s: s["resources"].get(GPU, {}).get("healthy") == ["d0", "d1"])
                assert status["resources"][GPU]["allocated"] == held
                assert [p["phase"] for p in status["pods"].values()] == ["Running"]
                assert second.process.returncode is None
            assert second.process.returncode == 0, "end of input is the end"
        finally:
            await plugin.stop()


async def test_a_stopped_process_answers_nothing_until_it_continues() -> None:
    async with short_dir() as root, child(root) as kubelet:
        os.kill(kubelet.process.pid, signal.SIGSTOP)
        listing = asyncio.create_task(PodResourcesClient(root).list())
        await asyncio.sleep(0.3)
        assert not listing.done()
        os.kill(kubelet.process.pid, signal.SIGCONT)
        assert list((await listing).pod_resources) == []


async def test_requests_that_cannot_be_served_are_answered() -> None:
    async with short_dir() as root, child(root) as kubelet:
        for request, text in (
            ({"id": 1, "do": "fly"}, "missing or unknown: 'fly'"),
            ({"id": 2, "do": "run_pod"}, "missing or unknown: 'pod'"),
            ({"id": 3, "do": "fault", "gravity": 0}, "unknown fault 'gravity'"),
        ):
            await kubelet.send(**request)
            answer = await kubelet.read()
            assert answer["id"] == request["id"]
            assert text in answer["error"]
        assert kubelet.process.stdin is not None
        kubelet.process.stdin.write(b"not json\n")
        assert "JSONDecodeError" in (await kubelet.read())["error"]
        await kubelet.do("fault", podresources="error", frozen=False)
        with pytest.raises(Exception, match="injected failure"):
            await PodResourcesClient(root).list()
        assert (await kubelet.do("calls"))[-1]["method"] == "List"
