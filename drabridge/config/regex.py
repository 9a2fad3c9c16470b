"""Regular expressions that take time linear in the value, whatever the pattern and whatever the hardware says.

Python's ``re`` backtracks: ``(a+)+b`` against a serial number of forty a's runs for hours, and a USB stick chooses its
serial number. RE2 runs an automaton instead (https://swtch.com/~rsc/regexp/regexp3.html). It is imported at the first
``regex:`` of a configuration: an agent without one does not pay its 3.4 MiB and 10 ms.

The language is the common part of Python's ``re`` and RE2. ``\\d``, ``\\w`` and ``\\s`` mean ASCII, as in RE2. RE2
refuses look-around and back-references. Anchors, flags, named groups and other escapes are refused here: a match is
always of the whole value, so ``^usb`` would not mean what its author thinks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from drabridge.config.problems import unmet

REGEX_MAX = 512  # characters of a pattern
INSTRUCTIONS_MAX = 12_000  # of RE2's program; \W{1000} makes 11,004. Each may cost one step per byte of the value
VALUE_MAX = 16_384  # udevd's UDEV_LINE_SIZE, the longest property; sysfs attributes are a page

_TOKEN = re.compile(r"\\.?|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|\(\?|.", re.DOTALL)
_LETTERS = frozenset("dDwWsStnrfv")  # letters that may follow a backslash; signs always may


@dataclass(frozen=True)
class Regex:
    """A compiled pattern; equal to another when the texts are."""

    text: str
    _compiled: Any = field(repr=False, compare=False)

    @classmethod
    def compile(cls, text: str) -> Regex:
        """Compile a pattern. Raises Problems when it is not one, needs backtracking, or is too large."""
        if len(text) > REGEX_MAX:
            raise unmet(f"a pattern of at most {REGEX_MAX} characters", found=f"{len(text)} characters")
        _refuse_unsupported(text)
        import re2

        options = re2.Options()
        options.dot_nl = True
        options.never_capture = True
        options.log_errors = False  # to stderr, beside the error that is raised
        try:
            compiled = re2.compile(text.encode("utf-8", "surrogatepass"), options)
        except re2.error as error:
            reason = error.args[0].decode("utf-8", "replace")
            raise unmet("a regular expression of RE2", reason, found=text) from error
        if compiled.programsize > INSTRUCTIONS_MAX:
            expected = f"a pattern with at most {INSTRUCTIONS_MAX} instructions"
            raise unmet(expected, "use smaller repetition counts", found=text)
        return cls(text, compiled)

    def matches(self, value: str) -> bool:
        """Whether the pattern matches the whole value. Values longer than VALUE_MAX match no pattern."""
        if len(value) > VALUE_MAX:
            return False
        return self._compiled.fullmatch(value.encode("utf-8", "surrogatepass")) is not None

    def __str__(self) -> str:
        return f"/{self.text}/"


def _refuse_unsupported(text: str) -> None:
    """Refuse what RE2 reads differently from Python, or from what its author means. Raises Problems."""
    for token in _TOKEN.findall(text):
        if token in {"^", "$"}:
            hint = "a pattern always matches the whole value; write .* where anything may be"
            raise unmet("no anchors", hint, found=text)
        if token == "(?":
            hint = "look-around, flags and named groups are not supported"
            raise unmet("plain groups ( ) or (?: )", hint, found=text)
        if token == "\\":
            raise unmet("a character after the backslash", found=text)
        if token[0] == "\\" and token[1].isalnum() and token[1] not in _LETTERS:
            raise unmet("\\d, \\w, \\s, their opposites, or an escaped sign", f"{token} is not supported", found=text)
