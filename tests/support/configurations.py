"""Small configurations for tests."""

from __future__ import annotations

import json
import textwrap

import pytest

from drabridge.config import Config, ConfigErrors, Fault, load
from drabridge.config.matcher import Matcher

HEAD = "apiVersion: drabridge/v1alpha1\nkind: AgentConfig\n"


def document(resource: str, *, head: str = "") -> str:
    """A file with one resource; ``resource`` is the YAML below its name and match."""
    body = textwrap.indent(textwrap.dedent(resource), "  ")
    return f"{HEAD}{head}resources:\n- name: example.com/thing\n{body}\n"


def loaded(resource: str) -> Config:
    """The configuration with one resource; a match rule is added when there is none."""
    if not resource.lstrip().startswith("match:"):
        resource = "match: [{subsystem: usb}]\n" + textwrap.dedent(resource)
    return load(document(resource))


def matchers(yaml_flow: str) -> tuple[Matcher, ...]:
    """Match rules from the text after ``match:``."""
    return load(document(f"match: {yaml_flow}")).resources[0].match


def rule(text: str) -> tuple[Matcher, ...]:
    """A matcher from a pasted udev rule."""
    return matchers(f"[{{rule: {json.dumps(text)}}}]")


def faults(text: str | bytes) -> tuple[Fault, ...]:
    """The faults of a configuration that must not load."""
    with pytest.raises(ConfigErrors) as caught:
        load(text, name="f.yaml")
    assert caught.value.faults
    return caught.value.faults


def only_fault(text: str | bytes) -> Fault:
    """The only one."""
    (fault,) = faults(text)
    return fault
