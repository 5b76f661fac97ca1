"""An agent that is started for a case, and what it looks at.

The client is the one of `tests/tcf`, which was written from the protocol's description apart from the agent. What does
not belong here: what must hold (the cases).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tcf"))

from channel import Channel, Refused, Unknown, connect  # noqa: E402
from wire import Decoder, End, Message, encode  # noqa: E402

#: How long anything may take that does not hang.
LIMIT_S = 40.0
HELLO = encode(b"E", b"Locator", b"Hello", b'["Locator"]')


class Target:
    """A program that burns time in a stack that is known."""

    def __init__(self, program: str, depth: int = 200) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program, str(depth)], stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())
        self.id = f"P{self.pid}"

    def thread(self) -> str:
        """The id of the thread that burns."""
        tids = os.listdir(f"/proc/{self.pid}/task")
        return f"{self.id}." + next(tid for tid in tids if int(tid) != self.pid)

    def renew(self) -> None:
        """Runs another program."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.wait()


class Scene:
    """What one case has: a profiler, a folder, agents and targets."""

    def __init__(self, profiler: str, folder: str) -> None:
        self.profiler = profiler
        self.folder = folder
        self.port = 0
        self._running: list[subprocess.Popen[Any]] = []
        self._targets: list[Target] = []
        self._channels: list[Channel] = []

    def serve(self, *flags: str, command: tuple[str, ...] = ()) -> int:
        """Starts an agent; its port."""
        words = [*command, self.profiler, "serve", "--tcf", "127.0.0.1:0", *flags]
        log = tempfile.TemporaryFile("w+", dir=self.folder)
        agent = subprocess.Popen(words, stderr=log, stdin=subprocess.DEVNULL)
        self._running.append(agent)
        while True:
            log.seek(0)
            said = re.search(r"listening .*:(\d+)\n", log.read())
            if said:
                self.port = int(said[1])
                return self.port
            if agent.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"no agent: {log.read()}")
            os.sched_yield()

    def target(self, depth: int = 200) -> Target:
        """Starts a program to look at."""
        program = os.path.join(self.folder, "target")
        if not os.path.exists(program):
            source = os.path.join(HERE, "target.c")
            flags = ["-g", "-O0", "-fno-omit-frame-pointer", "-pthread"]
            subprocess.run(["cc", *flags, source, "-o", program], check=True)
        self._targets.append(Target(program, depth))
        return self._targets[-1]

    async def channel(self) -> Channel:
        """A channel over which both have said Hello."""
        self._channels.append(await connect("127.0.0.1", self.port))
        return self._channels[-1]

    async def raw(self, *sent: bytes) -> list[Message | End]:
        """What comes of these bytes behind both Hellos, up to the end of the connection or a reply."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"".join(sent))
        decoder, came = Decoder(), []
        while not any(isinstance(one, End) or one.kind in "RN" for one in came):
            data = await asyncio.wait_for(reader.read(65536), LIMIT_S)
            if not data:
                break
            came += decoder.feed(data)
        writer.close()
        assert isinstance(came[0], Message) and came[0].fields[:2] == (b"Locator", b"Hello"), came
        return came[1:]

    def close(self) -> None:
        """Ends all that runs."""
        for channel in self._channels:
            channel.abort()
        for target in self._targets:
            target.end()
        for agent in self._running:
            agent.terminate()
        for agent in self._running:
            agent.wait()


async def until(holds: Any, what: str) -> Any:
    """Asks again until something holds."""
    end = asyncio.get_running_loop().time() + LIMIT_S
    while True:
        found = await holds()
        if found:
            return found
        assert asyncio.get_running_loop().time() < end, f"{what} never came"
        await asyncio.sleep(0.02)


async def refused(code: int, call: Any, fields: list[Any] | None = None) -> str:
    """A command is refused with this code, and these fields behind the error; the words."""
    try:
        values = await call
    except Refused as error:
        assert error.code == code, f"error {error.code} in place of {code}: {error.text}"
        if fields is not None:
            assert error.fields == fields, f"behind the error are {error.fields}"
        report = error.report
        assert isinstance(report.get("Time"), int), f"no time: {json.dumps(report)}"
        return error.text
    raise AssertionError(f"no error {code} but {values}")


async def unknown(call: Any) -> None:
    """A command that nobody knows."""
    try:
        values = await call
    except Unknown:
        return
    raise AssertionError(f"an answer to what nobody knows: {values}")
