"""Write each log record as one line of ``key=value`` or JSON; the fields of ``logging``'s ``extra`` stay fields."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

# Fields that every LogRecord has; all others come from `extra`.
_STANDARD = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_MAX_VALUE = 2_000  # characters: a hostile udev property or error text must not flood the log


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the record as an ordered mapping: time, level, logger, message, then the caller's fields.

    An exception's text is the field ``reason``, unless the caller gave one; its trace follows for errors.
    """
    found: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": record.getMessage(),
    }
    found.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
    if record.exc_info and record.exc_info[1] is not None:
        found.setdefault("reason", f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}")
        if record.levelno >= logging.ERROR or logging.getLogger().isEnabledFor(logging.DEBUG):
            found["trace"] = logging.Formatter().formatException(record.exc_info)
    return found


def _plain(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}... ({len(text)} characters)"


def _quote(text: str) -> str:
    bare = text and not any(char <= " " or char in '"=\x7f' for char in text) and text.isprintable()
    return text if bare else json.dumps(text)


class LogfmtFormatter(logging.Formatter):
    """``time=... level=info logger=drabridge.agent.main msg="..." device=gpu-0``"""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quote(_plain(value))}" for key, value in fields(record).items())


class JsonFormatter(logging.Formatter):
    """One JSON object a line, same fields as logfmt."""

    def format(self, record: logging.LogRecord) -> str:
        clean: Mapping[str, Any] = {
            key: _plain(value) if isinstance(value, str) else value for key, value in fields(record).items()
        }
        return json.dumps(clean, default=str)


def setup(level: str = "info", form: Literal["logfmt", "json"] = "logfmt") -> None:
    """Send every record to stderr in one format. Only the command that runs the agent calls this, once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else LogfmtFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(logging.WARNING)
