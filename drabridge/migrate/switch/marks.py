"""Name what a switch leaves in a cluster: labels, annotations and the policies' names. These names are promises."""

from __future__ import annotations

LABEL = "drabridge/switch"
"""On a Namespace: with :data:`CLAIMS`, its new pods get claims."""
CLAIMS = "claims"
OPT_OUT = "drabridge/switch"
"""An annotation of a pod: with :data:`OFF` it keeps its limits."""
OFF = "off"
PERCENT = "drabridge/switch-percent"
"""An annotation of a Namespace: how many of a hundred owners of pods are switched; all where it is not there."""
SELECTOR = "drabridge/switch-selector"
"""An annotation of a Namespace: only pods with these labels are switched, ``app=web,tier=gpu``."""
TEMPLATES = "drabridge/switch-templates"
"""An annotation of a Namespace: the names of the templates that are there for the switch, with commas."""
RESOURCES = "drabridge/switch-resources"
"""An annotation of the policy: ``nvidia.com/gpu=gpu.example.com`` for each resource, with commas."""
MANAGER = "drabridge-migrate"
"""The field manager, and ``app.kubernetes.io/managed-by`` of all that is made."""
MANAGED_BY = {"app.kubernetes.io/managed-by": MANAGER}
POLICY = "drabridge-switch"
GUARD = "drabridge-switch-templates"
