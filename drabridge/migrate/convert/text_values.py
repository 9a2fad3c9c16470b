"""Read chart values that an object has as text (``helm.values: |``) as if they were YAML of the object itself.

All lines of such a text are indented alike. So the parsed values have positions in the whole text, and edits of these
lines change the inner text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from drabridge.migrate.convert.kinds import ARGO_SOURCES, manifests
from drabridge.migrate.convert.yaml_nodes import NotYamlError, matching, parse_json, parts, value
from drabridge.migrate.convert.yaml_nodes import parse as parse_yaml
from drabridge.yaml_reader import MappingNode, Node, Path, Scalar, owner_of

_ARGO = tuple((*source, "helm", "values") for source in ARGO_SOURCES)
# kind -> where it has values of a chart as a text. HelmChart and its HelmChartConfig are those of k3s and RKE2.
_TEXTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "Application": _ARGO,
    "ApplicationSet": _ARGO,
    "HelmChart": (("spec", "valuesContent"),),
    "HelmChartConfig": (("spec", "valuesContent"),),
}
_WORDS = ("values: |", "valuesContent: |")


def parsed(text: str) -> tuple[list[Node], bool]:
    """Return the documents of a text, and whether it is JSON. Raises NotYamlError."""
    if not text.lstrip().startswith("{"):
        return parse(text), False
    try:
        return parse_json(text), True
    except NotYamlError as error:
        try:
            return parse(text), False
        except NotYamlError:
            raise error from None


def parse(text: str) -> list[Node]:
    """Return the root of each YAML document, with chart values in texts parsed, too. Raises NotYamlError."""
    roots = parse_yaml(text)
    if any(word in text for word in _WORDS):
        for root in roots:
            _read_texts(text, root)
    return roots


def _read_texts(text: str, root: Node) -> None:
    for path in list(_places(root)):
        owned = owner_of(root, path)
        if owned is None or not isinstance(owned[0], MappingNode):
            continue
        owner, number = owned
        key, node = owner.entries[number]
        if isinstance(node, Scalar) and (found := _inner(text, node)) is not None:
            owner.entries[number] = (key, found)


def _places(root: Node) -> Iterator[Path]:
    for manifest in manifests(value(root)):
        for pattern in _TEXTS.get(manifest.kind, ()):
            yield from ((*manifest.path, *path) for path in matching(manifest.body, pattern))


def _inner(text: str, node: Scalar) -> Node | None:
    """Return a text's content with positions in the whole text; None if it is no mapping, or no literal block."""
    if node.style != "|":
        return None
    start = text.find("\n", node.start) + 1
    block = text[start : node.end]
    lines = [line.removesuffix("\r") for line in block.split("\n")]
    first = next((line for line in lines if line.strip()), "")
    indent = len(first) - len(first.lstrip(" "))
    if "\n".join(line[indent:] for line in lines).rstrip("\n") != node.text.rstrip("\n"):
        return None
    try:
        roots = parse_yaml(block)
    except NotYamlError:
        return None
    if len(roots) != 1 or not isinstance(roots[0], MappingNode) or roots[0].flow:
        return None
    _shift(roots[0], start)
    return roots[0]


def _shift(root: Node, by: int) -> None:
    """Move the positions of a node and of everything in it."""
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        node.start += by
        node.end += by
        pending += parts(node)
