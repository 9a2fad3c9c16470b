"""Addresses to listen on: HOST:PORT, and what is refused."""

from __future__ import annotations

import pytest

from drabridge.errors import ConfigError
from drabridge.system.port import parse_listen


@pytest.mark.parametrize(
    ("text", "expected"), [("127.0.0.1:1", ("127.0.0.1", 1)), (":9", ("", 9)), ("[::1]:2", ("::1", 2))]
)
def test_listen_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_listen(text) == expected


@pytest.mark.parametrize("text", ["9400", "localhost", "a:b", "::1:3", "h:70000", "h:-1"])
def test_bad_listen_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_listen(text)
