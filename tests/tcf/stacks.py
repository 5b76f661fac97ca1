"""`StackTraces` data of the Profiler service: words -> stacks with their counts.

As strict as the parser of the Eclipse client, which takes a length of 0, or one above the number of
frames that was asked for, as a reason to skip what follows: here it is an error. What does not belong
here: what addresses mean.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any

from wire import ProtocolError

FORMAT = "StackTraces"

#: A count is read as a signed number by clients.
MAX_COUNT = 2**31 - 1

Stacks = dict[tuple[int, ...], int]


def decode(
    data: bytes, address_bytes: int, big_endian: bool, frames: int
) -> list[tuple[int, tuple[int, ...]]]:
    """All `(count, (leaf, caller, ...))` as they come."""
    if address_bytes not in (4, 8):
        raise ProtocolError(f"AddrSize {address_bytes}")
    if len(data) % address_bytes:
        raise ProtocolError(f"{len(data)} bytes of data are no words of {address_bytes}")
    letter = "I" if address_bytes == 4 else "Q"
    words = struct.unpack(f"{'>' if big_endian else '<'}{len(data) // address_bytes}{letter}", data)
    found, at = [], 0
    while at < len(words):
        if at + 2 > len(words):
            raise ProtocolError("data end behind a count")
        count, length = words[at], words[at + 1]
        if not 0 < count <= MAX_COUNT:
            raise ProtocolError(f"count {count}")
        if not 0 < length <= frames:
            raise ProtocolError(f"a stack of {length} frames, {frames} were asked for")
        at += 2
        if at + length > len(words):
            raise ProtocolError("data end inside of a stack")
        found.append((count, words[at : at + length]))
        at += length
    return found


class Reads:
    """All that the reads of one configuration gave."""

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.stacks: Stacks = {}
        self.reads: list[dict[str, Any]] = []
        self.bytes = 0

    @property
    def samples(self) -> int:
        """How many samples there were."""
        return sum(self.stacks.values())

    def sum_of(self, key: str) -> int:
        """Sum of an extra property of all reads."""
        return sum(read.get(key, 0) for read in self.reads)

    def take(self, buffers: Any) -> int:
        """Takes the answer to one `read`; gives its samples."""
        if not isinstance(buffers, list) or not buffers:
            raise ProtocolError(f"a configured context is read as {buffers!r}")
        samples = 0
        for buffer in buffers:
            if not isinstance(buffer, dict) or buffer.get("Format") != FORMAT:
                raise ProtocolError(f"a buffer without {FORMAT}: {str(buffer)[:100]}")
            extra = {key: value for key, value in buffer.items() if key != "Data"}
            if "Data" in buffer:
                samples += self._data(buffer)
            if "Samples" in buffer and buffer["Samples"] != samples:
                raise ProtocolError(f"Samples {buffer['Samples']}, but counts add up to {samples}")
            self.reads.append({**extra, "samples": samples})
        return samples

    def _data(self, buffer: dict[str, Any]) -> int:
        try:
            data = base64.b64decode(buffer["Data"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise ProtocolError(f"Data is no base64: {error}") from error
        self.bytes += len(data)
        size = buffer.get("AddrSize", 4)
        samples, seen = 0, set()
        for count, stack in decode(data, size, bool(buffer.get("BigEndian")), self.frames):
            # Only a count that would be too large may be split.
            if stack in seen and count < MAX_COUNT:
                raise ProtocolError("equal stacks that are not merged")
            seen.add(stack)
            self.stacks[stack] = self.stacks.get(stack, 0) + count
            samples += count
        return samples
