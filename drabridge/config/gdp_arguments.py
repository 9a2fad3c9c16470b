"""Take generic-device-plugin's usual form, ``--device`` arguments in a DaemonSet, for the file that they stand for."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml

from drabridge import yaml_reader

DEPTH_MAX, VALUES_MAX = 50, 100_000  # with aliases written out
_CONTAINERS = ("containers", "initContainers")
_FLAG = re.compile(r"--(device|domain)(?:=(.*))?", re.DOTALL)


def file_of(text: str) -> str | None:
    """Return the plugin's file for a manifest with ``--device`` arguments; None where there are none.

    Each argument is taken as it is written: whether an id is quoted in it matters.
    """
    if "--device" not in text:
        return None
    try:
        yaml_reader.read(text, DEPTH_MAX, VALUES_MAX, lambda found: None)  # else what follows could go on for ever
        found = [flag for document in yaml.safe_load_all(text) for flag in _flags(document)]
    except (yaml.YAMLError, yaml_reader.TooLarge, ValueError, RecursionError):
        return None
    devices = [value for name, value in found if name == "device"]
    if not devices:
        return None
    domains = [f"domain: {value}\n" for name, value in found if name == "domain"][-1:]
    return "".join(domains) + "devices:\n" + "".join(f"-\n{textwrap.indent(one, '  ')}\n" for one in devices)


def _flags(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the flags of every container in a manifest, in order: name and value."""
    if isinstance(node, list):
        for item in node:
            yield from _flags(item)
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        if key in _CONTAINERS and isinstance(value, list):
            for container in (one for one in value if isinstance(one, dict)):
                yield from _of_words([*_texts(container.get("command")), *_texts(container.get("args"))])
        else:
            yield from _flags(value)


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _of_words(words: list[str]) -> Iterator[tuple[str, str]]:
    for index, word in enumerate(words):
        if found := _FLAG.fullmatch(word):
            following = words[index + 1] if index + 1 < len(words) else ""
            yield found[1], following if found[2] is None else found[2]
