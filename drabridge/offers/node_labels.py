"""Say which labels the Node shall have, from the devices that are there. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from drabridge.config.label_rule import LabelRule
from drabridge.config.names import DNS_LABEL_MAX
from drabridge.config.template import Lookup
from drabridge.inventory.model import Device, Presence

_NEVER_IN_A_LABEL = re.compile(r"[^-A-Za-z0-9_. ]")
_ENDS = "-_."  # metav1 validation IsValidLabelValue: a letter or digit at both ends


def wanted_labels(
    rules: Sequence[LabelRule], devices: Iterable[Device], lookup: Callable[[Device], Lookup | None]
) -> dict[str, str]:
    """Return the labels by name. Faulty devices count, unplugged ones do not.

    ``lookup`` gives the values of a device's template fields; None where the device is not there any more.
    """
    there: dict[str, list[Device]] = {}
    for device in devices:
        if device.presence is not Presence.GONE and not device.former:
            there.setdefault(device.resource, []).append(device)
    found = {}
    for rule in rules:
        own = [device for resource in rule.resources for device in there.get(resource, ())]
        found[rule.name] = _value(rule, own, lookup)
    return {name: value for name, value in found.items() if value}


def label_value(text: str) -> str:
    """Return the text as a label's value, written as GPU Feature Discovery does (internal/lm/resource.go, sanitise)."""
    words = _NEVER_IN_A_LABEL.sub("", text).split()
    return "-".join(words).lstrip(_ENDS)[:DNS_LABEL_MAX].rstrip(_ENDS)


def _value(rule: LabelRule, devices: Sequence[Device], lookup: Callable[[Device], Lookup | None]) -> str:
    if not devices:
        return ""
    if rule.count == "devices":
        return str(len(devices))
    if rule.count == "replicas":
        return str(devices[0].replicas)
    if rule.value is None:
        return ""
    values: Counter[str] = Counter()
    for device in devices:
        of_device = lookup(device)
        text = None if of_device is None else rule.value.render(of_device)
        if text:
            values[text] += 1
    return label_value(rule.convert(values.most_common(1)[0][0])) if values else ""
