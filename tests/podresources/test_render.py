"""Output for people: tables that fit, globs that select, the frames of top."""

from __future__ import annotations

import pytest

from podresources import render, table, topview
from podresources.filters import Filters
from podresources.model import Allocatable, AllocatableDevice, Api, PodAllocation, SocketIdentity
from podresources.normalise import snapshot
from tests.support.podresources_server import claim, claim_device, container, device, listing, pod

SOCKET = SocketIdentity(1, 2, 3)
EVERYTHING = Filters()


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 8], "0-2,8"), ([5, 3, 4, 5], "3-5"), ([1, 3], "1,3")]
)
def test_ranges_are_written_like_cpusets(numbers: list[int], text: str) -> None:
    assert table.ranges(numbers) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1000, "1000"), (2048, "2Ki"), (3 << 30, "3Gi"), (1536 << 20, "1536Mi"), (1 << 40, "1Ti")],
)
def test_sizes_are_quantities(size: int, text: str) -> None:
    assert table.size(size) == text


ROWS = [("a", "n" * 30, "", "d" * 100), ("bb", "n", "", "d")]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_fits_the_terminal_and_cuts_the_widest_first(width: int) -> None:
    text = table.render(("SHORT", "NAME", "EMPTY", "DEVICES"), ROWS, width)
    assert max(map(len, text.splitlines())) <= width
    assert "EMPTY" not in text
    assert "SHORT" in text
    assert "…" in text


def test_a_pipe_gets_everything() -> None:
    assert "d" * 100 in table.render(("SHORT", "NAME", "EMPTY", "DEVICES"), ROWS)


def test_a_terminal_narrower_than_every_column_still_ends() -> None:
    assert table.render(("A", "B"), [("x" * 50, "y" * 50)], 3)


def test_a_table_without_rows_is_its_header() -> None:
    assert table.render(("A", "B"), []) == "A  B"


WHOLE = snapshot(
    listing(
        pod(
            "train-0",
            container("main", device("n.com/gpu", "G1"), device("n.com/gpu", "G0", numa=(1,))),
            namespace="ml",
        ),
        pod("infer-0", container("a", claims=(claim("c", claim_device("gpu-0", "x=0", share="s")),))),
        pod("infer-1", container("a", claims=(claim("c", claim_device("gpu-0", "x=0", share="s")),))),
        pod("idle", container("a")),
    ),
    SOCKET,
)


@pytest.mark.parametrize(
    ("selection", "pods"),
    [
        (Filters(), ["train-0", "train-0", "infer-0", "infer-1"]),
        (Filters(namespaces=("m*",)), ["train-0", "train-0"]),
        (Filters(pods=("infer-1", "train-0")), ["train-0", "train-0", "infer-1"]),
        (Filters(resources=("n.com/*",)), ["train-0", "train-0"]),
        (Filters(drivers=("gpu.example.com",)), ["infer-0", "infer-1"]),
        (Filters(resources=("n.com/gpu",), drivers=("*",)), ["train-0", "train-0", "infer-0", "infer-1"]),
        (Filters(namespaces=("ml",), drivers=("*",)), []),
        (Filters(resources=("N.com/gpu",)), []),
    ],
)
def test_globs_select(selection: Filters, pods: list[str]) -> None:
    assert [held.pod for held in selection.snapshot(WHOLE).allocations] == pods


def test_the_table_has_a_line_per_container_and_resource_or_claim() -> None:
    lines = [line.split() for line in render.list_table(WHOLE, EVERYTHING, None).splitlines()]
    assert lines[1:] == [
        ["default", "infer-0", "a", "dra", "gpu.example.com", "1", "node1/gpu-0#s", "-", "c", "(shared)"],
        ["default", "infer-1", "a", "dra", "gpu.example.com", "1", "node1/gpu-0#s", "-", "c", "(shared)"],
        ["ml", "train-0", "main", "deviceplugin", "n.com/gpu", "2", "G1,G0", "1", "-"],
    ]


def test_wide_has_a_line_per_device_with_cdi_ids() -> None:
    text = render.list_wide(WHOLE, EVERYTHING)
    assert len(text.splitlines()) == 5
    assert "x=0" in text


def test_documents_have_only_the_fields_of_their_api() -> None:
    plugin, _, dra, _ = map(render.allocation_document, WHOLE.allocations)
    assert plugin["resource"] == "n.com/gpu"
    assert "driver" not in plugin
    assert (dra["driver"], dra["share_id"], dra["claim"]) == ("gpu.example.com", "s", "c")
    assert "resource" not in dra


def test_cpus_and_memory_are_listed_with_their_manager_unless_filtered_out() -> None:
    response = listing(pod("p", container("c")))
    response.pod_resources[0].containers[0].cpu_ids.extend([1, 2])
    response.pod_resources[0].containers[0].memory.add(memory_type="memory", size=1 << 30).topology.nodes.add(ID=1)
    response.pod_resources[0].cpu_ids.extend([1, 2, 3])
    found = snapshot(response, SOCKET)
    lines = [line.split() for line in render.list_table(found, EVERYTHING, None).splitlines()]
    assert ["default", "p", "c", "cpumanager", "cpu", "2", "1-2", "-"] in lines
    assert ["default", "p", "c", "memorymanager", "memory", "-", "1Gi", "1"] in lines
    assert ["default", "p", "-", "cpumanager", "cpu", "3", "1-3", "-"] in lines
    only_memory = render.list_table(found, Filters(resources=("memory",)), None)
    assert "cpumanager" not in only_memory
    assert "memorymanager" in only_memory
    assert "manager" not in render.list_table(found, Filters(drivers=("*",)), None)


CAPACITY = Allocatable(
    (AllocatableDevice("n.com/gpu", "G0", (1,)), AllocatableDevice("n.com/gpu", "G2")), (), (), SOCKET
)


def test_a_frame_shows_free_devices_holders_and_totals() -> None:
    text = topview.frame(WHOLE, CAPACITY, {}, 0.0, width=None, height=None)
    lines = [line.split() for line in text.splitlines()]
    assert text.splitlines()[0] == "n.com/gpu 2/3 held   gpu.example.com 1 held"
    assert ["n.com/gpu", "G2", "-", "-", "-"] in lines
    assert ["n.com/gpu", "G0", "1", "ml/train-0/main", "-"] in lines
    assert sum("node1/gpu-0/s" in line for line in lines) == 2


def test_a_frame_keeps_to_the_screen_and_says_what_it_left_out() -> None:
    many = tuple(
        PodAllocation("ns", f"p{n}", "c", Api.DEVICE_PLUGIN, resource="e.com/x", device_ids=(str(n),))
        for n in range(50)
    )
    found = snapshot(listing(), SOCKET)
    text = topview.frame(type(found)((), many, SOCKET), None, {many[0].key: 10.0}, 75.0, width=50, height=12)
    lines = text.splitlines()
    assert len(lines) == 12
    assert max(map(len, lines)) <= 50
    assert lines[-1] == "… and 42 more lines"
    assert "1m" in lines[3]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (59.9, "59s"), (60, "1m"), (7200, "2h"), (200000, "2d")])
def test_ages_have_one_unit(seconds: float, text: str) -> None:
    assert topview.age(seconds) == text
