"""What the server refuses and with which words; which fields it drops when a gate is off."""

from __future__ import annotations

import re
from typing import Any

import pytest

from drabridge.sim.apiserver.objects import Objects
from drabridge.sim.apiserver.status import ApiError
from drabridge.sim.apiserver.store import Store
from drabridge.sim.releases import DEFAULT, RELEASES
from tests.support.api_client import claim_body, slice_body


def objects(**gates: bool) -> Objects:
    return Objects(Store(), RELEASES[DEFAULT].gates_with(gates))


def refusal(body: Any, **gates: bool) -> tuple[int, list[tuple[str, str]]]:
    """(code, [(field, message)]) of a create that must fail."""
    with pytest.raises(ApiError) as refused:
        objects(**gates).create(body)
    error = refused.value
    return error.code, [(one["field"], one["message"]) for one in (error.details or {}).get("causes", [])]


def with_device(**fields: Any) -> Any:
    return slice_body("s", {"name": "d0", **fields})


TAINT = {"key": "a.example.com/b", "effect": "NoSchedule"}
D0 = "spec.devices[0]"


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        (
            with_device(attributes={"a": {}}),
            f"{D0}.attributes[a]",
            'Invalid value: "": exactly one value must be specified',
        ),
        (
            with_device(attributes={"a": {"int": 1, "bool": True}}),
            f"{D0}.attributes[a]",
            'Invalid value: {"int":1,"bool":true}: exactly one value must be specified',
        ),
        (
            with_device(attributes={"a": {"string": "x" * 65}}),
            f"{D0}.attributes[a].string",
            "Too long: may not be more than 64 bytes",
        ),
        (
            with_device(attributes={"a": {"version": "580.95"}}),
            f"{D0}.attributes[a].version",
            'Invalid value: "580.95": must be a string compatible with semver.org spec 2.0.0',
        ),
        (
            with_device(
                attributes={f"a{n}": {"int": n} for n in range(20)},
                capacity={f"c{n}": {"value": "1"} for n in range(13)},
            ),
            D0,
            "Invalid value: 33: the total number of attributes and capacities must not exceed 32",
        ),
        (slice_body("s", *(f"d{n}" for n in range(129))), "spec.devices", "Too many: 129: must have at most 128 items"),
        (
            slice_body("s", {"name": "t", "taints": [TAINT]}, *(f"d{n}" for n in range(64))),
            "spec.devices",
            "Too many: 65: must have at most 64 items",
        ),
        (slice_body("s", "d0", "d0"), "spec.devices[1]", 'Duplicate value: "d0"'),
        (slice_body("s", "d0", allNodes=True), "spec", None),
        (
            slice_body("s", "d0", pool={"name": "p", "generation": 1, "resourceSliceCount": 0}),
            "spec.pool.resourceSliceCount",
            "Invalid value: 0: must be greater than zero",
        ),
        (
            slice_body("s", "d0", pool={"name": "p", "generation": -1, "resourceSliceCount": 1}),
            "spec.pool.generation",
            None,
        ),
        (slice_body("s", "d0", driver="Not.Lower"), "spec.driver", None),
        (slice_body("s", "d0", driver=""), "spec.driver", "Required value"),
        (with_device(attributes={"a-b": {"int": 1}}), f"{D0}.attributes", None),
        (
            with_device(attributes={"/a": {"int": 1}}),
            f"{D0}.attributes",
            "Required value: the domain must not be empty",
        ),
        (
            with_device(taints=[{"key": "a", "effect": "Never"}]),
            f"{D0}.taints[0].effect",
            'Unsupported value: "Never": supported values: "NoExecute", "NoSchedule", "None"',
        ),
        (with_device(taints=[TAINT] * 17), f"{D0}.taints", "Too many: 17: must have at most 16 items"),
        (
            with_device(bindingConditions=["a"]),
            f"{D0}.bindingFailureConditions",
            "Invalid value: null: bindingFailureConditions are required to use bindingConditions",
        ),
        (with_device(nodeName="node-a"), f"{D0}.nodeName", None),
        (
            with_device(capacity={"m": {"value": "1", "requestPolicy": {"default": "1"}}}),
            f"{D0}.capacity[m].requestPolicy",
            "Forbidden: allowMultipleAllocations must be true",
        ),
        (
            with_device(consumesCounters=[{"counterSet": "s", "counters": {}}]),
            f"{D0}.consumesCounters[0].counters",
            "Required value",
        ),
        (claim_body("c", ""), "spec.devices.requests[0].exactly.deviceClassName", "Required value"),
        (
            claim_body("c", count=0),
            "spec.devices.requests[0].exactly.count",
            "Invalid value: 0: must be greater than zero",
        ),
        (claim_body("c", allocationMode="All", count=1), "spec.devices.requests[0].exactly.count", None),
        (claim_body("c", allocationMode="Some"), "spec.devices.requests[0].exactly.allocationMode", None),
        (
            claim_body("c", selectors=[{"cel": {}}]),
            "spec.devices.requests[0].exactly.selectors[0].cel.expression",
            "Invalid value: \"\": compilation failed: ERROR: <input>:1:0: Syntax error: mismatched input '<EOF>' "
            "expecting {'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, "
            "BYTES, IDENTIFIER}",
        ),
        (slice_body("Upper", "d0"), "metadata.name", None),
    ],
)
def test_refused(body: Any, field: str, message: str | None) -> None:
    code, causes = refusal(body)
    assert code == 422
    assert [one for one, _ in causes] == [field]
    if message is not None:
        assert causes[0][1] == message


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            with_device(attributes={"a": {"int": "5"}}),
            "cannot unmarshal string into Go struct field spec.devices[0].attributes.a.int of type int64",
        ),
        (with_device(attributes={"a": {"int": True}}), "cannot unmarshal bool"),
        (with_device(attributes={"a": {"bool": "true"}}), "cannot unmarshal string"),
        (with_device(capacity={"m": {"value": "5 GB"}}), "quantities must match the regular expression"),
        (slice_body("s", devices={}), "of type array"),
    ],
)
def test_wrong_types_are_a_bad_request(body: Any, words: str) -> None:
    with pytest.raises(ApiError, match=re.escape(words)) as refused:
        objects().create(body)
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("gate", "body", "path"),
    [
        ("DRADeviceTaints", with_device(taints=[TAINT]), ("spec", "devices", 0, "taints")),
        (
            "DRADeviceBindingConditions",
            with_device(bindsToNode=True, bindingConditions=["a"], bindingFailureConditions=["b"]),
            ("spec", "devices", 0, "bindingConditions"),
        ),
        (
            "DRAConsumableCapacity",
            with_device(allowMultipleAllocations=True),
            ("spec", "devices", 0, "allowMultipleAllocations"),
        ),
        (
            "DRAPartitionableDevices",
            slice_body("s", sharedCounters=[{"name": "c", "counters": {"m": {"value": "1"}}}]),
            ("spec", "sharedCounters"),
        ),
        (
            "DRAExtendedResource",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "g"},
                "spec": {"extendedResourceName": "a.example.com/g"},
            },
            ("spec", "extendedResourceName"),
        ),
        (
            "DRAConsumableCapacity",
            claim_body("c", capacity={"requests": {"m": "1"}}),
            ("spec", "devices", "requests", 0, "exactly", "capacity"),
        ),
        (
            "DRADeviceTaints",
            claim_body("c", tolerations=[{"operator": "Exists"}]),
            ("spec", "devices", "requests", 0, "exactly", "tolerations"),
        ),
        (
            "DRAAdminAccess",
            claim_body("c", adminAccess=True),
            ("spec", "devices", "requests", 0, "exactly", "adminAccess"),
        ),
    ],
)
def test_a_gate_that_is_off_drops_its_fields_in_silence(gate: str, body: Any, path: tuple[Any, ...]) -> None:
    def stored(on: bool) -> bool:
        world = Objects(Store(), RELEASES["1.35"].gates_with({gate: on}))  # later releases lock some of them
        label = {"resource.kubernetes.io/admin-access": "true"}
        world.modify("namespaces", "default", lambda one: one["metadata"]["labels"].update(label))
        found: Any = world.create(body)
        for step in path[:-1]:
            found = found[step]
        return path[-1] in found

    assert stored(True)
    assert not stored(False)


def test_prioritized_list_without_its_gate_leaves_an_invalid_request() -> None:
    body = claim_body("c")
    body["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}]}]
    objects().create(body)
    code, causes = refusal(body, DRAPrioritizedList=False)
    assert (code, causes[0][0]) == (422, "spec.devices.requests[0]")


def test_a_field_in_use_survives_its_gate() -> None:
    world = objects()
    world.create(with_device(taints=[TAINT]))
    world.gates["DRADeviceTaints"] = False  # type: ignore[index]
    world.modify("resourceslices", "s", lambda one: one["spec"]["pool"].update(generation=2))
    assert world.get("resourceslices", "s")["spec"]["devices"][0]["taints"][0]["key"] == TAINT["key"]


def test_unknown_gate_is_an_error() -> None:
    with pytest.raises(ValueError, match="DRATypo"):
        RELEASES[DEFAULT].gates_with({"DRATypo": True})


def test_taint_gets_the_time_of_the_write_and_keeps_it() -> None:
    world = objects()
    added = world.create(with_device(taints=[TAINT]))["spec"]["devices"][0]["taints"][0]["timeAdded"]
    world.modify("resourceslices", "s", lambda one: one["spec"]["pool"].update(generation=2))
    assert world.get("resourceslices", "s")["spec"]["devices"][0]["taints"][0]["timeAdded"] == added


def test_unknown_and_empty_fields_are_not_stored() -> None:
    body = with_device(attributes={}, taints=[], nonsense=1)
    body["spec"]["more"] = None
    stored = objects().create(body)
    assert stored["spec"]["devices"] == [{"name": "d0"}]
    assert set(stored["spec"]) == {"driver", "nodeName", "pool", "devices"}
