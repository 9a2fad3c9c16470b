"""Labels of the Node that are made of its devices (``nodeLabels``), for node selectors of pods with limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from drabridge.config.declaration import Model
from drabridge.config.field_types import LabelName, ResourceName, Template
from drabridge.config.problems import Problem, did_you_mean
from drabridge.config.resource_names import stands_for
from drabridge.config.template import Template as ParsedTemplate

LABELS_MAX = 64  # of the configuration's own; a Node with thousands of labels is a burden for every watcher

Count = Literal["devices", "replicas"]


def unchanged(text: str) -> str:
    """Return the text."""
    return text


class LabelRule(Struct, frozen=True):
    """Makes one label from the devices of ``resources``.

    ``convert`` gets the value that most of them have. If it returns "", the label is left out.
    """

    name: str
    resources: tuple[str, ...]
    value: ParsedTemplate | None = None
    count: Count | None = None
    convert: Callable[[str], str] = unchanged


def part_of(number: int) -> Callable[[str], str]:
    """Return a function that takes one part of ``9.0``, numbered from 1; "" if there is none."""

    def convert(text: str) -> str:
        parts = text.split(".")
        return parts[number - 1] if number <= len(parts) else ""

    return convert


class NodeLabel(Model, frozen=True):
    """A label made of the devices of one resource. It is left out while there is no such device, or it has no value.
    Give `value` or `count`.
    """

    one_of = ("value", "count")

    resource: ResourceName
    """The resource whose devices are meant."""
    value: Template | None = None
    """Text with fields in braces, as in `env`: `{nvidia.model}`. If devices differ, the value that most of them have.
    Blanks become `-`, and what cannot be in a label is removed."""
    part: Annotated[int, Meta(ge=1, le=9)] | None = None
    """Only this part of `value` between dots, from 1: of `9.0` the 1st is `9`."""
    count: Count | None = None
    """`devices`: how many there are. `replicas`: how often kubelet counts each."""

    def _problems(self) -> Iterator[Problem]:
        if self.part is not None and self.value is None:
            yield Problem("value: beside part:", path=("part",))


class NodeLabels(Model, frozen=True):
    """Labels that the agent keeps on its own Node. A label that somebody else has written is left alone."""

    gfd: bool = False
    """The labels of NVIDIA's GPU Feature Discovery, as far as the agent knows their values, for `nvidia.com/gpu` and
    `nvidia.com/mig-*`."""
    labels: Annotated[Mapping[LabelName, NodeLabel], Meta(max_length=LABELS_MAX)] = {}
    """Labels by name. One of these replaces a label of `gfd` with the same name."""

    def problems(self, resources: Sequence[str]) -> Iterator[Problem]:
        """Yield what does not fit the resources of the file; paths begin below ``nodeLabels``."""
        names = f"known: {', '.join(sorted(resources))}"
        for name, label in self.labels.items():
            if not any(stands_for(known, label.resource) for known in resources):
                hint = did_you_mean(label.resource, resources) or names
                yield Problem("the name of a resource of this file", hint, ("labels", name, "resource"))
        if self.gfd:
            from drabridge.config.gfd_labels import is_nvidia

            if not any(map(is_nvidia, resources)):
                yield Problem("a resource nvidia.com/gpu or nvidia.com/mig-PROFILE beside gfd", names, ("gfd",))


def label_rules(labels: NodeLabels | None, replicas: Mapping[str, int], mig: Collection[str]) -> tuple[LabelRule, ...]:
    """Return the rules for all labels, one for each name.

    ``replicas``: by resource of the file. ``mig``: those whose devices are MIG instances.
    """
    if labels is None:
        return ()
    rules: dict[str, LabelRule] = {}
    if labels.gfd:
        from drabridge.config.gfd_labels import gfd_rules

        rules = {rule.name: rule for rule in gfd_rules(replicas, mig)}
    for name, label in labels.labels.items():
        convert = unchanged if label.part is None else part_of(label.part)
        rules[name] = LabelRule(name, (label.resource,), label.value, label.count, convert)
    return tuple(rules.values())
