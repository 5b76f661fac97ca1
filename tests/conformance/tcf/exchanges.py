"""Exchanges with an agent, well and badly made, many at a time: how long it takes until something comes.

Each exchange is a connection of its own: what is sent is cut, mangled, ended early or behaves; then the agent has to
answer or to end the stream. What waits for nothing (Hello, `Locator.sync`, the end of a stream) must come at once;
what asks for names or for a session that is being attached may take as long as the document says. An exchange in which
nothing comes for longer fails. What does not belong here: what answers say (the cases).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter

from side import HELLO, Scene
from wire import Decoder, End, ProtocolError, encode, encode_end

#: Exchanges at a time.
WORKERS = 24
#: Until something comes that waits for nothing; until the answer to anything.
AT_ONCE_S = 9.0
AT_LAST_S = 45.0
#: A pause so long lets the agent detach.
QUIET_S = 12.0

COMMANDS = [
    ("Locator", "getPeers", []),
    ("Diagnostics", "echo", ["x" * 200]),
    ("Profiler", "getCapabilities", ["P1"]),
    ("Profiler", "configure", ["P1", {"FrameCnt": 8}]),
    ("Profiler", "read", ["P1"]),
    ("RunControl", "getChildren", [None]),
    ("RunControl", "getContext", ["P1"]),
    ("RunControl", "getState", ["P1.1"]),
    ("SysMonitor", "getContext", ["P1"]),
    ("SysMonitor", "getCommandLine", ["P1"]),
    ("MemoryMap", "get", ["P1"]),
    ("Symbols", "findByAddr", ["P1", 0x55550000]),
    ("Symbols", "findByAddr", ["P1", 2**64 - 2**31]),
    ("LineNumbers", "mapToSource", ["P1", 4096, 4200]),
    ("Processes", "getSignalList", [None]),
    ("No", "such", []),
]
SYNC = encode(b"C", b"sync", b"Locator", b"sync")


class Silence(Exception):
    """Nothing came for too long."""


def made(chance: random.Random) -> tuple[bytes, int]:
    """Some commands, and how many of them are to be answered."""
    count = chance.randrange(0, 12)
    out = []
    for token in range(count):
        service, command, arguments = chance.choice(COMMANDS)
        fields = [json.dumps(one, separators=(",", ":")).encode() for one in arguments]
        out.append(encode(b"C", b"%d" % token, service.encode(), command.encode(), *fields))
    return b"".join(out), count


def mangled(chance: random.Random, data: bytes) -> bytes:
    """The same with some bytes changed, lost or doubled."""
    data = bytearray(data)
    for _ in range(chance.randrange(1, 8)):
        if not data:
            break
        at = chance.randrange(len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[at] = chance.choice((0, 1, 2, 3, 34, 92, 255, chance.randrange(256)))
        elif kind == 1:
            del data[at : at + chance.randrange(1, 9)]
        elif kind == 2:
            data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
        else:
            data[at:at] = data[at : at + 20]
    return bytes(data)


class Exchanges:
    """What they came to."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.chance = random.Random(seed)
        self.count = Counter[str]()
        self.worst: dict[str, float] = {}
        self.failures: list[str] = []

    def took(self, what: str, since: float) -> None:
        """Something came."""
        self.worst[what] = max(self.worst.get(what, 0.0), time.monotonic() - since)

    async def one(self) -> None:
        """One exchange."""
        chance = self.chance
        kind = chance.choices(
            ("good", "mangled", "half", "gone", "mute", "pieces"), (40, 30, 8, 8, 4, 10)
        )[0]
        self.count[kind] += 1
        commands, wanted = made(chance)
        begun = time.monotonic()
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection("127.0.0.1", self.port), AT_ONCE_S
        )
        self.took("connect", begun)
        try:
            sent = HELLO + commands + SYNC
            if kind == "mangled":
                sent = mangled(chance, sent) + SYNC
            if kind == "mute":
                sent = b""
            if kind == "half":
                sent = sent[: chance.randrange(len(sent))]
            if kind == "pieces":
                for at in range(0, len(sent), 7):
                    writer.write(sent[at : at + 7])
                    if chance.randrange(10) == 0:
                        await asyncio.sleep(0)
            else:
                writer.write(sent)
            if kind == "half":
                writer.write_eof()
            asked = time.monotonic()
            decoder, buffered = Decoder(), []
            first = await self.read(reader, AT_ONCE_S, f"Hello ({kind})")
            self.took("Hello", begun)
            buffered += decoder.feed(first)
            if kind in ("gone", "mute"):
                return
            if kind in ("good", "pieces"):
                await self.answers(reader, decoder, buffered, wanted, asked)
                writer.write(encode_end())
                ended = time.monotonic()
                while await self.read(reader, AT_ONCE_S, "the end", may_end=True):
                    pass
                self.took("end", ended)
                return
            # Mangled or half: an end, or the answer to the sync behind it unless it is part of something.
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                data = await asyncio.wait_for(reader.read(65536), 0.3)
                if not data:
                    break
        except (ConnectionError, TimeoutError) as error:
            if kind in ("good", "pieces"):
                raise Silence(f"{kind}: {type(error).__name__}") from error
        finally:
            if kind == "gone":
                writer.transport.abort()
            else:
                writer.close()

    async def answers(self, reader, decoder, came, wanted, asked) -> None:
        """All answers, that of the sync at once."""
        answered: set[bytes] = set()
        is_synced = False
        while True:
            for one in came:
                if isinstance(one, End):
                    raise Silence(f"the stream ended: {one.reason[:100]!r}")
                if one.kind in "RN":
                    answered.add(one.fields[0])
            came.clear()
            if b"sync" in answered and not is_synced:
                is_synced = True
                self.took("sync", asked)
            if len(answered) == wanted + 1:
                self.took("all", asked)
                return
            limit = AT_LAST_S if is_synced else AT_ONCE_S
            what = f"{wanted + 1 - len(answered)} of {wanted + 1} answers, synced: {is_synced}"
            came += decoder.feed(await self.read(reader, limit, what))

    async def read(self, reader, limit: float, what: str, may_end: bool = False) -> bytes:
        """Some bytes."""
        begun = time.monotonic()
        try:
            data = await asyncio.wait_for(reader.read(65536), limit)
        except TimeoutError:
            raise Silence(f"no byte came for {limit} s: {what}") from None
        self.took("byte", begun)
        if not data and not may_end:
            raise Silence(f"closed: {what}")
        return data

    async def work(self, until: float) -> None:
        """One after the other."""
        while time.monotonic() < until:
            try:
                await self.one()
            except (Silence, ProtocolError, OSError, TimeoutError) as error:
                at = time.strftime("%H:%M:%S")
                self.failures.append(f"{at} {type(error).__name__} {error}")
                print(self.failures[-1], flush=True)


async def main(scene: Scene, seconds: float) -> int:
    """For so long; status 1 if one failed."""
    try:
        port = scene.serve()
        exchanges = Exchanges(port, 4711)
        until = time.monotonic() + seconds
        # Between two rounds nobody is connected, and then several come at once to an agent that has detached.
        rounds = 0
        while time.monotonic() < until:
            rounds += 1
            end = min(until, time.monotonic() + max(5.0, min(60.0, seconds / 3)))
            await asyncio.gather(*(exchanges.work(end) for _ in range(WORKERS)))
            if time.monotonic() + QUIET_S < until:
                await asyncio.sleep(QUIET_S)
        total = sum(exchanges.count.values())
        worst = ", ".join(f"{what} {took:.2f} s" for what, took in exchanges.worst.items())
        print(f"{total} exchanges in {rounds} rounds ({dict(exchanges.count)}); longest: {worst}")
        print(f"{len(exchanges.failures)} failed")
        return 1 if exchanges.failures or not total else 0
    finally:
        scene.close()
