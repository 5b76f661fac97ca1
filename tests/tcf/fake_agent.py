"""An agent with one process of one thread, made of the description's own examples.

For tests of the client: it answers from tables, which a test changes to see what the client makes of
it. Tables: (service, command) -> the fields of the result, or bytes to send in place of a result.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any, Callable, Union

from wire import Decoder, End, encode, encode_end

Answer = Union[list[Any], bytes, Callable[[list[bytes]], Any]]

#: No error.
OK = b""


def error(code: int, text: str) -> dict[str, Any]:
    """An error's report."""
    return {"Code": code, "Time": 1, "Format": text}


def data(*stacks: tuple[int, list[int]]) -> list[dict[str, Any]]:
    """The result of a read."""
    words = [word for count, stack in stacks for word in (count, len(stack), *stack)]
    packed = struct.pack(f"<{len(words)}Q", *words)
    return [{"Format": "StackTraces", "AddrSize": 8, "Data": base64.b64encode(packed).decode()}]


PROCESS = {
    "ID": "P100", "ProcessID": "P100", "Name": "work", "IsContainer": True, "WordSize": 8,
    "SymbolsGroup": "P100", "RCGroup": "P100",
}  # fmt: skip
THREAD = {
    "ID": "P100.101",
    "ParentID": "P100",
    "ProcessID": "P100",
    "Name": "worker",
    "HasState": True,
}
SYMBOL = {
    "ID": "S1",
    "OwnerID": "P100",
    "UpdatePolicy": 0,
    "Name": "leaf",
    "Class": 3,
    "Address": 4096,
    "Size": 64,
}
LINE = {"SAddr": 4100, "EAddr": 4108, "SLine": 12, "ELine": 13, "File": "work.c", "Dir": "/src"}


class FakeAgent:
    """See the module."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, list[bytes]]] = []
        self.hello = [encode(b"E", b"Locator", b"Hello", b'["Locator","Profiler","RunControl"]')]
        self.reads: list[Any] = []
        self.answers: dict[tuple[str, str], Answer] = {
            ("RunControl", "getChildren"): self._children,
            ("RunControl", "getContext"): self._context,
            ("Profiler", "getCapabilities"): [OK, {"StackTraces": {}}],
            ("Profiler", "configure"): self._configure,
            ("Profiler", "read"): self._read,
            ("MemoryMap", "get"): [
                OK,
                [{"Addr": 4096, "Size": 4096, "Flags": 5, "FileName": "/bin/work", "Offs": 0}],
            ],
            ("Symbols", "findByAddr"): self._symbol,
            ("Symbols", "getContext"): [OK, SYMBOL],
            ("LineNumbers", "mapToSource"): lambda asked: [
                OK,
                [LINE] if 4100 <= int(asked[1]) < 4108 else None,
            ],
        }
        self.server: asyncio.Server | None = None

    async def __aenter__(self) -> FakeAgent:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: Any) -> None:
        assert self.server is not None
        self.server.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self.server is not None
        return self.server.sockets[0].getsockname()[1]

    def _configure(self, asked: list[bytes]) -> list[Any]:
        if json.loads(asked[1]) == {}:
            # However many reads there was time for.
            self.reads.clear()
        return [OK]

    def _read(self, _: list[bytes]) -> list[Any]:
        return [OK, self.reads.pop(0) if self.reads else []]

    def _children(self, asked: list[bytes]) -> list[Any]:
        of = json.loads(asked[0])
        return [OK, {None: ["P100"], "P100": ["P100.101"]}.get(of, [])]

    def _context(self, asked: list[bytes]) -> list[Any]:
        known = {"P100": PROCESS, "P100.101": THREAD}.get(json.loads(asked[0]))
        return [OK, known] if known else [error(16, "Invalid context"), None]

    def _symbol(self, asked: list[bytes]) -> list[Any]:
        at = int(asked[1])
        return [OK, "S1"] if 4096 <= at < 4160 else [error(22, "no symbol"), None]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for bytes_ in self.hello:
            writer.write(bytes_)
        decoder = Decoder()
        while come := await reader.read(65536):
            for one in decoder.feed(come):
                if isinstance(one, End):
                    writer.write(encode_end())
                    writer.close()
                    return
                if one.kind == "C":
                    writer.write(self._answer(one.fields))
            await writer.drain()
        writer.close()

    def _answer(self, fields: tuple[bytes, ...]) -> bytes:
        token, service, command = fields[0], fields[1].decode(), fields[2].decode()
        asked = list(fields[3:])
        self.asked.append((service, command, asked))
        answer = self.answers.get((service, command))
        if callable(answer):
            answer = answer(asked)
        if answer is None:
            return encode(b"N", token)
        if isinstance(answer, bytes):
            return answer
        pack = lambda value: (
            value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
        )
        return encode(b"R", token, *map(pack, answer))
