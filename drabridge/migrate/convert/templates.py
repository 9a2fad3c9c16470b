"""Name and write ResourceClaimTemplates: one for each namespace, resource, count and selection of devices."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator

from msgspec import Struct

from drabridge.migrate.convert.splice import scalar
from drabridge.migrate.convert.yaml_nodes import Value, same

API_VERSION = "resource.k8s.io/v1"
KIND = "ResourceClaimTemplate"
TEMPLATES_FILE = "resourceclaimtemplates.yaml"  # of templates that are written apart from what needs them
_NAME_MAX = 63  # a template may have 253 characters; its name is also the start of the claims' names
_HASH = 6
_OWN_NAME = re.compile(r"([-a-z0-9]+?)-[1-9][0-9]?(?:-[0-9a-f]{6})?")


class Template(Struct, frozen=True):
    """What a container needs, as a template says it."""

    namespace: str
    resource: str
    device_class: str
    count: int
    selectors: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``nvidia-gpu-2``; with a short hash of the selectors where there are some."""
        domain, _, word = self.resource.partition("/")
        name = slug(f"{domain.partition('.')[0]}-{word}", _NAME_MAX - _HASH - 5)
        return "-".join([name, str(self.count), *([_digest(self.selectors)] if self.selectors else [])])

    def spec(self) -> Value:
        """Return the object's ``spec`` as parsed YAML would be."""
        exactly: dict[str, Value] = {"deviceClassName": self.device_class}
        if self.count != 1:
            exactly["count"] = str(self.count)
        if self.selectors:
            exactly["selectors"] = [{"cel": {"expression": one}} for one in self.selectors]
        request: Value = {"name": request_name(self.resource), "exactly": exactly}
        return {"spec": {"devices": {"requests": [request]}}}

    def document(self) -> Value:
        """Return the whole object as parsed YAML would be."""
        metadata: dict[str, Value] = {"name": self.name}
        if self.namespace:
            metadata["namespace"] = self.namespace
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": self.spec()}

    def lines(self) -> list[str]:
        """Return the manifest, without the line that separates documents."""
        namespace = [f"  namespace: {scalar(self.namespace)}"] if self.namespace else []
        count = [f"          count: {self.count}"] if self.count != 1 else []
        selectors = [f"          - cel: {{expression: {_in_quotes(one)}}}" for one in self.selectors]
        return [
            f"apiVersion: {API_VERSION}",
            f"kind: {KIND}",
            "metadata:",
            f"  name: {self.name}",
            *namespace,
            "spec:",
            "  spec:",
            "    devices:",
            "      requests:",
            f"      - name: {scalar(request_name(self.resource))}",
            "        exactly:",
            f"          deviceClassName: {scalar(self.device_class)}",
            *count,
            *(["          selectors:", *selectors] if selectors else []),
        ]


class Existing(Struct, frozen=True):
    """A template that some file has already."""

    namespace: str
    name: str
    spec: Value


def request_name(resource: str) -> str:
    """Return the name of the one request, and of the pod's claim: ``gpu`` for ``nvidia.com/gpu``."""
    return slug(resource.rpartition("/")[2], 40)


def is_template_of(template: str, claim: str) -> bool:
    """Return whether a template and a pod's claim have names that a conversion gives: nvidia-gpu-2 for gpu.

    ``claim``: "" where it has no name.
    """
    found = _OWN_NAME.fullmatch(template)
    return found is not None and (not claim or any(claim.startswith(word) for word in _beginnings(found[1])))


def _beginnings(name: str) -> Iterator[str]:
    """Yield what a claim's name may begin with: the resource's own name, cut where it is long, or its domain."""
    yield name.partition("-")[0] + "-"
    while name:
        yield name[:16]
        name = name.partition("-")[2]


def missing(wanted: Iterable[Template], there: Iterable[Existing]) -> list[Template]:
    """Return the templates that are not there yet, each once, in order."""
    known = {(one.namespace, one.name): one for one in there}
    found: dict[tuple[str, str], Template] = {}
    for template in wanted:
        existing = known.get((template.namespace, template.name))
        if existing is None:
            found.setdefault((template.namespace, template.name), template)
    return list(found.values())


def foreign(wanted: Iterable[Template], there: Iterable[Existing]) -> Template | None:
    """Return the first template whose name is taken by one that says something else."""
    known = {(one.namespace, one.name): one for one in there}
    for template in wanted:
        existing = known.get((template.namespace, template.name))
        if existing is not None and not same(template.spec(), existing.spec):
            return template
    return None


def templates_file(templates: Iterable[Template]) -> str:
    """Return the templates as one file."""
    return "---\n".join("\n".join(template.lines()) + "\n" for template in templates)


def slug(text: str, limit: int) -> str:
    """Return a DNS label made of the text; with a hash of it where letters were lost."""
    word = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "device"
    if len(word) <= limit:
        return word
    return f"{word[: limit - _HASH - 1].rstrip('-')}-{_digest([text])}"


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_HASH]


def _in_quotes(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
