"""Remove the repetitions of a large List answer before it is decoded, so that only different entries take memory.

Before 1.37 kubelet adds a claim's devices again at every failed prepare (kubernetes #141335): answers of 20 MB hold a
handful of devices sixty thousand times. Decoded, they take ten times their size. So the bytes are walked here
(protobuf's encoding: tag, length, payload), and only the shortest entry of each device of a claim is kept: repeats
lengthen ``cdi_devices``.
"""

from __future__ import annotations

from collections.abc import Iterator

LARGE_BYTES = 1 << 20
"""Smaller answers are decoded as they are: 500 pods with 4,096 devices take 0.4 MB."""

MOST_SEEN = 1024  # so many different entries of a claim are compared as a whole; the others field by field

# Field numbers of podresources/v1/api.proto.
_TO_CLAIM_RESOURCES = (1, 3, 5, 4)
"""ListPodResourcesResponse.pod_resources, PodResources.containers, ContainerResources.dynamic_resources,
DynamicResource.claim_resources."""
_CDI_DEVICES = 1  # of ClaimResource


class MalformedError(ValueError):
    """The bytes are no protobuf message."""


def shrink(data: bytes) -> bytes:
    """Return an answer that decodes to the same devices, each once for each container and claim.

    Small and malformed answers come back as they are: decoding tells what is wrong with them.
    """
    if len(data) <= LARGE_BYTES:
        return data
    try:
        return _without_repeats(memoryview(data), _TO_CLAIM_RESOURCES)
    except MalformedError:
        return data


def _without_repeats(message: memoryview, path: tuple[int, ...]) -> bytes:
    """Copy a message; follow ``path`` down its fields, and keep each entry of the last one once."""
    out = bytearray()
    entries: dict[bytes, memoryview] = {}
    seen: set[bytes] = set()
    for number, whole, payload in _fields(message):
        if number != path[0] or payload is None:
            out += whole
        elif len(path) > 1:
            inner = _without_repeats(payload, path[1:])
            out += _tag(number) + _varint(len(inner)) + inner
        elif (copy := bytes(payload)) not in seen:  # most repeats are the same bytes
            if len(seen) < MOST_SEEN:
                seen.add(copy)
            key = b"".join(field for of, field, _ in _fields(payload) if of != _CDI_DEVICES)
            known = entries.get(key)
            if known is None or len(whole) < len(known):
                entries[key] = whole
    for whole in entries.values():
        out += whole
    return bytes(out)


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """Yield (number, the field with its tag, its payload if it has a length) of each field. Raises MalformedError."""
    at, end = 0, len(message)
    while at < end:
        begin = at
        tag, at = _read_varint(message, at)
        payload = None
        match tag & 7:
            case 2:  # a length and so many bytes
                size, at = _read_varint(message, at)
                payload = message[at : at + size]
                at += size
            case 0:  # a varint
                _, at = _read_varint(message, at)
            case 1:  # 64 bits
                at += 8
            case 5:  # 32 bits
                at += 4
            case kind:
                raise MalformedError(f"wire type {kind}")
        if at > end:
            raise MalformedError("a field is longer than its message")
        yield tag >> 3, message[begin:at], payload


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedError("a number without an end")


def _tag(number: int) -> bytes:
    return _varint(number << 3 | 2)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
