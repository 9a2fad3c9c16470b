"""A state as one number of 64 bits: every value of every field is numbered when it is first met."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.ledger.search.rules import HIDDEN
from tests.ledger.search.states import Config, State

Codes = NDArray[np.uint64]
Numbers = NDArray[np.intp]
_ALL = (1 << 64) - 1
_PLAIN = ("healthy", "api", "scheduler", "up", "known", "noticed", "gathered", "faults", "moves")
_WIDTHS = {"healthy": 2, "api": 2, "scheduler": 2, "up": 1, "known": 1, "noticed": 1, "faults": 2, "moves": 2}


class Domain:
    """The values of a kind that were met, numbered."""

    def __init__(self, width: int) -> None:
        self.values: list[Any] = []
        self._width = width
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        """The number of a value; :exc:`OverflowError` if there are too many."""
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
            if number >> self._width:
                raise OverflowError(f"more than {1 << self._width} different values, such as {value}")
        return number


class Packing:
    """Where each field is in the number. The ledger is on top, so that sorted numbers are sorted by ledger."""

    def __init__(self, config: Config) -> None:
        self.pods = tuple(f"pod{index}" for index in range(config.pods))
        self.claims = tuple(f"claim{index}" for index in range(config.claims))
        wide = 9 if config.leases else 8  # with leases there is more to a claim
        widths = _WIDTHS | {"gathered": 12, "moves": 2 if config.moves else 0}
        if config.prompt:  # the slices follow from the ledger
            widths |= {"api": 0, "scheduler": 0}
        life = 5 if config.proofs and config.devices > 1 else 4
        widths |= dict.fromkeys(self.pods, life) | dict.fromkeys(self.claims, wide)
        pod, claim = Domain(life), Domain(wide)
        self.domains: dict[str, Domain] = {name: Domain(width) for name, width in widths.items()}
        self.domains |= dict.fromkeys(self.pods, pod) | dict.fromkeys(self.claims, claim)
        self.shifts: dict[str, int] = {}
        at = 0
        for name, width in widths.items():
            self.shifts[name] = at
            at += width
        self.shifts["ledger"] = at
        self.ledgers = 1 << (64 - at)
        self.masks = {name: ((1 << width) - 1) << self.shifts[name] for name, width in widths.items()}
        self.masks["ledger"] = (self.ledgers - 1) << at
        for name in ("healthy", "api", "scheduler", "faults", "moves"):
            for value in range(1 << widths[name]):
                self.domains[name].number(value)
        for name in ("up", "known", "noticed"):
            for value in (False, True):
                self.domains[name].number(value)
        self.none = self.domains["gathered"].number(None)

    # --- one state ---

    def code(self, state: State) -> int:
        """The number of a state."""
        return self._bits(state)[1]

    def state(self, code: int, reads: Iterable[str] | None = None) -> State:
        """The state of a number; of ``reads`` alone if given, everything else is hidden."""
        wanted = self.masks.keys() if reads is None else reads
        values = {name: self._value(code, name) for name in wanted}
        return State(
            pods=tuple(values.get(name, HIDDEN) for name in self.pods),
            claims=tuple(values.get(name, HIDDEN) for name in self.claims),
            **{name: values.get(name, HIDDEN) for name in ("ledger", *_PLAIN)},
        )

    def change(self, after: State) -> tuple[int, int]:
        """What to keep of a number, and what to add to it, so that it becomes what ``after`` shows."""
        mask, bits = self._bits(after)
        return _ALL & ~mask, bits

    def _value(self, code: int, name: str) -> Any:
        number = (code & self.masks[name]) >> self.shifts[name]
        return number if name == "ledger" else self.domains[name].values[number]

    def _bits(self, state: State) -> tuple[int, int]:
        mask = bits = 0
        fields: list[tuple[str, Any]] = [(name, getattr(state, name)) for name in _PLAIN]
        fields += zip(self.pods, state.pods, strict=True)
        fields += zip(self.claims, state.claims, strict=True)
        for name, value in fields:
            if value is not HIDDEN:
                mask |= self.masks[name]
                bits |= self.domains[name].number(value) << self.shifts[name]
        if state.ledger is not HIDDEN:
            if state.ledger >= self.ledgers:
                raise OverflowError(f"more than {self.ledgers} different ledgers")
            mask |= self.masks["ledger"]
            bits |= state.ledger << self.shifts["ledger"]
        return mask, bits

    def mask(self, reads: Iterable[str]) -> int:
        """The bits of these fields."""
        return sum(self.masks[name] for name in reads)

    # --- many states ---

    def of(self, codes: Codes, name: str) -> Numbers:
        """The numbers of one field."""
        return ((codes & np.uint64(self.masks[name])) >> np.uint64(self.shifts[name])).view(np.intp)

    def put(self, codes: Codes, name: str, numbers: Numbers) -> Codes:
        """The states with other numbers in one field."""
        rest = codes & np.uint64(_ALL & ~self.masks[name])
        return rest | (numbers.view(np.uint64) << np.uint64(self.shifts[name]))


def unique(codes: Codes) -> Codes:
    """Sorted, each once. (``np.unique`` hashes, which takes many times as long as the processor's vector sort.)"""
    codes = np.sort(codes)
    fresh = np.ones(len(codes), np.bool_)
    np.not_equal(codes[1:], codes[:-1], out=fresh[1:])
    return codes[fresh]


class Mapping:
    """A function of numbered values as an array, worked out for each value once it was met."""

    def __init__(self, count: Callable[[], int], of: Callable[[int], int]) -> None:
        self._count, self._of = count, of
        self._known = np.zeros(0, np.intp)

    def array(self) -> Numbers:
        """One number for each value. Working them out may bring new values: they follow in the same call."""
        while len(self._known) < self._count():
            more = [self._of(number) for number in range(len(self._known), self._count())]
            self._known = np.concatenate([self._known, np.array(more, np.intp)])
        return self._known
