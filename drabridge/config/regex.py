"""Regular expressions that take time linear in the text, whatever the pattern and whatever the hardware says.

Python's ``re`` backtracks: ``(a+)+b`` against a serial number of forty a's runs for hours, and a USB stick chooses its
serial number. This is Thompson's construction instead: the pattern becomes a small automaton and all of its states
advance together, so a text of n characters costs at most n times the number of states, which is limited at load time.
One character's test (``[a-f]``, ``\\d``, ``.``) is left to ``re``, where it cannot backtrack. What needs backtracking
(back-references, look-around) is refused; anchors are refused because a match is always of the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from drabridge.config.problem import unmet

REGEX_MAX = 512  # characters of a pattern
STATES_MAX = 2000  # of the automaton; x{1000} alone makes 1000
DEPTH_MAX = 50  # groups inside groups
VALUE_MAX = 16_384  # udevd's UDEV_LINE_SIZE, the longest property; sysfs attributes are a page

_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_BOUNDS = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}")
_SHORTHANDS = "dDwWsS"
_CONTROL = "tnrfv"

_Test = Callable[[str], bool]


@dataclass(slots=True)
class _State:
    """Either consumes one character that passes ``test``, or splits without consuming. No successors: the end."""

    test: _Test | None = None
    next: list[_State] = field(default_factory=list)


_Build = Callable[[_State], _State]  # given what follows, the entry of a fragment: repetition builds it again


@dataclass(frozen=True)
class Regex:
    """A compiled pattern; equal to another when the texts are."""

    text: str
    _start: _State = field(repr=False, compare=False)

    @classmethod
    def compile(cls, text: str) -> Regex:
        """Raises Problems when the pattern is not one, or needs backtracking, or is too large."""
        if len(text) > REGEX_MAX:
            raise unmet(f"a pattern of at most {REGEX_MAX} characters", found=f"{len(text)} characters")
        return cls(text, _Compiler(text).compile())

    def matches(self, value: str) -> bool:
        """Whether the pattern matches the whole value. Values longer than VALUE_MAX match no pattern."""
        if len(value) > VALUE_MAX:
            return False
        states = _closure([self._start])
        for char in value:
            states = _closure([s for state in states if state.test and state.test(char) for s in state.next])
            if not states:
                return False
        return any(state.test is None and not state.next for state in states)

    def __str__(self) -> str:
        return f"/{self.text}/"


def _closure(states: list[_State]) -> list[_State]:
    """Every state that is reached without consuming a character; those that only split are left out."""
    seen: set[int] = set()
    reached: list[_State] = []
    stack = list(states)
    while stack:
        state = stack.pop()
        if id(state) in seen:
            continue
        seen.add(id(state))
        if state.test is None and state.next:
            stack.extend(state.next)
        else:
            reached.append(state)
    return reached


class _Compiler:
    """Recursive descent over alternation, sequence, repetition and atom."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.states = 0

    def compile(self) -> _State:
        build = self._alternation()
        if self.at < len(self.text):
            raise unmet("balanced parentheses", "write \\) for a parenthesis that is meant literally", found=self.text)
        return build(_State())

    def _state(self, test: _Test | None, following: list[_State]) -> _State:
        self.states += 1
        if self.states > STATES_MAX:
            raise unmet(f"a pattern with at most {STATES_MAX} states", "use smaller repetition counts", found=self.text)
        return _State(test, following)

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _alternation(self) -> _Build:
        branches = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        return lambda end: self._state(None, [branch(end) for branch in branches])

    def _sequence(self) -> _Build:
        parts: list[_Build] = []
        while self._peek() not in {"", "|", ")"}:
            parts.append(self._repetition())

        def build(end: _State) -> _State:
            for part in reversed(parts):
                end = part(end)
            return end

        return build

    def _repetition(self) -> _Build:
        atom = self._atom()
        low, high = 1, 1
        if self._peek() in {"*", "+", "?"}:
            low, high = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[self._peek()]
            self.at += 1
        elif bounds := _BOUNDS.match(self.text, self.at):
            low = int(bounds[1])
            high = (int(bounds[3]) if bounds[3] else -1) if bounds[2] else low
            self.at = bounds.end()
        else:
            return atom
        if self._peek() == "?":  # lazy: the same set of whole texts
            self.at += 1
        elif self._peek() in {"*", "+"}:
            raise unmet(
                "one quantifier after an item", f"found {self.text[self.at - 1 : self.at + 1]}", found=self.text
            )
        if high != -1 and high < low:
            raise unmet("a repetition {low,high} with low at most high", found=self.text)
        return lambda end: self._repeat(atom, low, high, end)

    def _repeat(self, atom: _Build, low: int, high: int, end: _State) -> _State:
        if high == -1:
            loop = self._state(None, [end])
            loop.next.append(atom(loop))
            end = loop
        else:
            for _ in range(high - low):
                end = self._state(None, [atom(end), end])
        for _ in range(low):
            end = atom(end)
        return end

    def _atom(self) -> _Build:
        char = self._peek()
        if char == "(":
            return self._group()
        if char == "[":
            found = _CLASS.match(self.text, self.at)
            if not found:
                raise unmet("a character class that ends with ]", found=self.text)
            return self._single(found.group())
        if char == "\\":
            return self._single(self._escape())
        if char in {"*", "+", "?"}:
            raise unmet(f"something before {char}", f"write \\{char} for the character itself", found=self.text)
        if char in {"^", "$"}:
            raise unmet("no anchors", "a pattern always matches the whole value; write .* where anything may be",
                        found=self.text)  # fmt: skip
        return self._single("." if char == "." else re.escape(char), length=1)

    def _group(self) -> _Build:
        self.at += 1
        if self.text.startswith("?:", self.at):
            self.at += 2
        elif self._peek() == "?":
            raise unmet("plain groups ( ) or (?: )", "look-around, flags and named groups need backtracking",
                        found=self.text)  # fmt: skip
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise unmet(f"groups nested at most {DEPTH_MAX} deep", found=self.text)
        inner = self._alternation()
        self.depth -= 1
        if self._peek() != ")":
            raise unmet("balanced parentheses", "write \\( for a parenthesis that is meant literally", found=self.text)
        self.at += 1
        return inner

    def _escape(self) -> str:
        char = self.text[self.at + 1 : self.at + 2]
        if not char:
            raise unmet("a character after the backslash", found=self.text)
        if char.isalnum() and char not in _SHORTHANDS + _CONTROL:
            raise unmet("\\d, \\w, \\s, their opposites, or an escaped sign", f"\\{char} is not supported",
                        found=self.text)  # fmt: skip
        return self.text[self.at : self.at + 2]

    def _single(self, source: str, length: int | None = None) -> _Build:
        self.at += len(source) if length is None else length
        try:
            test = re.compile(source, re.DOTALL).fullmatch
        except (re.error, FutureWarning) as error:
            raise unmet("a valid character class", str(error), found=self.text) from error
        return lambda end: self._state(lambda char: test(char) is not None, [end])
