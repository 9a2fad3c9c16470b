"""A log line is one fact, whatever a device or a peer puts into its fields."""

from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drabridge.telemetry.logs import JsonFormatter, LogfmtFormatter


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("drabridge.test").makeRecord(
        "drabridge.test", logging.INFO, "f", 1, message, (), None, extra=extra
    )


def test_fields_stand_beside_the_message() -> None:
    line = LogfmtFormatter().format(record("device gone", device="gpu-0", claims=["a b"], seconds=0.5))
    assert line.endswith(
        'level=info logger=drabridge.test msg="device gone" device=gpu-0 claims="[\\"a b\\"]" seconds=0.5'
    )
    assert json.loads(JsonFormatter().format(record("x", device="gpu-0")))["device"] == "gpu-0"


def test_an_exception_is_a_field() -> None:
    try:
        raise OSError("disk full")
    except OSError as error:
        found = logging.getLogger("t").makeRecord(
            "t", logging.ERROR, "f", 1, "m", (), (OSError, error, error.__traceback__)
        )
    parsed = json.loads(JsonFormatter().format(found))
    assert parsed["reason"] == "OSError: disk full"
    assert "Traceback" in parsed["trace"]


@pytest.mark.parametrize("formatter", [LogfmtFormatter(), JsonFormatter()])
@given(text=st.text())
def test_hostile_text_stays_on_one_short_line(formatter: logging.Formatter, text: str) -> None:
    line = formatter.format(record("m", value=text * 500))
    assert "\n" not in line
    assert "\r" not in line
    assert "\x1b" not in line
    assert len(line) < 30_000  # 2,000 characters, each at most a pair of \uXXXX
