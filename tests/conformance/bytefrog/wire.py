"""Bytefrog's messages, written from its document alone: bytes -> messages, and back.

Nothing here is shared with the profiler: what both sides agree on is what the document says. All numbers
are big-endian, texts are modified UTF-8 behind a length of 16 bits. A message of an agent is a tuple of its
id and its fields in their order.
"""

import struct

HELLO, CONFIGURATION, START, STOP, PAUSE, UNPAUSE, SUSPEND, UNSUSPEND, HEARTBEAT, DATA_BREAK = range(10)
THREAD, METHOD, EXCEPTION = 10, 11, 12
ENTRY, EXIT, THROW, BUBBLE = 20, 21, 22, 23
DATA_HELLO, DATA_HELLO_REPLY = 30, 31
TRANSFORMED, IGNORED, FAILED = 40, 41, 42
MARKER, ERROR = 50, 99

UNKNOWN_LINE = 65535

# Fields of what an agent sends: B, H and I are unsigned of 1, 2 and 4 bytes, s is a text.
AGENT = {
    HELLO: "B", HEARTBEAT: "BH", DATA_BREAK: "I",
    THREAD: "HIs", METHOD: "Is", EXCEPTION: "Is",
    ENTRY: "IIIH", EXIT: "IIIHH", THROW: "IIIIHH", BUBBLE: "IIIIH",
    DATA_HELLO: "B", TRANSFORMED: "s", IGNORED: "s", FAILED: "s",
    MARKER: "IIss", ERROR: "s",
}
# What HQ sends; L is a length of 32 bits with so many bytes behind it.
HQ = {
    CONFIGURATION: "L", START: "", STOP: "", PAUSE: "", UNPAUSE: "", SUSPEND: "", UNSUSPEND: "",
    DATA_HELLO_REPLY: "", ERROR: "s",
}
# Sizes of the quick reference, without texts. Of 23 the prose says 15; its fields are 19.
SIZES = {
    HELLO: 2, CONFIGURATION: 5, START: 1, STOP: 1, PAUSE: 1, UNPAUSE: 1, SUSPEND: 1, UNSUSPEND: 1, HEARTBEAT: 4,
    DATA_BREAK: 5, THREAD: 9, METHOD: 7, EXCEPTION: 7, ENTRY: 15, EXIT: 17, THROW: 21, BUBBLE: 19,
    DATA_HELLO: 2, DATA_HELLO_REPLY: 1, TRANSFORMED: 3, IGNORED: 3, FAILED: 3, MARKER: 13, ERROR: 3,
}
SEQUENCED = (ENTRY, EXIT, THROW, BUBBLE, MARKER)


def text(value):
    """A text as modified UTF-8 with its length."""
    out = bytearray()
    units = value.encode("utf-16-be", "surrogatepass")
    for unit in struct.unpack(">%dH" % (len(units) // 2), units):
        if 0 < unit < 0x80:
            out.append(unit)
        elif unit < 0x800:
            out += bytes((0xC0 | unit >> 6, 0x80 | unit & 0x3F))
        else:
            out += bytes((0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F))
    return struct.pack(">H", len(out)) + out


def untext(raw):
    """The text of modified UTF-8; an error for what is none."""
    units, at = [], 0
    while at < len(raw):
        first = raw[at]
        size = 1 if first < 0x80 else 2 if first >> 5 == 0b110 else 3 if first >> 4 == 0b1110 else 0
        rest = raw[at + 1:at + size]
        if first == 0 or not size or len(rest) != size - 1 or any(byte >> 6 != 0b10 for byte in rest):
            raise ValueError("no modified UTF-8: %r" % raw[at:at + 4])
        unit = first if size == 1 else first & (0x1F if size == 2 else 0x0F)
        for byte in rest:
            unit = unit << 6 | byte & 0x3F
        units.append(unit)
        at += size
    return struct.pack(">%dH" % len(units), *units).decode("utf-16-be", "surrogatepass")


def message(kind, *fields):
    """The bytes of a message of either side."""
    out = struct.pack(">B", kind)
    for form, field in zip(AGENT.get(kind, HQ.get(kind)), fields, strict=True):
        if form == "s":
            out += text(field)
        elif form == "L":
            out += struct.pack(">I", len(field)) + field
        else:
            out += struct.pack(">" + form, field)
    return out


def read(take, forms):
    """The next message; `take(n)` gives exactly n bytes, or raises EOFError. None at the end of all."""
    try:
        kind = take(1)[0]
    except EOFError as end:
        if end.args:
            raise
        return None
    if kind not in forms:
        raise ValueError("unknown message %d" % kind)
    fields, size = [], 1
    for form in forms[kind]:
        if form in "sL":
            (length,) = struct.unpack(">" + ("H" if form == "s" else "I"), take(2 if form == "s" else 4))
            raw = take(length)
            size += 2 if form == "s" else 4
            fields.append(untext(raw) if form == "s" else raw)
        else:
            width = struct.calcsize(">" + form)
            fields.extend(struct.unpack(">" + form, take(width)))
            size += width
    assert size == SIZES[kind], (kind, size)
    return (kind, *fields)


NUMBERS = ["bufferMemoryBudget", "heartbeatInterval", "numDataSenders", "queueRetryCount"]
CLASS = "com.secdec.bytefrog.agent.RuntimeAgentConfigurationV1"


def configuration(budget=25600, heartbeat=1000, senders=1, run=0, exclusions=(), inclusions=()):
    """A configuration as Java's ObjectOutputStream writes it."""
    out = b"\xac\xed\0\5" + b"sr" + text(CLASS) + bytes.fromhex("bf53efb7761d26c202") + struct.pack(">H", 7)
    for name in NUMBERS:
        out += b"I" + text(name)
    out += b"B" + text("runId")
    out += b"L" + text("exclusions") + b"t" + text("Ljava/util/List;")
    out += b"L" + text("inclusions") + b"q\0\x7e\0\1" + b"xp"
    out += struct.pack(">iiiib", budget, heartbeat, senders, 5, run - 256 if run > 127 else run)
    described = b"sr" + text("java.util.ArrayList") + bytes.fromhex("7881d21d99c7619d03") + b"\0\1I" + text("size") + b"xp"
    for items in (exclusions, inclusions):
        size = struct.pack(">i", len(items))
        out += described + size + b"w\4" + size + b"".join(b"t" + text(item) for item in items) + b"x"
        described = b"sq\0\x7e\0\3"
    return out


def unconfiguration(raw):
    """The fields of a configuration that is written as above; an error for anything else."""
    at = 0

    def take(count):
        nonlocal at
        at += count
        if at > len(raw):
            raise ValueError("cut off")
        return raw[at - count:at]

    def expect(literal):
        found = take(len(literal))
        if found != literal:
            raise ValueError("%r in place of %r, up to %d" % (found, literal, at))

    def utf():
        return untext(take(struct.unpack(">H", take(2))[0]))

    def number():
        return struct.unpack(">i", take(4))[0]

    expect(b"\xac\xed\0\5sr")
    name = utf()
    assert name.endswith("RuntimeAgentConfigurationV1"), name
    expect(bytes.fromhex("bf53efb7761d26c202") + b"\0\7")
    for field in NUMBERS:
        expect(b"I" + text(field))
    expect(b"B" + text("runId") + b"L" + text("exclusions") + b"t" + text("Ljava/util/List;"))
    expect(b"L" + text("inclusions") + b"q\0\x7e\0\1xp")
    found = {field: number() for field in NUMBERS}
    found["runId"] = take(1)[0]
    for which, described in (("exclusions", None), ("inclusions", b"sq\0\x7e\0\3")):
        expect(described or b"sr" + text("java.util.ArrayList") + bytes.fromhex("7881d21d99c7619d03") + b"\0\1I" + text("size") + b"xp")
        size = number()
        expect(b"w\4")
        number()
        items = []
        for _ in range(size):
            expect(b"t")
            items.append(utf())
        expect(b"x")
        found[which] = items
    assert at == len(raw), "bytes behind the configuration"
    return found
