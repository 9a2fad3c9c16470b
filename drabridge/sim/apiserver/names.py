"""The formats of names, with the server's words for a bad one (apimachinery ``validation.go``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"

LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    f"with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    f"'{_LABEL}(\\.{_LABEL})*')"
)
CASELESS_SUBDOMAIN_TEXT = (
    "an RFC 1123 subdomain must consist of alphanumeric characters, '-' or '.', and must start and end with an "
    f"alphanumeric character (e.g. 'Example.com', regex used for validation is '{_LABEL}(\\.{_LABEL})*')"
)
IDENTIFIER_TEXT = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric "
    "characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is "
    f"'{_IDENTIFIER}')"
)
QUALIFIED_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_QUALIFIED}')"
)
SEMVER_TEXT = "must be a string compatible with semver.org spec 2.0.0"

# semver.org's own suggestion, without named groups.
SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?",
    re.ASCII,
)


@lru_cache(maxsize=8192)
def _problems(text: str, pattern: str, limit: int, complaint: str) -> tuple[str, ...]:
    found = [] if len(text) <= limit else [f"must be no more than {limit} bytes"]
    return (*found, *([] if re.fullmatch(pattern, text) else [complaint]))


def label_problems(text: str) -> Sequence[str]:
    """RFC 1123 label, 63 bytes."""
    return _problems(text, _LABEL, 63, LABEL_TEXT)


def subdomain_problems(text: str, limit: int = 253) -> Sequence[str]:
    """RFC 1123 subdomain."""
    return _problems(text, _SUBDOMAIN, limit, SUBDOMAIN_TEXT)


def caseless_subdomain_problems(text: str) -> Sequence[str]:
    """RFC 1123 subdomain in either case (``LongNameCaseless`` of apimachinery)."""
    return _problems(text.lower(), _SUBDOMAIN, 253, CASELESS_SUBDOMAIN_TEXT)


def identifier_problems(text: str, limit: int = 32) -> Sequence[str]:
    """C identifier; 32 bytes in names of attributes and capacities."""
    return _problems(text, _IDENTIFIER, limit, IDENTIFIER_TEXT)


def label_key_problems(text: str) -> Sequence[str]:
    """``[subdomain/]name``, as for labels and taints."""
    prefix, slash, name = text.rpartition("/")
    found = _problems(name, _QUALIFIED, 63, QUALIFIED_TEXT)
    return [*found, *(subdomain_problems(prefix) if slash else ())]


NameFormat = Callable[[str], Sequence[str]]
