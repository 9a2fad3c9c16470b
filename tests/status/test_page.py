"""The page as text: what it shows of a document, and that hostile texts stay text."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
import time
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.status import page
from tests.support import status_documents
from tests.support.status_documents import _poisoned


class Reader(HTMLParser):
    """Elements with their attributes, and the text that a person sees."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> does not close what is open"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def names(self) -> set[str]:
        return {name for name, _ in self.elements}


def test_the_page_says_who_has_what() -> None:
    document = status_documents.busy()
    text = Reader(page.render(document)).text
    for row in document["devices"]:
        assert row["name"] in text
        assert row["pciBusID"] in text
    for words in (
        "gpu-node-07",
        "Ready",
        "vision/train-resnet-0/worker",
        "claim chat/llama-shard-a",
        "running, seen 4s ago",
        "→ dra: waiting 4m for search/embedder-6c9f7-x2x8q/main; 5 of 8 are wanted in the dra lane",
        "✕ faulty",
        "Input/output error",
        "is held by claim chat/llama-shard-a",
        "✓ streaming",
        "wanted: 3 legacy, * dra (annotation)",
    ):
        assert words in text
    assert "Needs a person" not in text


def test_trouble_comes_first_and_loud() -> None:
    reader = Reader(page.render(status_documents.troubled()))
    text = reader.text
    assert "Not ready" in text[:200]
    first_table = text.index("Devices of")
    for words in ("kubelet.sock does not exist", "Quarantine", "Conflict", "vision/stray/main", "Give one of them"):
        assert text.index(words) < first_table
    assert text.count("all resolve to the identity") == 1  # not among the notes again
    assert any(attributes.get("role") == "alert" for _, attributes in reader.elements)
    assert "#c62f24" in str(next(attributes["href"] for name, attributes in reader.elements if name == "link")).replace(
        "%23", "#"
    )


def test_a_ready_agent_with_a_device_in_doubt_does_not_look_well() -> None:
    document = status_documents.troubled()
    document["ready"], document["notReadyBecause"] = True, []
    assert "Ready, but devices are in doubt" in Reader(page.render(document)).text


@pytest.mark.parametrize("make", [status_documents.busy, status_documents.troubled])
def test_hostile_texts_stay_text(make: Any) -> None:
    honest, poisoned = Reader(page.render(make())), Reader(page.render(_poisoned(make())))
    assert "alert('x')" in poisoned.text
    assert poisoned.names() <= honest.names() | {"small"}
    assert not {"script", "img", "iframe", "object", "form"} & poisoned.names()
    for name, attributes in poisoned.elements:
        assert not [key for key in attributes if key.startswith("on")], (name, attributes)


@given(st.text(st.characters(), max_size=60))
def test_any_text_is_shown_and_nothing_else_changes(text: str) -> None:
    document = copy.deepcopy(BUSY)
    document["node"] = document["devices"][0]["name"] = document["refusals"][0]["message"] = text
    document["devices"][0]["holders"][0]["pod"] = text
    assert len(Reader(page.render(document)).elements) == len(Reader(page.render(BUSY)).elements) or not text


BUSY = status_documents.busy()


def test_surrogates_of_odd_bytes_are_shown_escaped() -> None:
    document = status_documents.busy()
    document["devices"][0]["id"] = b"GPU-\xff".decode(errors="surrogateescape")
    assert b"GPU-\\udcff" in page.render(document)


def test_nothing_is_fetched_and_no_script_is_needed() -> None:
    reader = Reader(page.render(status_documents.busy()))
    links = [
        (name, value) for name, attributes in reader.elements for key, value in attributes.items()
        if key in ("src", "href", "action", "data", "srcset", "poster", "formaction", "style")
    ]  # fmt: skip
    assert sorted(name for name, _ in links) == ["a", "link"]
    assert all(value and value.startswith(("data:image/svg+xml,", "/")) for _, value in links)
    assert "url(" not in page.STYLE
    assert "@import" not in page.STYLE
    assert "script" not in reader.names()


def test_the_policy_allows_the_style_sheet_and_nothing_more() -> None:
    body = page.render(status_documents.busy()).decode()
    style = re.search(r"<style>(.*?)</style>", body, re.DOTALL)
    assert style
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = page.HEADERS["Content-Security-Policy"]
    assert f"style-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_it_loads_itself_again_unless_told_not_to() -> None:
    assert b'http-equiv="refresh"' in page.render(status_documents.busy())
    still = page.render(status_documents.busy(), refresh=False)
    assert b'http-equiv="refresh"' not in still
    assert b'href="/"' in still


def test_four_thousand_devices_are_drawn_quickly_and_those_in_trouble_are_shown() -> None:
    document = status_documents.many(4000)
    took = []
    for _ in range(3):
        before = time.perf_counter()
        body = page.render(document)
        took.append(time.perf_counter() - before)
    assert min(took) < 2  # 50 ms measured; this sees what is badly wrong
    reader = Reader(body)
    assert sum(attributes.get("role") == "rowheader" for _, attributes in reader.elements) == page.ROWS_MAX
    assert "400 of 4,000 devices are shown" in reader.text
    for row in document["devices"][-2:]:  # in doubt, and faulty: last in the list
        assert row["name"] in reader.text.split("Devices of", 1)[1]
    assert len(body) < 1 << 20


def test_a_bar_is_as_long_as_the_resource_has_devices() -> None:
    for document in (status_documents.busy(), status_documents.troubled(), status_documents.many(500)):
        widths = [
            float(str(attributes["width"]).rstrip("%"))
            for name, attributes in Reader(page.render(document)).elements
            if name == "rect"
        ]
        assert sum(widths) == pytest.approx(100, abs=0.1)
    assert len(widths) <= 8  # many devices are drawn in groups


def test_no_resources() -> None:
    text = Reader(page.render(status_documents.status([], [], not_ready=["no resource is served yet"]))).text
    assert "No resource is configured." in text
    assert "no resource is served yet" in text


# --- colours ---------------------------------------------------------------------------------------------------------


def _themes() -> list[dict[str, str]]:
    """The light and the dark theme's colours by name."""
    blocks = re.findall(r":root \{(.*?)\}", page.STYLE, re.DOTALL)
    assert len(blocks) == 2
    return [dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block)) for block in blocks]


def _luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", _themes(), ids=["light", "dark"])
def test_contrast(colours: dict[str, str]) -> None:
    """WCAG 2.2: 4.5 for text (AA), 3 for graphics."""
    for text, ground in (
        *((name, "paper") for name in ("ink", "quiet", "well", "bad", "moving")),
        *((name, "bad-paper") for name in ("ink", "quiet", "well", "bad")),
    ):
        assert _contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for graphic in ("legacy", "dra", "moving", "shared"):
        assert _contrast(colours[graphic], colours["paper"]) >= 3, graphic
