"""Define the names that a switch leaves in a cluster: labels, annotations, policies. Do not change them."""

from __future__ import annotations

import re
from collections.abc import Mapping

LABEL = "switch.drabridge/to"
"""On a Namespace: with :data:`CLAIMS`, its new pods get claims."""
CLAIMS = "claims"
OPT_OUT = "switch.drabridge/to"
"""An annotation of a pod: with :data:`LIMITS` it keeps its limits."""
LIMITS = "limits"
PERCENT = "switch.drabridge/percent"
"""An annotation of a Namespace: percentage of owners of pods that are switched; without it, all."""
SELECTOR = "switch.drabridge/selector"
"""An annotation of a Namespace: only pods with these labels are switched, ``app=web,tier=gpu``."""
TEMPLATES = "switch.drabridge/templates"
"""An annotation of a Namespace: the names of the templates made for the switch, separated by commas."""
RESOURCES = "switch.drabridge/resources"
"""An annotation of the policy: ``nvidia.com/gpu=gpu.example.com`` for each resource, separated by commas."""
ALL_OWNERS = 100  # percent
MANAGER = "drabridge-migrate"
"""The field manager, and ``app.kubernetes.io/managed-by`` of all that is made."""
MANAGED_BY = {"app.kubernetes.io/managed-by": MANAGER}
POLICY = "drabridge-switch"
GUARD = "drabridge-switch-templates"


def percent_of(notes: Mapping[str, str]) -> int:
    """Return the percentage of switched owners by a Namespace's annotations, read as the policy does.

    The namespace's owner may write any text there: 0 if it is no number.
    """
    text = notes.get(PERCENT)
    if text is None:
        return ALL_OWNERS
    return int(text) if re.fullmatch("[0-9]{1,3}", text, re.ASCII) else 0
