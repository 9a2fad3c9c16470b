"""What kubelet, devices and others say does nothing to a terminal, a log line, a page or a metric."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
import yaml

from drabridge.cli.output import as_json_or_yaml, cell, table
from drabridge.config.problems import shorten
from drabridge.inventory.udev_device import clean
from drabridge.status.markup import tag
from drabridge.system.untrusted import cut
from drabridge.telemetry.logs import JsonFormatter, LogfmtFormatter
from podresources import table as tables
from podresources.cli.output import dump, exposition
from podresources.families import capacity_families, snapshot_families
from podresources.features import KubeletFeatures
from podresources.model import (
    Allocatable,
    AllocatableDevice,
    Claim,
    ClaimDevice,
    Container,
    DeviceEntry,
    Memory,
    NodeSnapshot,
    Pod,
    SocketIdentity,
)
from podresources.normalise import allocations_of
from podresources.table import printable
from podresources.topview import frame

EVIL = [
    *("\x1b[2J\x1b]0;title\x07", "a\rb", "a\nforged 1", "\0", "\x7f", "\x9b31m", "\u2028", "\u202eabc", "\u200e"),
    *("\udc80", "\ufeff", "a\tb", "\u00ad", "\U000e0041"),
]
NEVER = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200e\u200f\u2028\u2029\u202a-\u202e\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


def _log(text: str, formatter: logging.Formatter) -> str:
    record = logging.LogRecord("x", logging.INFO, "x", 1, "message", None, None)
    record.device = text
    return formatter.format(record)


def _node(text: str) -> tuple[NodeSnapshot, Allocatable]:
    """What kubelet lists where every name is this text."""
    socket = SocketIdentity(1, 2, 3)
    memory = (Memory(text, 1, (0,)),)
    claim = Claim(text, text, (ClaimDevice(text, text, text, text, (text,)),))
    container = Container(text, (DeviceEntry(text, (text,)),), (claim,), (1,), memory)
    pod = Pod(text, text, (container,), (1, 2), (Memory(text, 2, (0,)),))
    snapshot = NodeSnapshot((pod,), tuple(allocations_of(pod)), socket)
    return snapshot, Allocatable((AllocatableDevice(text, text),), (1,), memory, socket)


def _metrics(text: str) -> str:
    snapshot, allocatable = _node(text)
    return exposition([*snapshot_families(snapshot, KubeletFeatures()), *capacity_families(allocatable)])


def _top(text: str) -> str:
    snapshot, allocatable = _node(text)
    return frame(snapshot, allocatable, {}, 0.0, width=None, height=None)


WAYS: dict[str, Any] = {
    "printable": printable,
    "cell": cell,
    "cut": cut,
    "shorten": shorten,
    "clean": clean,
    "a table": lambda text: tables.render(["X"], [[text]]),
    "a table of drabridge": lambda text: table([{"x": text}], ["x"]),
    "JSON": lambda text: as_json_or_yaml({"x": text}, "json") + dump({"x": text}, "json"),
    "logfmt": lambda text: _log(text, LogfmtFormatter()),
    "a log in JSON": lambda text: _log(text, JsonFormatter()),
    "a page": lambda text: tag("p", text, title=text),
    "metrics": _metrics,
    "top": _top,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", EVIL)
def test_no_text_of_others_reaches_a_person_as_it_is(way: str, text: str) -> None:
    shown = str(WAYS[way](text))
    assert not NEVER.search(shown), shown
    assert not re.search("^forged", shown, re.MULTILINE) or way == "a page", "no line of its own"


@pytest.mark.parametrize("text", [text for text in EVIL if text != "\udc80"])
def test_documents_say_the_same_to_programs(text: str) -> None:
    document = {"x": text}
    for written in dump(document, "yaml"), as_json_or_yaml(document, "yaml"):
        assert not NEVER.search(written)
        assert yaml.safe_load(written) == document
    assert json.loads(dump(document, "json")) == document


def test_what_people_write_stays_as_it_is() -> None:
    for text in "GPU-0", "Grafikkarte für Zoë", "カード", "é", "a b":
        assert printable(text) == cell(text) == cut(text) == text
    assert printable("ü\x1b") == "ü\\x1b"
