"""A namespace that ``drabridge migrate switch`` has switched is shown as such, in every form of the report."""

from __future__ import annotations

from typing import Any

import pytest

from drabridge.migrate.report.build import Facts, build
from drabridge.migrate.report.document import NamespaceSwitch
from drabridge.migrate.report.readers import pod_facts
from drabridge.migrate.switch import marks
from tests.migrate.cluster_objects import (
    GPU,
    asked,
    claim,
    claim_pod,
    command,
    container,
    custom,
    device_class,
    namespace,
    parsed,
    pod,
    pod_spec,
    serving,
    workload,
)

Json = dict[str, Any]


async def space(*objects: Json) -> Json:
    """The row of team-a, read through the command."""
    _, out, err = await asked(objects, "report", "-o", "json")
    assert err == ""
    (found,) = (one for one in parsed(out)["namespaces"] if one["name"] == "team-a")
    return dict(found)


def web(*names: str, **fields: Any) -> list[Json]:
    """A Deployment with these pods."""
    top = workload("Deployment", **fields)
    middle = workload("ReplicaSet", "web-5d", owner=top, **fields)
    return [top, middle, *(pod(name, owner=middle, **fields) for name in names)]


def daemons() -> list[Json]:
    owner = workload("DaemonSet", "agents")
    return [owner, pod("agent", owner=owner)]


def node_named() -> list[Json]:
    owner = workload("StatefulSet", "fixed", spec=pod_spec(nodeName="node-a"))
    return [owner, pod("fixed-0", owner=owner)]


CLAIMED = [device_class(), claim(), claim_pod()]
MIRROR = pod("mirror", annotations={"kubernetes.io/config.mirror": "x"}, owner=custom("v1", "Node", "node-a"))
MANY = pod("many", spec={"containers": [container(count=33)]})


@pytest.mark.parametrize(
    ("notes", "objects", "because"),
    [
        ({}, web("a", "b"), "new pods get claims; 2 pods still have limits: roll them out"),
        ({}, [*web("a"), *CLAIMED], "new pods get claims; 1 pod still has limits: roll it out"),
        ({}, [*web(), *CLAIMED], "new pods get claims; no pod has limits any more"),
        ({}, CLAIMED, "new pods get claims; no pod has limits any more"),
        (
            {"percent": "20"},
            web("a", "b"),
            "new pods of 20 % of the owners get claims; 2 pods still have limits: roll out those that it is for",
        ),
        (
            {"selector": "app=web,tier=gpu"},
            web("a"),
            "new pods with app=web,tier=gpu get claims; 1 pod still has limits: roll out those that it is for",
        ),
        (
            {},
            [*daemons(), *node_named(), MIRROR, MANY],
            "new pods get claims; the switch leaves 4 pods alone: of DaemonSets, static, with nodeName, "
            "or with more than 32 devices",
        ),
        (
            {},
            [*web("a"), *daemons()],
            "new pods get claims; 1 pod still has limits: roll it out; the switch leaves 1 pod alone: of DaemonSets, "
            "static, with nodeName, or with more than 32 devices",
        ),
    ],
)
async def test_a_switched_namespace_says_what_is_left_to_do(
    notes: dict[str, str], objects: list[Json], because: str
) -> None:
    found = await space(namespace(notes=notes), *objects)
    assert (found["fits"], found["because"]) == ("switched", because)
    assert found["switch"] == {"percent": int(notes.get("percent", 100)), "selector": notes.get("selector", "")}


async def test_other_namespaces_are_as_before() -> None:
    for objects in ([namespace(switched=False), *web("a")], [namespace("other"), *web("a")], web("a")):
        found = await space(*objects)
        assert (found["fits"], found["switch"]) == ("convert", None)
    odd = namespace()
    odd["metadata"]["labels"]["switch.drabridge/to"] = "nothing"
    assert (await space(odd, *web("a")))["switch"] is None


async def test_table_and_page_show_it() -> None:
    objects = [namespace(), *web("a", "b")]
    _, table, _ = await asked(objects, "report", "-o", "wide")
    _, page, _ = await asked(objects, "report", "-o", "html")
    (row,) = (line for line in table.splitlines() if line.split()[:2] == ["team-a", GPU])
    assert row.endswith("switched")
    assert "team-a: switched: new pods get claims; 2 pods still have limits: roll them out" in table
    assert "<li>team-a: switched: new pods get claims; 2 pods" in page


async def test_without_the_right_to_list_namespaces_the_rest_is_reported() -> None:
    async with serving(namespace(), *web("a")) as (api, kubeconfig):
        api.faults.fail(1, 403, verb="list", resource="namespaces")
        code, out, _ = await command("--kubeconfig", str(kubeconfig), "-o", "json")
    document = parsed(out)
    assert code == 0
    (found,) = document["namespaces"]
    assert (found["fits"], found["switch"]) == ("convert", None)
    assert [(one["verb"], one["resource"]) for one in document["unread"]] == [("list", "namespaces")]


@pytest.mark.parametrize(
    ("text", "percent"),
    [("0", 0), ("20", 20), ("100", 100), ("", 0), ("many", 0), ("1e3", 0), ("9" * 5_000, 0), ("-5", 0), ("٣", 0),
     ("20\n", 0), (" 20", 0), ("1_0", 0)],
)  # fmt: skip
async def test_a_percentage_that_is_no_number_switches_nobody(text: str, percent: int) -> None:
    """The namespace's owner may write anything: it must not end the command for all others."""
    objects = [namespace(notes={"percent": text}), namespace("good"), *web("a")]
    _, out, _ = await asked(objects, "report", "-o", "json")
    assert parsed(out)["unread"] == []
    (found,) = parsed(out)["namespaces"]
    assert found["switch"]["percent"] == percent
    assert marks.percent_of({marks.PERCENT: text}) == percent
    assert marks.percent_of({}) == 100


def test_where_the_api_server_has_no_such_policies_the_label_changes_nothing() -> None:
    facts = pod_facts(pod())
    assert facts is not None
    spaces: dict[str, NamespaceSwitch | None] = {"team-a": NamespaceSwitch(100, "")}
    (found,) = build(Facts(pods=[facts], namespaces=spaces), {}).namespaces
    assert found.fits == "convert"
    assert "no MutatingAdmissionPolicy" in found.because
    assert found.switch == NamespaceSwitch(100, "")
