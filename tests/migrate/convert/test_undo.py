"""Going back from claims to limits: byte for byte, beside a person's changes, refused where it cannot be known."""

from __future__ import annotations

from pathlib import Path

import pytest

from drabridge.migrate.convert.conversion import convert, reverse
from drabridge.migrate.convert.undo import BEGIN, END
from tests.migrate.convert.checks import SETTINGS

FOLDER = Path(__file__).parents[1] / "manifests"
TEXT = (FOLDER / "deployment-two-documents.yaml").read_text()
CONVERTED = convert(TEXT, SETTINGS).text


def test_a_text_that_was_never_converted_stays() -> None:
    assert reverse(TEXT).text == TEXT


def test_lines_that_a_person_adds_or_changes_elsewhere_stay() -> None:
    edited = CONVERTED.replace("kind: Service\n", "kind: Service\n# mine\n").replace("port: 80", "port: 81")
    edited += "---\nkind: Mine\n"
    back = reverse(edited)
    assert not back.findings
    wanted = TEXT.replace("kind: Service\n", "kind: Service\n# mine\n").replace("port: 80", "port: 81")
    assert back.text == wanted + "---\nkind: Mine\n"


def test_a_second_conversion_and_both_back() -> None:
    more = TEXT.partition("---\n")[2].replace("name: w", "name: v")
    again = convert(f"{CONVERTED}---\n{more}", SETTINGS).text
    assert again.count(BEGIN) == 2
    assert reverse(again).text == f"{TEXT}---\n{more}"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("nvidia-gpu-1\n      containers", "x\n      containers", "were changed"),
        ("          claims:\n          - name: gpu\n", "", "were changed, added or taken out"),
        ("kind: Service\n", "kind: Service\n          claims:\n          - name: gpu\n", "were changed, added"),
        (END, "# other", "end mark"),
        ("# was [", "# was (", "cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_known_is_refused(old: str, new: str, said: str) -> None:
    assert old in CONVERTED
    edited = CONVERTED.replace(old, new, 1)
    back = reverse(edited)
    assert back.text == edited
    (finding,) = back.findings
    assert said in finding.message
    assert "backup" in finding.hint


def test_no_line_break_at_the_end_comes_back_beside_what_was_added() -> None:
    text = TEXT.removesuffix("\n")
    converted = convert(text, SETTINGS).text
    assert reverse(converted).text == text
    assert reverse(f"{converted}---\nkind: Mine\n").text == f"{text}\n---\nkind: Mine\n"
