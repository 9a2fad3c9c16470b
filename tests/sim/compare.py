"""Compare what the simulated API server says with what the real one said, up to what cannot be the same.

Differs by nature: uids (must correspond one to one), generated names (likewise), resourceVersions (must keep their
order, equal ones staying equal), times (must have the form). Everything else must be equal, type for type.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\Z")
_TIMES = ("creationTimestamp", "time", "allocationTimestamp", "lastTransitionTime", "deletionTimestamp")
_REVISION_TEXT = re.compile(r"(?<=too old resource version: 1 \()\d+(?=\))")


@dataclass(slots=True)
class Correspondence:
    """What stands for what between a recording and a replay."""

    uids: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    revisions: dict[int, int] = field(default_factory=dict)

    def differences(self, recorded: Any, ours: Any, path: str = "") -> list[str]:
        """One line per difference; empty means equal."""
        if type(recorded) is not type(ours):
            return [f"{path}: recorded {recorded!r}, got {ours!r}"]
        if isinstance(recorded, dict):
            missing = [f"{path}.{name}: missing" for name in recorded.keys() - ours.keys()]
            extra = [f"{path}.{name}: not in the recording ({ours[name]!r})" for name in ours.keys() - recorded.keys()]
            both = [name for name in recorded if name in ours]
            inner = chain.from_iterable(self._field(one, recorded[one], ours[one], f"{path}.{one}") for one in both)
            return [*sorted(missing + extra), *inner]
        if isinstance(recorded, list):
            if len(recorded) != len(ours):
                return [f"{path}: recorded {len(recorded)} items, got {len(ours)}: {ours!r}"]
            pairs = enumerate(zip(recorded, ours, strict=True))
            return [line for index, (one, two) in pairs for line in self.differences(one, two, f"{path}[{index}]")]
        return [] if recorded == ours else [f"{path}: recorded {recorded!r}, got {ours!r}"]

    def _field(self, name: str, recorded: Any, ours: Any, path: str) -> list[str]:
        if type(recorded) is not str or type(ours) is not str:
            return self.differences(recorded, ours, path)
        if name == "uid":
            return self._one_to_one(self.uids, recorded, ours, path)
        if name == "resourceVersion":
            return self._revision(int(recorded), int(ours), path)
        if name in _TIMES:
            return [] if _TIME.match(ours) else [f"{path}: not a time: {ours!r}"]
        if name == "continue":
            return self._token(recorded, ours, path)
        if name == "name" and recorded in self.names:
            return self._one_to_one(self.names, recorded, ours, path)
        expected = self.translated(recorded)
        if name == "message":
            expected, ours = (_REVISION_TEXT.sub("N", text) for text in (expected, ours))
        return self.differences(expected, ours, path)

    @staticmethod
    def _one_to_one(known: dict[str, str], recorded: str, ours: str, path: str) -> list[str]:
        if known.setdefault(recorded, ours) != ours:
            return [f"{path}: {recorded} stood for {known[recorded]}, now for {ours}"]
        twice = [one for one, other in known.items() if other == ours and one != recorded]
        return [f"{path}: {ours} stands for {recorded} and for {twice[0]}"] if twice else []

    def _revision(self, recorded: int, ours: int, path: str) -> list[str]:
        if self.revisions.setdefault(recorded, ours) != ours:
            return [f"{path}: revision {recorded} stood for {self.revisions[recorded]}, now for {ours}"]
        wrong = [
            one
            for one, other in self.revisions.items()
            if (one < recorded and other > ours) or (one > recorded and other < ours)
        ]
        return [f"{path}: revision {ours} for {recorded} is out of order with {wrong[0]}"] if wrong else []

    def _token(self, recorded: str, ours: str, path: str) -> list[str]:
        one, two = (json.loads(base64.urlsafe_b64decode(token + "==")) for token in (recorded, ours))
        found = self._revision(one.pop("rv"), two.pop("rv"), f"{path}.rv")
        return found + self.differences(one, two, path)

    def translated(self, text: str) -> str:
        """Recorded text with our uids and names in it."""
        for mapping in (self.uids, self.names):
            for recorded, ours in mapping.items():
                text = text.replace(recorded, ours)
        return text

    def request(self, body: Any) -> Any:
        """A recorded request body as a client of ours would send it."""
        if isinstance(body, dict):
            return {
                name: str(self.revisions[int(value)]) if name == "resourceVersion" else self.request(value)
                for name, value in body.items()
            }
        if isinstance(body, list):
            return [self.request(one) for one in body]
        return self.translated(body) if isinstance(body, str) else body
