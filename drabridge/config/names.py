"""Check names by the rules of Kubernetes, CDI and the kernel. Each rule cites who enforces it."""

from __future__ import annotations

import re
from functools import lru_cache

from drabridge.config.declaration import form
from drabridge.config.problems import unmet

DNS_LABEL_MAX = 63
DNS_SUBDOMAIN_MAX = 253
DRIVER_MAX = 63  # resource.k8s.io validation: the driver's name is a DNS subdomain of at most 63 characters
ATTRIBUTE_ID_MAX = 32  # resource.k8s.io DeviceMaxIDLength
ATTRIBUTE_DOMAIN_MAX = 63  # resource.k8s.io DeviceMaxDomainLength
ATTRIBUTE_VALUE_MAX = 64  # resource.k8s.io DeviceAttributeMaxValueLength, strings and versions
ATTRIBUTES_AND_CAPACITY_MAX = 32  # resource.k8s.io ResourceSliceMaxAttributesAndCapacitiesPerDevice
COUNTERS_MAX = 32  # resource.k8s.io: counters in one set
VALID_VALUES_MAX = 10  # resource.k8s.io CapacityRequestPolicyDiscreteMaxOptions

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_DNS_LABEL = re.compile(_LABEL)
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# CDI, pkg/parser/parser.go: ValidateVendorName and ValidateClassName, ValidateDeviceName
_CDI_KIND = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?/[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CDI_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?",
    re.ASCII,
)

# CDI (pkg/parser ValidateVendorName) wants a letter first; the API wants a DNS subdomain of at most 63 characters.
DRIVER_NAME = form(
    "domain name",
    rf"[a-z]([-a-z0-9]*[a-z0-9])?(\.{_LABEL})+",
    f"a lower-case domain name that begins with a letter, at most {DRIVER_MAX} characters",
    'for example "gpu.example.com"',
    DRIVER_MAX,
)
POOL_NAME = form(
    "name",
    rf"{_LABEL}([./]{_LABEL})*",
    "DNS subdomains separated by '/', at most 253 characters",
    "leave it out to use the node's name",
    DNS_SUBDOMAIN_MAX,
)
PROFILE_NAME = form(
    "name",
    _LABEL,
    "lower-case letters, digits and '-', at most 63, a letter or digit at both ends",
    max_length=DNS_LABEL_MAX,
)
DEVICE_CLASS_NAME = form(
    "name",
    rf"{_LABEL}(\.{_LABEL})*",
    "a lower-case DNS subdomain, as for every Kubernetes object name",
    max_length=DNS_SUBDOMAIN_MAX,
)
# POSIX XBD 8.1, so that every shell can read it; CDI refuses names with '='.
ENV_NAME = form(
    "name",
    "[A-Za-z_][A-Za-z0-9_]*",
    "an environment variable name: letters, digits and '_', not beginning with a digit",
)
PERMISSIONS = form(
    '"r", "w" or "rw"',
    "r|w|rw|wr",
    '"r", "w" or "rw"',
    "m lets a container create any device node of that number; leave it out",
)
FILE_MODE = form(  # a number that YAML read as octal is refused: 0660 is 432
    'octal, or "host"',
    "0[0-7]{3}|host",
    'four octal digits, the first a 0, or "host"',
    'with quotation marks: "0660"',
)


def is_dns_label(text: str) -> bool:
    """RFC 1123 label, lower case, at most 63 characters."""
    return len(text) <= DNS_LABEL_MAX and _DNS_LABEL.fullmatch(text) is not None


def is_dns_subdomain(text: str, limit: int = DNS_SUBDOMAIN_MAX) -> bool:
    """RFC 1123 subdomain, lower case."""
    return len(text) <= limit and _SUBDOMAIN.fullmatch(text) is not None


def is_semver(text: str) -> bool:
    """Semantic version 2.0.0 with all three parts, at most 64 characters: what a ``version`` attribute must be."""
    return len(text) <= ATTRIBUTE_VALUE_MAX and _SEMVER.fullmatch(text) is not None


@lru_cache(maxsize=1024)  # a thousand devices have the same dozen names
def is_attribute_name(text: str) -> bool:
    """Whether the API takes the name of an attribute: a C identifier, or ``domain/identifier``."""
    domain, slash, name = text.rpartition("/")
    identifier = len(name) <= ATTRIBUTE_ID_MAX and _C_IDENTIFIER.fullmatch(name) is not None
    return identifier and (not slash or is_dns_subdomain(domain, ATTRIBUTE_DOMAIN_MAX))


def is_cdi_kind(text: str) -> bool:
    """``vendor/class``, as a CDI file's ``kind`` must be."""
    return _CDI_KIND.fullmatch(text) is not None


def is_cdi_name(text: str) -> bool:
    """Whether a text may name a device in a CDI file: the part of a qualified name after the equals sign."""
    return _CDI_NAME.fullmatch(text) is not None


def extended_resource_name(text: str) -> str:
    """Check the name that pods put under ``limits``.

    Kubelet's rule (pkg/apis/core/v1/helper IsExtendedResourceName, applied by the device manager at Register): a
    domain prefix, not of kubernetes.io, and ``requests.<name>`` must itself be a qualified name because quotas use it.
    """
    domain, slash, name = text.partition("/")
    if not slash:
        raise unmet("a domain and a name, as in vendor.com/gpu", "kubelet refuses resource names without a domain")
    if "kubernetes.io/" in text:
        raise unmet("a domain of your own", "kubernetes.io is reserved and kubelet refuses it")
    if text.startswith("requests."):
        raise unmet('a name that does not begin with "requests."', "resource quotas use that prefix")
    if not is_dns_subdomain("requests." + domain):
        limit = DNS_SUBDOMAIN_MAX - len("requests.")
        raise unmet(f"a lower-case domain before the slash, at most {limit} characters", "for example nvidia.com/gpu")
    if len(name) > DNS_LABEL_MAX or not _NAME_PART.fullmatch(name):
        raise unmet(
            f"1 to {DNS_LABEL_MAX} letters, digits, '-', '_' or '.' after the slash, a letter or digit at both ends",
            "for example nvidia.com/gpu",
        )
    return text


def label_name(text: str) -> str:
    """Check the name of a Node's label (metav1 validation IsQualifiedName), not one of Kubernetes' own domains.

    What those mean is decided by kubelet, the cluster's controllers and the NodeRestriction admission plugin.
    """
    domain, slash, name = text.rpartition("/")
    if len(name) > DNS_LABEL_MAX or not _NAME_PART.fullmatch(name) or (slash and not is_dns_subdomain(domain)):
        raise unmet(
            f"a label's name: with or without a domain, and 1 to {DNS_LABEL_MAX} letters, digits, '-', '_' or '.'",
            "for example vendor.com/gpu.model",
        )
    if any(domain == own or domain.endswith(f".{own}") for own in ("kubernetes.io", "k8s.io")):
        raise unmet("a domain of your own or of your vendor", "kubernetes.io and k8s.io belong to Kubernetes")
    return text


def attribute_name(text: str) -> str:
    """Check an attribute or capacity of a device: ``model`` or ``vendor.com/model`` (resource.k8s.io QualifiedName)."""
    domain, slash, name = text.rpartition("/")
    if slash and not is_dns_subdomain(domain, ATTRIBUTE_DOMAIN_MAX):
        raise unmet(f"a lower-case domain of at most {ATTRIBUTE_DOMAIN_MAX} characters before the slash")
    if domain == "resource.kubernetes.io":
        raise unmet(
            "a name outside resource.kubernetes.io",
            "the standard attributes pcieRoot, pciBusID and numaNode are published without being configured",
        )
    if len(name) > ATTRIBUTE_ID_MAX or not _C_IDENTIFIER.fullmatch(name):
        raise unmet(
            f"letters, digits and '_', not beginning with a digit, at most {ATTRIBUTE_ID_MAX} characters",
            f'for example "{re.sub(r"[^A-Za-z0-9_]", "_", name)[:ATTRIBUTE_ID_MAX] or "model"}"',
        )
    return text


def owner_id(value: int | str) -> int | str:
    """Check a uid or gid, or ``host``. No names: the agent's container does not have the node's /etc/group."""
    if value != "host" and (isinstance(value, str | bool) or not 0 <= value < (1 << 32) - 1):
        raise unmet('a number, or "host"', "getent group dialout shows the number of a name")
    return value


def absolute_path(text: str) -> str:
    """Check a path that cannot leave its directory: absolute, without ``.`` and ``..``."""
    if not text.startswith("/") or "\0" in text or len(text) > 4096:
        raise unmet("an absolute path", "begin it with /")
    if any(part in {".", ".."} for part in text.split("/")):
        raise unmet("a path without '.' and '..'", "write the path that is meant")
    return text
