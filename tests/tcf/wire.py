"""Bytes of a TCF channel: escapes, messages, fields.

Bytes that come -> messages; messages -> bytes to send. Written from the description of the protocol,
apart from the agent that it tests. What does not belong here: sockets, tokens, JSON.

    03 00            a byte 03
    03 01            end of a message
    03 02            end of the stream; one field, the reason, and the end of a message follow
    03 03 varint n   n bytes that are not escaped
"""

from __future__ import annotations

from dataclasses import dataclass, field

ESCAPE = 3
MESSAGE_END = b"\x03\x01"
STREAM_END = b"\x03\x02"

#: No message of an agent is longer than that.
MAX_MESSAGE_BYTES = 64 << 20


class ProtocolError(Exception):
    """The peer does what no peer may do: a real client would drop the channel."""


@dataclass(frozen=True)
class Message:
    """A message: its kind (C, R, P, N, E, F) and the fields behind it."""

    kind: str
    fields: tuple[bytes, ...]


@dataclass(frozen=True)
class End:
    """The end of the stream, with the reason if there is one."""

    reason: bytes


def escape(data: bytes) -> bytes:
    """Data as they are inside of a message."""
    return data.replace(b"\x03", b"\x03\x00")


def encode(*fields: bytes) -> bytes:
    """A message of these fields, its kind first."""
    return b"".join(escape(data) + b"\0" for data in fields) + MESSAGE_END


def encode_end(reason: bytes = b"") -> bytes:
    """The end of a stream."""
    return STREAM_END + escape(reason) + b"\0" + MESSAGE_END


@dataclass
class Decoder:
    """Takes bytes in pieces of any size, gives what is whole."""

    _plain: bytearray = field(default_factory=bytearray)
    _ends: list[int] = field(default_factory=list)
    _escaped: bool = False
    _length: tuple[int, int] | None = None
    _raw: int = 0
    _ending: bool = False
    _ended: bool = False

    @property
    def is_between(self) -> bool:
        """Nothing has come of a message that is not whole."""
        busy = self._plain or self._ends or self._escaped or self._length or self._raw
        return not busy and (self._ended or not self._ending)

    def feed(self, data: bytes) -> list[Message | End]:
        """Takes more bytes."""
        done: list[Message | End] = []
        at = 0
        while at < len(data):
            if self._ended:
                raise ProtocolError("bytes behind the end of the stream")
            if self._raw:
                piece = data[at : at + self._raw]
                self._take(piece, raw=True)
                self._raw -= len(piece)
                at += len(piece)
            elif self._length is not None:
                self._varint(data[at])
                at += 1
            elif self._escaped:
                self._escaped = False
                self._escape(data[at], done)
                at += 1
            else:
                stop = data.find(ESCAPE, at)
                piece = data[at:] if stop < 0 else data[at:stop]
                self._take(piece, raw=False)
                at += len(piece)
                if stop >= 0:
                    self._escaped = True
                    at += 1
        return done

    def _take(self, piece: bytes, raw: bool) -> None:
        before = len(self._plain)
        if before + len(piece) > MAX_MESSAGE_BYTES:
            raise ProtocolError("a message without an end")
        self._plain += piece
        if raw:
            return
        # A field ends with a 0 that is not among raw bytes.
        end = self._plain.find(0, before)
        while end >= 0:
            self._ends.append(end)
            end = self._plain.find(0, end + 1)

    def _varint(self, byte: int) -> None:
        assert self._length is not None
        value, bits = self._length
        value |= (byte & 0x7F) << bits
        if value > MAX_MESSAGE_BYTES or bits > 63:
            raise ProtocolError("raw bytes without an end")
        if byte & 0x80:
            self._length = (value, bits + 7)
        else:
            self._length, self._raw = None, value

    def _escape(self, byte: int, done: list[Message | End]) -> None:
        if byte == 0:
            self._plain.append(ESCAPE)
        elif byte == 1:
            done.append(self._whole())
        elif byte == 2:
            if not self.is_between:
                raise ProtocolError("the stream ends inside of a message")
            self._ending = True
        elif byte == 3:
            self._length = (0, 0)
        else:
            raise ProtocolError(f"escape 03 {byte:02x}")

    def _whole(self) -> Message | End:
        plain, ends = bytes(self._plain), self._ends
        if not ends or ends[-1] + 1 != len(plain):
            raise ProtocolError(f"a message whose last field has no end: {plain[:80]!r}")
        fields, start = [], 0
        for end in ends:
            fields.append(plain[start:end])
            start = end + 1
        self._plain, self._ends = bytearray(), []
        if self._ending:
            if len(fields) != 1:
                raise ProtocolError(f"an end of stream with {len(fields)} fields")
            self._ended = True
            return End(fields[0])
        return _message(fields)


#: Fields that each kind has at least.
_FIELDS = {"C": 3, "R": 1, "P": 1, "N": 1, "E": 2, "F": 1}


def _message(fields: list[bytes]) -> Message:
    kind = fields[0].decode("latin-1")
    least = _FIELDS.get(kind)
    if least is None:
        raise ProtocolError(f"a message of kind {kind[:20]!r}")
    if len(fields) - 1 < least:
        raise ProtocolError(f"a message {kind} with {len(fields) - 1} fields")
    return Message(kind, tuple(fields[1:]))
