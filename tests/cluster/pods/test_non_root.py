"""A container of user 1000 opens a node that is 0660 and root's on the host, by limits and by claim."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster import bed as b
from tests.cluster import workloads as w
from tests.cluster.bed import CLAIMS, NAMESPACE, PODS, RESOURCE, Bed, Json
from tests.cluster.real_bed import own_cluster
from tests.cluster.steps import running
from tests.support.hardware import Loops, needs_loop_devices

pytestmark = [pytest.mark.asyncio(loop_scope="module"), needs_loop_devices]

LOOPS = Loops()
GROUP = 20  # dialout, as a serial port's
PLAIN = "example.com/cluster-test-plain"
CONFIG: Json = {
    **b.CONFIG,
    "resources": [
        {
            "name": RESOURCE,
            "match": [{"subsystem": "block", "sysname": [LOOPS.name(0), LOOPS.name(1)]}],
            "id": ["{sysname}"],
            "nodes": [
                {
                    "from": "devnode",
                    "as": "/dev/test-{sysname}",
                    "fileMode": "host",
                    "uid": "host",
                    "gid": "host",
                    "joinGroup": True,
                }
            ],
            "lanes": {"legacy": 1, "dra": 1},
            "deviceClass": {"name": b.CLASS},
        },
        {
            "name": PLAIN,
            "match": [{"subsystem": "block", "sysname": [LOOPS.name(2)]}],
            "id": ["{sysname}"],
            "nodes": [{"from": "devnode", "as": "/dev/test-{sysname}"}],
            "lanes": {"legacy": 1, "dra": 0},
            "deviceClass": {"name": f"{b.CLASS}-plain"},
        },
    ],
}
LOOK = "id -G; ls -ln /dev/test-*; exec 3<>$(echo /dev/test-*) && echo opened; trap exit TERM; sleep 3600 & wait"
USER = {"runAsUser": 1000, "runAsGroup": 1000, "runAsNonRoot": True}


@pytest.fixture(scope="module", autouse=True)
def ports() -> Iterator[None]:
    try:
        for index in (0, 1, 2):
            path = f"/dev/{LOOPS.add(index)}"
            os.chown(path, 0, GROUP)
            os.chmod(path, 0o660)
        yield
    finally:
        LOOPS.close()


@pytest.fixture(autouse=True)
def within_reach(request: pytest.FixtureRequest) -> None:
    """Before there is a bed, whose agent would look for devices that are not there."""
    if request.node.callspec.params["beds"] == "real" and own_cluster() is None:
        pytest.skip("the node does not share this machine's kernel: it has not the devices that are made here")


def spec(bed: Bed, resources: Json, **more: Json) -> Json:
    container = w.container(bed.image, resources, command=["sh", "-c", LOOK], securityContext=USER)
    return w.spec_of(bed.node, container, **more)


async def opened(bed: Bed, pod: str, groups: str, mode: str) -> None:
    """It says that it could open the node, and which groups its process has."""
    await running(bed, pod)

    async def said() -> str:
        return await bed.said(pod) or ""

    if not bed.runs_programs:
        return
    text = await b.wait_for(bed, f"{pod} to say what it sees", said)
    assert {*text.splitlines()[0].split()} == {*groups.split()}, text
    assert mode in text, text
    assert "opened" in text, text


async def test_by_limits(bed: Bed) -> None:
    await bed.api.create(PODS, w.pod("limits", spec(bed, {"limits": {RESOURCE: "1"}})), namespace=NAMESPACE)
    await opened(bed, "limits", "1000 20", "brw-rw----    1 0        20")


async def test_by_claim(bed: Bed) -> None:
    await bed.api.create(CLAIMS, w.claim("claim", w.request()), namespace=NAMESPACE)
    claims: Json = {"resourceClaims": [{"name": "device", "resourceClaimName": "claim"}]}
    pod = w.pod("claim", spec(bed, {"claims": [{"name": "device"}]}, **claims))
    await bed.api.create(PODS, pod, namespace=NAMESPACE)
    await opened(bed, "claim", "1000 20", "brw-rw----    1 0        20")


async def test_without_a_word_in_the_configuration(bed: Bed) -> None:
    await bed.api.create(PODS, w.pod("plain", spec(bed, {"limits": {PLAIN: "1"}})), namespace=NAMESPACE)
    await opened(bed, "plain", "1000", " 1 1000     1000 ")
