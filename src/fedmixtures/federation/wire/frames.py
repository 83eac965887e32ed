"""Frame format v1: a JSON head and raw float64, flat, versioned, of bounded size, never pickle.

Layout: ``FMX1``, the length of the head (4 bytes, little-endian), the head (JSON, UTF-8), then the
segments one after another. The head's entry ``segments`` names each of them with its shape
(float64 numbers, little-endian) or its number of bytes (a sealed box). What stands in the head and
what follows must agree to the byte.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np

MAGIC = b"FMX1"
MAX_FRAME_BYTES = 16 * 2**20
MAX_DEPTH = 32
"""Of lists and objects within each other in a head."""
MAX_HEAD_BYTES = 2**18
MAX_SEGMENTS = 1024
MAX_AXES = 4
NODE_SCHEMA = "fedmixtures.node.2"
"""Requests to a node and its replies."""


class FrameError(ValueError):
    """Bytes that are not a frame of this format."""


@dataclass(frozen=True)
class Frame:
    """A head of plain JSON values, and segments by name."""

    head: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    boxes: dict[str, bytes] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes of this frame."""
        segments, body = [], []
        for name, array in self.arrays.items():
            numbers = np.ascontiguousarray(array, dtype="<f8")
            segments.append({"name": name, "shape": list(np.shape(array))})
            body.append(numbers.tobytes())
        for name, box in self.boxes.items():
            segments.append({"name": name, "bytes": len(box)})
            body.append(bytes(box))
        head = json.dumps({**self.head, "segments": segments}, allow_nan=False).encode()
        if len(head) > MAX_HEAD_BYTES:
            raise FrameError(f"the head has {len(head)} bytes, above {MAX_HEAD_BYTES}")
        return b"".join([MAGIC, len(head).to_bytes(4, "little"), head, *body])

    @classmethod
    def decode(cls, data: bytes, max_bytes: int = MAX_FRAME_BYTES) -> Frame:
        """The frame of these bytes; `FrameError` for anything that is not one, to the byte."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise FrameError(f"a frame is bytes, not {type(data).__name__}")
        if len(data) > max_bytes:
            raise FrameError(f"the frame has {len(data)} bytes, above the limit of {max_bytes}")
        data = bytes(data)
        if len(data) < 8 or data[:4] != MAGIC:
            raise FrameError("the frame does not begin with the mark of format 1")
        end = 8 + int.from_bytes(data[4:8], "little")
        if end - 8 > MAX_HEAD_BYTES or end > len(data):
            raise FrameError("the head is longer than it may be or than the frame")
        head = parsed_json(data[8:end])
        if not isinstance(head, dict):
            raise FrameError("the head is not a JSON object")
        arrays, boxes = _segments(head.pop("segments", None), data, end)
        return cls(head, arrays, boxes)


def parsed_json(text: bytes) -> Any:
    """JSON as the standard has it: no NaN or infinity, no key twice, no endless nesting."""
    try:
        found = json.loads(
            text.decode(), object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite
        )
        _not_deep(found)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise FrameError(f"not readable as JSON: {str(error)[:100]}") from None
    return found


def _not_deep(found: Any) -> None:
    """How deep the reader itself goes is another matter in every Python."""
    level = [found]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for one in level
            if isinstance(one, dict | list)
            for part in (one.values() if isinstance(one, dict) else one)
        ]
    if level:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is too large")
    return number


def _segments(table: Any, data: bytes, at: int) -> tuple[dict, dict]:
    """Cut the body into what the head says it holds."""
    arrays: dict[str, np.ndarray] = {}
    boxes: dict[str, bytes] = {}
    if not isinstance(table, list) or len(table) > MAX_SEGMENTS:
        raise FrameError("`segments` is missing, no list, or too long")
    for entry in table:
        name, shape, size = _segment(entry)
        if name in arrays or name in boxes:
            raise FrameError("a segment comes twice")
        if at + size > len(data):
            raise FrameError("the frame ends before its segments do")
        if shape is None:
            boxes[name] = data[at : at + size]
        else:
            numbers = np.frombuffer(data, dtype="<f8", count=size // 8, offset=at)
            arrays[name] = numbers.reshape(shape).astype(np.float64)
        at += size
    if at != len(data):
        raise FrameError(f"{len(data) - at} bytes follow the last segment")
    return arrays, boxes


def _segment(entry: Any) -> tuple[str, tuple[int, ...] | None, int]:
    """Name, shape (None for a box) and bytes of one line of the table."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise FrameError("a segment has no name")
    if set(entry) == {"name", "bytes"} and is_count(entry["bytes"]):
        return entry["name"], None, entry["bytes"]
    shape = entry.get("shape")
    if set(entry) != {"name", "shape"} or not isinstance(shape, list) or len(shape) > MAX_AXES:
        raise FrameError("a segment has neither a shape nor a number of bytes")
    if not all(is_count(length) for length in shape):
        raise FrameError("a segment's shape is not made of whole numbers")
    return entry["name"], tuple(shape), 8 * math.prod(shape)


def is_count(value: Any) -> TypeGuard[int]:
    """A whole number from 0 that fits in 32 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**32


def request(kind: str, **entries: Any) -> Frame:
    """The head of a request to a node."""
    return Frame({"schema": NODE_SCHEMA, "kind": kind, **entries})
