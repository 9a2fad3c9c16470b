"""What ``python -m tests.bench.scale --real`` reads from an API server, keeps, and writes into the document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.real_api import command, readings, tables
from tests.bench.real_api.tables import GO, OURS, Figures, Phase

# As kube-apiserver 1.36.2 prints it, less the labels that nothing here reads.
METRICS = """\
# HELP apiserver_request_total [STABLE] Counter of apiserver requests.
# TYPE apiserver_request_total counter
apiserver_request_total{group="",resource="pods",subresource="",verb="LIST"} 3
apiserver_request_total{group="",resource="pods",subresource="",verb="WATCH"} 2
apiserver_request_total{group="resource.k8s.io",resource="resourceclaims",subresource="status",verb="APPLY"} 5
apiserver_request_total{group="resource.k8s.io",resource="resourceclaims",subresource="status",verb="PUT"} 70
apiserver_request_total{group="resource.k8s.io",resource="resourceslices",subresource="",verb="DELETECOLLECTION"} 9
apiserver_request_total{group="",resource="leases",subresource="",verb="GET"} 11
apiserver_longrunning_requests{group="",resource="pods",subresource="",verb="WATCH"} 4
apiserver_response_sizes_sum{group="",resource="pods",subresource="",verb="LIST"} 1000
apiserver_response_sizes_sum{group="",resource="pods",subresource="",verb="WATCH"} 400
apiserver_watch_events_sizes_sum{group="",resource="pods"} 50
apiserver_request_body_size_bytes_sum{group="resource.k8s.io",resource="resourceclaims",verb="patch"} 1.5e+03
apiserver_request_body_size_bytes_sum{group="resource.k8s.io",resource="resourceclaims",verb="update"} 9e+03
apiserver_request_body_size_bytes_sum{group="resource.k8s.io",resource="resourceclaims",verb="create"} 9e+03
go_memstats_alloc_bytes 2.5e+07
go_memstats_stack_inuse_bytes 1e+06
"""


def phase(name: str = "start", **changes: object) -> Phase:
    given = {
        "seconds": 2.0,
        "requests": {"LIST pods": 2.0, "POST resourceslices": 1.0, "WATCH pods": 1.0},
        "watches": 1.0,
        "bytes_in": 1024.0,
        "bytes_out": 2048.0,
        "cpu_seconds": 0.01,
        "etcd_cpu_seconds": 0.002,
        "live_bytes": 4096.0,
    }
    return Phase(name, **{**given, **changes})  # type: ignore[arg-type]


def test_the_agents_requests_are_counted_and_those_in_place_of_others_are_not() -> None:
    found = readings.parsed(METRICS)
    assert found.requests == {"LIST pods": 3, "WATCH pods": 6, "APPLY resourceclaims/status": 5}
    assert (found.bytes_in, found.bytes_out) == (1500, 1050)
    assert (found.open_watches, found.live_bytes) == (4, 26_000_000)


def test_a_watch_that_ends_is_not_counted_again() -> None:
    later = METRICS.replace('verb="WATCH"} 2\n', 'verb="WATCH"} 3\n').replace('verb="WATCH"} 4\n', 'verb="WATCH"} 3\n')
    taken = readings.parsed(later).since(readings.parsed(METRICS))
    assert not taken.requests
    assert taken.open_watches == -1


def test_times_stretches_what_depends_on_time_and_nothing_else() -> None:
    longer = phase().times(3)
    assert (longer.reads, longer.writes, longer.bytes_out, longer.cpu_seconds) == (6, 3, 6144, 0.03)
    assert (longer.live_bytes, longer.watches, longer.seconds) == (4096, 1, 2)


def test_tables_say_what_was_measured_and_what_was_multiplied() -> None:
    few, many = phase(bytes_out=1024.0), phase()
    figures = Figures(
        "a machine", {50: [few], 200: [many]}, {50: [phase()], 100: [phase(cpu_seconds=0.5)]}, {OURS: phase("a claim")}
    )
    text = tables.markdown(figures)
    assert "Machine: a machine." in text
    assert "200 agents, and 100 processes of the Go helper" in text
    assert f"| start | {OURS} | 1.00 | 2.00 | 1.00 | 1.00 | 2.00 | 10.0 | 2.0 | 4 |" in text
    assert f"| start | {GO} | 1.00 | 2.00 | 1.00 | 1.00 | 2.00 | 500.0 | 2.0 | 4 |" in text
    assert f"| start | KiB in and out | {OURS} | 2.0 | 3.0 |" in text
    assert f"| start | server CPU ms | {GO} | 10.0 |  |" in text
    assert "from 200 agents to 5,000 nodes, not measured" in text
    assert "| start | 5,000 | 10,000 | 5 | 10 | 50 |" in text


def test_a_part_that_is_measured_anew_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    tables.keep("m", ours={200: [phase()]}, large=[phase("large")], path=path)
    tables.keep("m", ours={50: [phase()]}, go={200: [phase()]}, path=path)
    kept = tables.load(path)
    assert set(kept.ours) == {50, 200}
    assert set(kept.go) == {200}
    assert [one.name for one in kept.large] == ["large"]


def test_only_the_text_between_the_marks_changes() -> None:
    figures = Figures("m", {1: [phase()]})
    text = f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n"
    once = command.renewed(text, figures)
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert command.renewed(once, figures) == once
    with pytest.raises(ValueError, match="lacks"):
        command.renewed("no marks", figures)


def test_the_document_shows_what_was_kept() -> None:
    text = command.DOCUMENT.read_text()
    assert command.renewed(text, tables.load()) == text, "python -m tests.bench.scale --real --parts= writes it anew"
