"""Each kind of small fault is made, what only people read is left alone, and every broken module can be read."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, importers, main, sample
from tests.mutants.mutations import mutations

SOURCE = '''
"""Text."""
log = None

class C(Struct, frozen=True): pass

def f(self, é: bool = True):
    """Text."""
    if self.a and not self.b:
        log.info("x", extra=True)
        if self.new:
            log.info("y")
        elif self.old:
            log.info("z")
        self.é = call(1, version=2)
        asyncio.create_task(work, name="work")
        if (found := self.find()) is not None:
            return found
        return Lane.SHARED if é is None else Lane.DRA
    del self.c[1]
    raise ValueError("a" if é else "b")
'''


def changes() -> dict[str, str]:
    return {one.what: one.apply(SOURCE) for one in mutations(SOURCE)}


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("without 'self.a'", "if (((not self.b))):"),
        ("without not", "if self.a and (self.b):"),
        ("True for 'self.a and not self.b'", "if True:"),
        ("without 'self.é = call(1, version=2)'", "        pass\n"),
        ("without 'version=2'", "self.é = call(1)\n"),
        (
            "((found := self.find()) is None) for '(found := self.find()) is not None'",
            "if ((found := self.find()) is None):",
        ),
        ("(é is not None) for 'é is None'", "if (é is not None) else"),
        ("SHARED for Lane.DRA", "else Lane.SHARED"),
        ("without 'del self.c[1]'", "    pass\n    raise"),
        ("False for True", "é: bool = False"),
    ],
)
def test_a_small_fault_is_made(what: str, line: str) -> None:
    text = changes()[what]
    assert line.replace("(((not self.b)))", "((not self.b))") in text or line in text


def test_what_people_read_stays() -> None:
    assert all(text.count('"""Text."""') == 2 and 'log.info("x", extra=True)' in text for text in changes().values())
    assert all("frozen=True" in text for text in changes().values())
    assert not [what for what in changes() if "name=" in what and "create_task" not in what]
    assert all('raise ValueError("a" if é else "b")' in text for text in changes().values())
    assert all('if self.new:\n            log.info("y")\n        elif self.old:' in text for text in changes().values())


@pytest.mark.parametrize("path", ["dra/leases.py", "ledger/apply_event.py", "agent/standby.py", "lanes/desired.py"])
def test_every_broken_module_can_be_read(path: str) -> None:
    source = (ROOT / "drabridge" / path).read_text()
    found = mutations(source)
    assert len(found) > 50
    for one in sample(found, 60, 1):
        ast.parse(one.apply(source))


def test_the_tests_of_a_module_are_found() -> None:
    assert "tests/lanes/test_shared.py" in importers(Path("drabridge/lanes/shared.py"))


@pytest.mark.deep
def test_a_fault_is_seen(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys,
        "argv",
        ["mutants", "drabridge/ledger/lock.py", "--tests", "tests/ledger/test_lock.py", "--count", "2", "--seed", "2"],
    )
    assert main() in (0, 1)
    said = capsys.readouterr().out
    assert "2 changes of drabridge/ledger/lock.py" in said
    assert "tests/ledger/test_lock.py::" in said
