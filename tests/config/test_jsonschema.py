"""The exported JSON Schema agrees with the loader, on the examples and on mistakes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from msgspec.structs import fields

from drabridge.config import ConfigErrors, load
from drabridge.config.declaration import to_data
from drabridge.config.json_schema import all_models, field_docs, json_schema
from drabridge.config.schema import Config
from tests.support.configurations import document
from tests.support.waiting import HANG_SECONDS

EXAMPLES = sorted((Path(__file__).parents[2] / "deploy" / "examples").glob("*.yaml"))
SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert "x-type" not in json.dumps(SCHEMA)
    assert json_schema() == SCHEMA


def test_it_is_the_same_in_the_image_whose_bytecode_has_no_docstrings() -> None:
    command = [sys.executable, "-OO", "-m", "drabridge", "check-config", "--json-schema"]
    done = subprocess.run(command, capture_output=True, timeout=HANG_SECONDS, check=True)
    assert json.loads(done.stdout) == SCHEMA
    assert all(one["description"] for one in SCHEMA["$defs"].values())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid(path: Path) -> None:
    VALIDATOR.validate(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_dumped_configuration_is_valid_and_loads_again(path: Path) -> None:
    config = load(path)
    plain = to_data(config)
    VALIDATOR.validate(plain)
    assert load(json.dumps(plain)) == config


MISTAKES = [
    "matches: []",
    "id: []",
    "nodes: [{from: devnode, path: /dev/x}]",
    "nodes: [{}]",
    "nodes: [{path: dev/x}]",
    "nodes: [{from: devnode, permissions: rwm}]",
    "env: {1A: x}",
    "env: {'A-{name}': x}",
    "env: {'{}': x}",
    "env: {A: 5}",
    "mounts: [{containerPath: /x}]",
    "attributes: {bad-name: {value: 1}}",
    "attributes: {a: {from: 'attr:x', value: 1}}",
    "attributes: {a: {value: 1, type: float}}",
    "capacity: {a: {value: -1}}",
    "capacity: {a: {value: 1.5}}",
    "capacity: {a: {value: 5GB}}",
    "replicas: {count: 0}",
    "replicas: {}",
    "lanes: {dra: 101%}",
    "lanes: {dra: some}",
    "lanes: {dra: {match: []}}",
    "lanes: {minDra: -1}",
    "health: [{}]",
    "health: [{nodeExists: true, driverBound: x}]",
    "preStart: {command: []}",
    "preStart: {command: [/bin/x], timeoutSeconds: 60}",
    "partition: {of: example.com/other, by: child}",
    "claimConfig: {profiles: {Bad: {}}}",
    "inject: cri",
    "sharing: {allowMultipleAllocations: 'yes'}",
    "deviceClass: {name: Upper}",
    "match: []",
    "match: [{}]",
    "match: [{subsystem: usb, parents: {}}]",
    "match: [{not: {}}]",
    "match: [{subsystem: []}]",
    "match: [{subsystem: {glob: x}}]",
    "match: [{exists: ['file:x']}]",
    "match: [{attr: [a]}]",
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_schema_refuses_what_the_loader_refuses(mistake: str) -> None:
    resource = mistake if mistake.startswith("match:") else f"match: [{{subsystem: usb}}]\n{mistake}"
    text = document(resource)
    with pytest.raises(ConfigErrors):
        load(text)
    assert not VALIDATOR.is_valid(yaml.safe_load(text))


@pytest.mark.parametrize(
    "name",
    [
        *("gpu", "kubernetes.io/gpu", "x.kubernetes.io/gpu", "requests.a.com/b", "A.com/b", "a.com/", "a.com/-b"),
        *("'{attr:a}.com/b'", "'a.com/{attr:a}-{attr:b}'", "'a.com/{sysname}'", "'a.com/-{attr:a}'", "'a.com/{attr:a'"),
    ],
)
def test_resource_names(name: str) -> None:
    text = document("match: [{subsystem: usb}]").replace("example.com/thing", name)
    assert name in text
    with pytest.raises(ConfigErrors):
        load(text)
    assert not VALIDATOR.is_valid(yaml.safe_load(text))


def test_ids_must_be_quoted_for_a_schema_but_not_for_the_loader() -> None:
    text = document("match: [{attr: {idVendor: 0403}}]")
    assert load(text).resources[0].match[0].attrs["idVendor"].matches("0403")
    assert not VALIDATOR.is_valid(yaml.safe_load(text))  # it would see 259


def test_every_key_is_documented() -> None:
    for model in all_models(Config):
        docs = field_docs(model)
        assert model.__doc__
        assert set(docs) >= {field.name for field in fields(model)}, model.__name__
        assert all(text.endswith((".", "...")) for text in docs.values()), model.__name__
