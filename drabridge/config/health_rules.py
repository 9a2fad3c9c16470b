"""The rules of ``health:``: their keys, and what each reads of a device.

To add a rule: its key and what it reads here, its check in ``inventory/health_rules.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field, model_validator

from drabridge.config.base import Model, PathKey, PatternsText, exactly_one_of
from drabridge.config.nvidia import NvmlHealth
from drabridge.config.pattern import Patterns
from drabridge.config.problems import Problem, refuse_if_any
from drabridge.config.template import Template, parse

_KEYS = ("nodeExists", "driverBound", "attr", "file", "nvml")


class HealthRule(Model):
    """A condition for a present device to be healthy. Give exactly one key."""

    model_config = exactly_one_of(*_KEYS)

    node_exists: bool | None = None
    """Whether every node that is not optional must exist and be a device node."""
    driver_bound: PatternsText | None = None
    """Kernel drivers of which one must be bound."""
    attrs: Mapping[str, PatternsText] = Field(default={}, alias="attr")
    """sysfs attributes that must have these values."""
    files: Mapping[PathKey, PatternsText] = Field(default={}, alias="file")
    """Files on the host, by absolute path with fields, whose first line must match."""
    nvml: Literal[True] | NvmlHealth | None = None
    """NVML must report no fault of the GPU or MIG instance; `true`, or which faults count. While NVML does not answer,
    what it reported last counts."""

    @model_validator(mode="after")
    def _check(self) -> HealthRule:
        given = (self.node_exists, self.driver_bound, self.attrs or None, self.files or None, self.nvml)
        if sum(key is not None for key in given) != 1:
            refuse_if_any([Problem(f"exactly one of {', '.join(_KEYS)}", "one list item per condition")])
        return self

    @property
    def nvml_faults(self) -> NvmlHealth | None:
        """Which faults that NVML reports count; None when the rule asks for none."""
        return NvmlHealth() if self.nvml is True else self.nvml

    def sysfs_attributes(self) -> Iterator[str]:
        """The names of the sysfs attributes that the rule reads: udev is asked for no others."""
        yield from self.attrs

    def file_templates(self) -> Iterator[tuple[Template, Patterns]]:
        """The files that the rule reads, as templates, each with what its first line must match."""
        for path, patterns in self.files.items():
            yield parse(path), patterns
