"""Write the chart's README: what it installs, how, and every value with its comment from values.yaml."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

_KEY = re.compile(r"( *)([A-Za-z]+):(?: +(.*))?")
_OPAQUE = "config"  # the agent's own file: described in docs/reference/configuration.md
_HEAD = """# The chart of drabridge

For operators who install with Helm. One node agent offers the same devices to limits and to ResourceClaims, and never
to two workloads at once.

```console
helm install drabridge oci://{registry}/charts/drabridge --namespace drabridge --create-namespace
kubectl label namespace drabridge pod-security.kubernetes.io/enforce=privileged   # hostPath; no container is privileged
helm test drabridge --namespace drabridge                                         # a pod gets a device
```

Without values every node with `/dev/kvm` offers `example.com/kvm`, to try it with; your devices go under `config`.
`docs/installation.md` in the repository explains upgrades and removal, `docs/security.md` what each exception costs.

## Values

This table is made from `values.yaml` by `python -m deploy.generate`.

| Value | Default | What |
|---|---|---|
"""


class Value(Struct, frozen=True):
    """One key of the values. ``default`` is its text, empty for a group."""

    path: str
    default: str
    comment: str


def values(text: str) -> Iterator[Value]:
    """Yield each key of values.yaml with the comment above it or beside it, in order."""
    above: list[str] = []
    parents: list[tuple[int, str]] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.strip("# "))
            continue
        found = _KEY.fullmatch(line)
        if found:
            indent, key, rest = len(found[1]), found[2], found[3] or ""
            parents = [*(one for one in parents if one[0] < indent), (indent, key)]
            default, _, beside = rest.partition("#") if "  #" in rest or rest.startswith("#") else (rest, "", "")
            path = ".".join(name for _, name in parents)
            if not path.startswith(f"{_OPAQUE}."):
                yield Value(path, default.strip(), " ".join(filter(None, [*above, beside.strip()])))
        above = []


def text(source: str, registry: str) -> str:
    """Return the README of a chart with these values, which is pushed to this registry."""
    rows = [
        f"| `{one.path}` | {f'`{one.default}`' if one.default else ''} | {one.comment.replace('|', chr(92) + '|')} |\n"
        for one in values(source)
        if one.default or one.comment
    ]
    return _HEAD.format(registry=registry) + "".join(rows)
