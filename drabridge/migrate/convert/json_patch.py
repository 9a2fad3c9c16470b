"""Write operations as RFC 6902 has them, one in a line: what Kustomize takes as a patch."""

from __future__ import annotations

from drabridge.migrate.convert.splice import Add, Append, Operation, flow_text
from drabridge.migrate.convert.yaml_nodes import Value
from drabridge.yaml_reader import Path


def json_patch(operation: Operation, start: Path = ()) -> str:
    """Return an operation as one of RFC 6902, in one line. ``start``: what its path begins at."""
    path = (*start, *operation.path)
    if isinstance(operation, Add):
        return json_operation("add", (*path, operation.key), operation.new)
    if isinstance(operation, Append):
        return json_operation("add", (*path, "-"), operation.new)
    return json_operation("remove", path)


def json_operation(word: str, path: Path, new: Value | None = None) -> str:
    """Return one operation of RFC 6902 in one line."""
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    said: dict[str, Value] = {"op": word, "path": pointer}
    if new is not None:
        said["value"] = new
    return flow_text(said, json_style=True)
