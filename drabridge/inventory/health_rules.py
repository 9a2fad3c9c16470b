"""Decide whether a present device is healthy: by all rules of ``health:``, and by what must exist without a rule.

To add a rule: its key and what it reads in ``config/health_rules.py``, its check in ``_broken`` here.

A device with a failure is FAULTY (``builder.py``). What follows is decided elsewhere: kubelet sees it Unhealthy
(``offers/device_list.py``), it has a taint in its ResourceSlice (``offers/pool.py``), and the pods of its claim show
the reason (``offers/reported_health.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from drabridge.config.health_rules import HealthRule
from drabridge.config.nvidia import NvmlHealth
from drabridge.config.pattern import is_hex_id
from drabridge.inventory.host import Host
from drabridge.inventory.nvidia import Failure, FailureKind
from drabridge.inventory.template_values import MatchedDevice, bound_driver

SHOWN_MAX = 64  # longest part of a value in a reason, in characters

APPLICATION_XIDS: Mapping[int, str] = MappingProxyType(
    {
        13: "graphics engine exception",
        31: "GPU memory page fault",
        43: "GPU stopped processing",
        45: "preemptive cleanup, due to previous errors",
        68: "video processor exception",
        94: "contained memory error",
    }
)
"""XIDs that are an application's fault: they say nothing about the GPU. Every other XID counts.

The numbers are those that NVIDIA's own programs ignore (NVIDIA/k8s-device-plugin internal/rm/health.go, and
kubernetes-sigs/dra-driver-nvidia-gpu cmd/gpu-kubelet-plugin/device_health.go, xidsToSkip), with two differences that
follow NVIDIA's catalogue (https://docs.nvidia.com/deploy/xid-errors/). XID 94 is added: only the application must be
started again. XID 109, which those programs ignore, is left out: the GPU needs a reset.
"""


def failures(
    rules: Sequence[HealthRule],
    device: MatchedDevice,
    host: Host,
    *,
    missing_nodes: Sequence[str],
    missing_mounts: Sequence[str],
    missing_cdi: Sequence[str] = (),
) -> list[str]:
    """Return why the device is not healthy, one sentence for each failure; empty when it is healthy.

    ``missing_nodes`` (companions' too), ``missing_mounts`` and ``missing_cdi``: what ``container_edits.py`` did not
    find.
    """
    found = [] if any(rule.node_exists is False for rule in rules) else [*missing_nodes]
    found += [*missing_mounts, *missing_cdi]
    if device.nvidia.get("excluded") == "true":
        found.append("NVIDIA's driver excludes this GPU")
    return [*found, *(reason for rule in rules for reason in _broken(rule, device, host)), *device.exec_failures]


def fault(rules: Sequence[HealthRule], device: MatchedDevice) -> str:
    """Return the worst fault that NVML reports and a rule counts, as a short word: ``lost``, ``xid-79``; "" if none."""
    counted = [
        failure
        for rule in rules
        if (faults := rule.nvml_faults) is not None
        for failure in device.nvml_failures
        if _counts(failure, faults)
    ]
    worst = min(counted, key=lambda failure: list(FailureKind).index(failure.kind), default=None)
    if worst is None:
        return ""
    return f"{worst.kind}-{worst.xid}" if worst.xid else str(worst.kind)


def _broken(rule: HealthRule, device: MatchedDevice, host: Host) -> Iterator[str]:
    """Yield why one rule does not hold; nothing when it holds.

    ``nodeExists`` is checked by :func:`failures`; the programs of ``exec`` run separately (``exec_checks.py``).
    """
    if rule.driver_bound is not None:
        bound = bound_driver(device.udev)
        if not rule.driver_bound.matches(bound):
            yield f"the driver {bound or 'none'} is bound, expected {rule.driver_bound}"
    for name, patterns in rule.attrs.items():
        value = device.udev.attributes.get(name)
        if not patterns.matches(value or "", hex_id=is_hex_id("attr", name)):
            yield f"the attribute {name} is {_quoted(value)}, expected {patterns}"
    for template, patterns in rule.file_templates():
        path = template.render_path(device.lookup(host))
        try:
            line = host.health_line(path) if path else None
        except TimeoutError:
            yield f"{path} does not answer"
            continue
        if not (patterns.accepts_missing if line is None else patterns.matches(line)):
            yield f"{path or template} says {_quoted(line)}, expected {patterns}"
    if (faults := rule.nvml_faults) is not None:
        yield from dict.fromkeys(failure.text for failure in device.nvml_failures if _counts(failure, faults))


def _counts(failure: Failure, faults: NvmlHealth) -> bool:
    """Whether this rule counts a failure that NVML reports."""
    match failure.kind:
        case FailureKind.XID:
            of_application = failure.xid in APPLICATION_XIDS and failure.xid not in faults.also_xids
            return faults.xid and not of_application and failure.xid not in faults.ignore_xids
        case FailureKind.ECC:
            return faults.ecc
        case FailureKind.THERMAL:
            return faults.thermal
        case FailureKind.LOST | FailureKind.RESET:
            return True


def _quoted(value: str | None) -> str:
    return "nothing" if value is None else f'"{value[:SHOWN_MAX]}"'
