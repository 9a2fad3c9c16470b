"""Say which labels the Node shall have, by the devices that it has. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from drabridge.config.names import DNS_LABEL_MAX
from drabridge.config.node_labels import LabelRule
from drabridge.config.template import Lookup, Template
from drabridge.inventory.devices import Device, Presence

_NEVER_IN_A_LABEL = re.compile(r"[^-A-Za-z0-9_. ]")
_ENDS = "-_."  # metav1 validation IsValidLabelValue: a letter or digit at both ends


def wanted_labels(
    rules: Sequence[LabelRule], devices: Iterable[Device], lookup: Callable[[Device], Lookup | None]
) -> dict[str, str]:
    """Return the labels by name. Faulty devices count, unplugged ones do not.

    The values of all labels come from devices that are alike: if models are mixed, from those of the most frequent one.
    ``lookup`` gives the values of a device's template fields; None if the device is gone.
    """
    there: dict[str, list[Device]] = {}
    for device in devices:
        if device.presence is not Presence.GONE and not device.former:
            there.setdefault(device.resource, []).append(device)
    found = {}
    alike: dict[tuple[str, ...], list[Device]] = {}  # the devices with the same values of all labels so far
    for rule in rules:
        own = [device for resource in rule.resources for device in there.get(resource, ())]
        if rule.value is None or not own:
            found[rule.name] = _number(rule, own)
            continue
        left = alike.get(rule.resources, own)
        values = {device.name: _rendered(rule.value, lookup(device)) for device in left}
        (text, _), *_ = Counter(filter(None, values.values())).most_common(1) or [("", 0)]
        found[rule.name] = label_value(rule.convert(text)) if text else ""
        alike[rule.resources] = [device for device in left if values[device.name] in (text, "")]
    return {name: value for name, value in found.items() if value}


def label_value(text: str) -> str:
    """Return the text as a label's value, written as GPU Feature Discovery does (internal/lm/resource.go, sanitise)."""
    words = _NEVER_IN_A_LABEL.sub("", text).split()
    return "-".join(words).lstrip(_ENDS)[:DNS_LABEL_MAX].rstrip(_ENDS)


def _number(rule: LabelRule, devices: Sequence[Device]) -> str:
    if not devices or rule.count is None:
        return ""
    return str(len(devices) if rule.count == "devices" else devices[0].replicas)


def _rendered(template: Template, lookup: Lookup | None) -> str:
    return "" if lookup is None else template.render(lookup) or ""
