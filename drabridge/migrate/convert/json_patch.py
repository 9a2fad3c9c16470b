"""Write operations as RFC 6902 has them, one in a line: what Kustomize takes as a patch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from drabridge.migrate.convert.kinds import at
from drabridge.migrate.convert.splice import Add, Append, Operation, flow_text
from drabridge.migrate.convert.yaml_nodes import Value
from drabridge.yaml_reader import Path


def json_patch(operations: Iterable[Operation], body: Value, start: Path = ()) -> Iterator[str]:
    """Yield operations in their order; what goes is tested first. ``body``: what they change, which is at ``start``."""
    for one in operations:
        path = (*start, *one.path)
        if isinstance(one, Add):
            yield _operation("add", (*path, one.key), one.new)
        elif isinstance(one, Append):
            yield _operation("add", (*path, "-"), one.new)
        else:
            if (there := at(body, one.path)) is not None:
                yield _operation("test", path, there)
            yield _operation("remove", path)


def _operation(word: str, path: Path, new: Value | None = None) -> str:
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    said: dict[str, Value] = {"op": word, "path": pointer}
    if new is not None:
        said["value"] = new
    return flow_text(said, json_style=True)
