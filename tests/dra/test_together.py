"""Several devices in one request of a claim: each entry sets the variables of all, and none is at another's path."""

from __future__ import annotations

import json

from drabridge.inventory.devices import Device, DeviceNode, Fallback, Mount
from drabridge.ledger.entries import Owner
from drabridge.wire import dra_v1_pb2
from tests.support.dra_node import DRIVER, DraNode, a_node, gpu, text_of
from tests.support.waiting import until


def variables(node: DraNode, claim: dra_v1_pb2.Claim) -> dict[str, list[str]]:
    entries = json.loads(text_of(node, claim))["devices"]
    return {entry["name"].partition(claim.uid)[2][1:]: entry["containerEdits"]["env"] for entry in entries}


def of_request(request: str, device: str) -> dict[str, str]:
    return {"request": request, "device": device}


async def test_each_entry_of_a_request_sets_the_variables_of_all_its_devices_and_of_no_other_request() -> None:
    async with a_node() as node:
        requests = [of_request("a", "gpu-0"), of_request("a", "gpu-2"), of_request("b/small", "gpu-1")]
        claim = node.claims.add("c", *requests)
        await node.prepared(claim)
        expected = {"a-gpu-0": ["GPU=0,2"], "a-gpu-2": ["GPU=0,2"], "b-gpu-1": ["GPU=1"]}
        assert variables(node, claim) == expected
        text = text_of(node, claim)
        await node.restart()
        assert text_of(node, claim) == text
        await node.reboot()
        await node.prepared(claim)
        assert text_of(node, claim) == text


async def test_variables_of_fallbacks_are_joined_among_themselves() -> None:
    zero = DeviceNode("/dev/zero", "/dev/zero", "rw", "c", 1, 5)
    theirs = [Fallback((zero,), {"THEIRS": str(n)}) for n in range(2)]
    devices = tuple(gpu(n, fallback=theirs[n], cdi_missing="in no file") for n in range(2))
    async with a_node(devices=devices) as node:
        claim = node.claims.add("c", "gpu-0", "gpu-1")
        await node.prepared(claim)
        both = {"gpu-gpu-0": ["GPU=0,1"], "gpu-gpu-0.fallback": ["THEIRS=0,1"]}
        assert variables(node, claim) == both | {name.replace("0", "1", 1): value for name, value in both.items()}


async def test_two_devices_of_a_request_at_one_path_are_refused_and_nothing_is_held() -> None:
    devices = (gpu(0, mounts=(Mount("/sys/a", "/state"),)), gpu(1, mounts=(Mount("/sys/b", "/state"),)))
    async with a_node(devices=devices) as node:
        claim = node.claims.add("c", "gpu-0", "gpu-1")
        said = await node.refused(claim)
        assert "request gpu: gpu-0 and gpu-1 would both be at /state in the container" in said
        assert {node.owner("gpu-0"), node.owner("gpu-1")} == {Owner.NONE}
        assert node.records() == []
        node.claims.deallocate("c")
        await node.prepared(node.claims.add("one", "gpu-1"))


async def test_devices_of_a_request_are_numbered_and_one_that_is_away_renumbers_none() -> None:
    def radio(n: int) -> Device:
        node = DeviceNode("/dev/null", "/dev/{request}/radio{index}", "rw", "c", 1, 3)
        return gpu(n, nodes=(node,), env={"RADIO_{request}_{index}": str(n)})

    devices = tuple(map(radio, range(3)))
    async with a_node(devices=devices) as node:
        requests = [of_request("sdr-a", "gpu-2"), of_request("sdr-a", "gpu-0"), of_request("b", "gpu-1")]
        claim = node.claims.add("c", *requests)
        await node.prepared(claim)
        assert variables(node, claim) == {
            "sdr-a-gpu-2": ["RADIO_sdr_a_0=2", "RADIO_sdr_a_1=0"],
            "sdr-a-gpu-0": ["RADIO_sdr_a_0=2", "RADIO_sdr_a_1=0"],
            "b-gpu-1": ["RADIO_b_0=1"],
        }
        text = text_of(node, claim)
        nodes = [one for entry in json.loads(text)["devices"] for one in entry["containerEdits"]["deviceNodes"]]
        assert [one["path"] for one in nodes] == ["/dev/sdr-a/radio0", "/dev/sdr-a/radio1", "/dev/b/radio0"]
        await node.restart()
        assert text_of(node, claim) == text
        await node.set_devices(*devices[:2])
        await until(lambda: "/dev/sdr-a/radio0" not in text_of(node, claim))  # of the one that is away
        assert "/dev/sdr-a/radio1" in text_of(node, claim)


async def test_what_a_claim_writes_into_variables_is_no_template() -> None:
    async with a_node() as node:
        parameters = {"apiVersion": "drabridge/v1alpha1", "kind": "DeviceConfig", "env": {"MODE": "{index}/{request}"}}
        opaque = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}
        claim = node.claims.add("c", "gpu-0", config=(opaque,))
        await node.prepared(claim)
        assert variables(node, claim) == {"gpu-gpu-0": ["GPU=0", "MODE={index}/{request}"]}
