"""Every reader of foreign bytes bears its known inputs, and a few new ones; `python -m tests.fuzz` makes many more."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fuzz.hunt import TooLargeError, TooSlowError, bounded, one_round, opened
from tests.fuzz.mutate import fields, written
from tests.fuzz.reader import Form, Read, Reader
from tests.fuzz.readers import READERS

FEW = 12  # new inputs for each reader


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if not reader.processes])
def test_a_reader_bears_what_is_known_and_a_little_more(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Crashes of the past are among the inputs that are known: they are kept beside the good ones."""
    caplog.set_level(logging.CRITICAL)
    reader = READERS[name]
    seeds = reader.seeds()
    with opened(reader) as read:
        for path, data in seeds.items():
            try:
                with bounded():
                    read(data)
            except Exception as error:
                raise AssertionError(f"python -m tests.fuzz {name} --input {path}") from error
        _, failure = one_round(reader, read, list(seeds.values()), 1, FEW)
    assert failure is None, f"{failure.data!r}" if failure else ""


def broken(fault: str) -> Reader:
    """A reader that fails on inputs with the letter x in them."""

    @contextmanager
    def begun(root: Path) -> Iterator[Read]:
        def read(data: bytes) -> None:
            if b"x" in data and fault == "raises":
                raise KeyError("x")
            if b"x" in data and fault == "hangs":
                while True:
                    pass
            if b"x" in data and fault == "grows":
                assert len(bytearray(300 << 20)) > 0

        yield read

    return Reader("config", Form.YAML, "", begun)


@pytest.mark.parametrize(("fault", "error"), [("raises", KeyError), ("hangs", TooSlowError), ("grows", TooLargeError)])
def test_a_reader_that_raises_hangs_or_grows_is_found(
    fault: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "hangs":
        monkeypatch.setattr("tests.fuzz.hunt.MOST_SECONDS", 0.2)
    monkeypatch.setattr("tests.fuzz.hunt.SMALLER_SECONDS", 1.0)
    reader = broken(fault)
    with opened(reader) as read:
        _, failure = one_round(reader, read, [b"key: value\nother: word\n"], 1, 200)
    assert failure is not None
    assert b"x" in failure.data
    assert isinstance(failure.error, error)


def test_messages_are_taken_apart_and_put_together() -> None:
    from podresources.wire import v1_pb2 as wire

    pod = wire.PodResources(name="p", namespace="default")
    pod.containers.add(name="m", cpu_ids=[1, 300])
    data = wire.ListPodResourcesResponse(pod_resources=[pod]).SerializeToString()
    assert b"".join(map(written, fields(data))) == data
    (number, kind, inner), *_ = fields(data)
    assert (number, kind) == (1, 2)
    assert isinstance(inner, bytes)
    assert (1, 2, b"p") in fields(inner)
