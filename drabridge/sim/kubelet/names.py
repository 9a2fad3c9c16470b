"""Kubernetes' rule for the name of an extended resource (``pkg/apis/core/v1/helper/helpers.go``,
IsExtendedResourceName).
"""

from __future__ import annotations

import re

_NATIVE_DOMAIN = "kubernetes.io/"
_QUOTA_PREFIX = "requests."
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def is_qualified_name(text: str) -> bool:
    """``[subdomain/]name``: subdomain of at most 253 lower-case characters, name of at most 63 (apimachinery,
    validation.go).
    """
    prefix, slash, name = text.rpartition("/")
    if slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _NAME.fullmatch(name) is not None


def is_extended_resource_name(text: str) -> bool:
    """What Register accepts: a domain that is not kubernetes.io, and a valid quota name ``requests.<text>``."""
    if "/" not in text or _NATIVE_DOMAIN in text or text.startswith(_QUOTA_PREFIX):
        return False
    return is_qualified_name(_QUOTA_PREFIX + text)
