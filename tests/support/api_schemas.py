"""The schemas of Kubernetes' API, as the package ``kubernetes-validate`` ships them, each read once.

The package reads all definitions of a release, some MiB, for every object.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the API's schemas are not installed")

for name in ("all_versions", "schema_contents"):
    vars(kubernetes_validate.utils)[name] = functools.cache(vars(kubernetes_validate.utils)[name])

ValidationError: type[Exception] = kubernetes_validate.ValidationError


def validate(obj: dict[str, Any], release: str) -> None:
    """Raise ValidationError for an object that an API server of this release does not take, or knows a part less of."""
    kubernetes_validate.validate(obj, release, strict=True)
