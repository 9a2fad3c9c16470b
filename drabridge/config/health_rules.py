"""The rules of ``health:``: their keys, and what each reads of a device.

To add a rule: its key and what it reads here, its check in ``inventory/health_rules.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, field

from drabridge.config.container import COMMAND_MAX
from drabridge.config.declaration import Model
from drabridge.config.field_types import PathKey, PatternsText
from drabridge.config.field_types import Template as TemplateText
from drabridge.config.nvidia import NvmlHealth
from drabridge.config.pattern import Patterns
from drabridge.config.problems import Problem
from drabridge.config.template import Template, parse


class ExecCheck(Model, frozen=True):
    """A program that says by exit status 0 that a device is healthy. The agent runs it, without a shell."""

    command: Annotated[tuple[TemplateText, ...], Meta(min_length=1, max_length=COMMAND_MAX)]
    """Program and arguments, with fields. The last line of its output says why a device is not healthy."""
    every_seconds: Annotated[int, Meta(ge=1, le=3600)] = 30
    """The pause between two runs for one device."""
    timeout_seconds: Annotated[int, Meta(ge=1, le=300)] = 10
    """After this time the program is killed, and the device is not healthy."""

    def _problems(self) -> Iterator[Problem]:
        first = self.command[0].parts[0]
        if not isinstance(first, str) or not first.startswith("/"):
            yield Problem("an absolute path of a program", "no shell and no PATH are used", ("command", 0))


class HealthRule(Model, frozen=True):
    """A condition for a present device to be healthy. Give exactly one key."""

    one_of = ("nodeExists", "driverBound", "attr", "file", "exec", "nvml")
    raw_keys = frozenset({"driverBound", "attr", "file"})

    node_exists: bool | None = None
    """Whether every node that is not optional must exist and be a device node."""
    driver_bound: PatternsText | None = None
    """Kernel drivers of which one must be bound."""
    attrs: Mapping[str, PatternsText] = field(default={}, name="attr")
    """sysfs attributes that must have these values."""
    files: Mapping[PathKey, PatternsText] = field(default={}, name="file")
    """Files on the host, by absolute path with fields, whose first line must match. A file that is missing matches
    only the empty pattern `""`."""
    exec_check: ExecCheck | None = field(default=None, name="exec")
    """A program whose exit status must be 0."""
    nvml: Literal[True] | NvmlHealth | None = None
    """NVML must report no fault of the GPU or MIG instance; `true`, or which faults count. While NVML does not answer,
    what it reported last counts."""

    @property
    def nvml_faults(self) -> NvmlHealth | None:
        """Which faults that NVML reports count; None when the rule asks for none."""
        return NvmlHealth() if self.nvml is True else self.nvml

    def sysfs_attributes(self) -> Iterator[str]:
        """Yield the names of the sysfs attributes that the rule reads: udev is asked for no others."""
        yield from self.attrs

    def file_templates(self) -> Iterator[tuple[Template, Patterns]]:
        """Yield the files that the rule reads, as templates, each with what its first line must match."""
        for path, patterns in self.files.items():
            yield parse(path), patterns

    def templates(self) -> Iterator[Template]:
        """Yield every template of the rule."""
        yield from (template for template, _ in self.file_templates())
        if self.exec_check is not None:
            yield from self.exec_check.command
