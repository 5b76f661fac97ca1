"""Tests of the client itself: what it asks in which order, and what it takes as an agent's fault.

python3 -m unittest discover -s tests/tcf
"""

from __future__ import annotations

import asyncio
import unittest
from typing import Any, Awaitable, Callable

import profiling
import services
from channel import Channel, Closed, Refused, Unknown, connect
from fake_agent import OK, PROCESS, FakeAgent, data, error
from stacks import Reads, decode
from wire import Decoder, End, Message, ProtocolError, encode, encode_end


class Framing(unittest.TestCase):
    """Bytes of the description, in pieces of every size."""

    def test_escapes(self) -> None:
        wire = (
            b"R\x001\x00\x03\x00\x03\x03\x81\x00\x03\x00\x03\x01"
            + b"N\x002\x00\x03\x01"
            + b"\x03\x02\x00\x03\x01"
        )
        # A raw byte 0 ends no field: 03 03, one byte (in a varint of two), 03; then the field's own 00.
        expected = [Message("R", (b"1", b"\x03\x03")), Message("N", (b"2",)), End(b"")]
        for size in range(1, len(wire) + 1):
            decoder, came = Decoder(), []
            for at in range(0, len(wire), size):
                came += decoder.feed(wire[at : at + size])
            self.assertEqual(came, expected, size)

    def test_raw_bytes_hold_zeros(self) -> None:
        came = Decoder().feed(b"R\x00t\x00\x03\x03\x03a\x00\x03\x00\x03\x01")
        self.assertEqual(came, [Message("R", (b"t", b"a\x00\x03"))])

    def test_what_is_sent_is_read(self) -> None:
        fields = (b"C", b"1", b"\x03\x01\x03", b"", b"\x03")
        self.assertEqual(Decoder().feed(encode(*fields)), [Message("C", fields[1:])])
        self.assertEqual(Decoder().feed(encode_end(b"\x03")), [End(b"\x03")])

    def test_what_is_no_message(self) -> None:
        for wire in (
            b"\x03\x04",
            b"R\x001\x03\x01",
            b"X\x001\x00\x03\x01",
            b"R\x00\x03\x01",
            b"\x03\x01",
            b"R\x00\x03\x02",
            b"\x03\x02\x00\x03\x01x",
            b"\x03\x02\x00\x00\x03\x01",
            b"\x03\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ):
            with self.assertRaises(ProtocolError, msg=wire):
                Decoder().feed(wire)


class Data(unittest.TestCase):
    """`StackTraces`."""

    def test_stacks(self) -> None:
        words = b"".join(word.to_bytes(4, "big") for word in (2, 1, 7, 1, 2, 7, 8))
        self.assertEqual(decode(words, 4, True, 2), [(2, (7,)), (1, (7, 8))])

    def test_what_clients_stumble_over(self) -> None:
        for stacks, frames in (
            ([(1, [])], 8),
            ([(1, [1, 2])], 1),
            ([(0, [1])], 8),
            ([(2**31, [1])], 8),
            ([(1, [1]), (1, [1])], 8),
        ):
            with self.assertRaises(ProtocolError, msg=stacks):
                Reads(frames).take(data(*stacks))
        for buffers in ([], None, [{}], [{"Format": "StackTraces", "Data": "A"}]):
            with self.assertRaises(ProtocolError, msg=buffers):
                Reads(8).take(buffers)
        with self.assertRaises(ProtocolError):
            decode(b"\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 8, False, 8)

    def test_reads_add_up(self) -> None:
        reads = Reads(2)
        reads.take([{"Format": "StackTraces"}])
        reads.take(data((2, [1, 2]), (1, [3])))
        reads.take(data((3, [1, 2])))
        self.assertEqual((reads.samples, reads.stacks), (6, {(1, 2): 5, (3,): 1}))


class Talk(unittest.IsolatedAsyncioTestCase):
    """With an agent."""

    async def with_agent(self, agent: FakeAgent, do: Callable[[Channel], Awaitable[Any]]) -> Any:
        async with agent:
            channel = await connect("127.0.0.1", agent.port)
            try:
                result = await do(channel)
                await channel.close()
                return result
            finally:
                channel.abort()

    async def fails(self, agent: FakeAgent, do: Callable[[Channel], Awaitable[Any]]) -> None:
        with self.assertRaises(ProtocolError):
            await self.with_agent(agent, do)

    async def test_profile(self) -> None:
        agent = FakeAgent()
        nothing = [{"Format": "StackTraces"}]
        agent.reads = [nothing, data((3, [4101, 4150]), (1, [9000])), nothing]
        found = await self.with_agent(
            agent,
            lambda channel: profiling.run(channel, "P100.101", 0.2, 2, period=0.1, Frequency=99),
        )
        rows = {row["name"]: row for row in found.functions()}
        self.assertEqual(
            (rows["leaf"]["leaf"], rows["leaf"]["inclusive"], rows["leaf"]["module"]),
            (3, 3, "/bin/work"),
        )
        self.assertEqual(rows["leaf"]["lines"], {"/src/work.c": [12]})
        self.assertEqual((rows["0x2328"]["leaf"], rows["0x2328"]["named"]), (1, False))
        commands = [
            (service, command) for service, command, _ in agent.asked if service == "Profiler"
        ]
        names = [command for _, command in commands]
        self.assertEqual(names[:4], ["getCapabilities", "configure", "read", "read"])
        self.assertEqual(names[-2:], ["configure", "read"])
        configured = [asked[1] for _, command, asked in agent.asked if command == "configure"]
        self.assertEqual(configured, [b'{"FrameCnt":2,"Frequency":99}', b"{}"])

    async def test_tree(self) -> None:
        found = await self.with_agent(FakeAgent(), services.tree)
        self.assertEqual(found.threads_of("P100"), ["P100.101"])

    async def test_a_tree_that_lacks_something(self) -> None:
        for key in ("ProcessID", "Name", "SymbolsGroup"):
            agent = FakeAgent()
            agent.answers["RunControl", "getContext"] = [
                OK,
                {k: v for k, v in PROCESS.items() if k != key},
            ]
            await self.fails(agent, services.tree)

    async def test_refusals_and_unknown_commands(self) -> None:
        async def refused(channel: Channel) -> None:
            with self.assertRaises(Refused) as caught:
                await services.run_control_context(channel, "P7")
            self.assertEqual((caught.exception.code, caught.exception.fields), (16, [None]))
            with self.assertRaises(Unknown):
                await channel.service("RunControl").fly()

        await self.with_agent(FakeAgent(), refused)

    async def test_no_configure_may_fail(self) -> None:
        agent = FakeAgent()
        agent.answers["Profiler", "configure"] = [error(16, "Invalid context")]
        await self.fails(agent, lambda channel: services.configure(channel, "P1", {"FrameCnt": 1}))

    async def test_what_ends_a_real_clients_channel(self) -> None:
        command = ("RunControl", "getChildren")
        for answer in (
            encode(b"F", b"10"),
            encode(b"E", b"RunControl", b"contextMoved", b"[]"),
            encode(b"E", b"RunControl", b"contextSuspended", b'"P1"'),
            encode(b"R", b"no such token", b"", b"[]"),
            encode(b"R", b"1", b"", b"[ ]"),
            encode(b"R", b"1", b"null", b"[]"),
            encode(b"R", b"1", b'{"Format":"no code"}', b"[]"),
            encode(b"R", b"1", b"", b"[") + encode(b"R", b"1", b"", b"[]"),
        ):
            agent = FakeAgent()
            agent.answers[command] = answer
            with self.assertRaises((ProtocolError, Closed), msg=answer):
                await self.with_agent(
                    agent, lambda channel: services.run_control_children(channel, None)
                )

    async def test_hello_comes_first_and_once(self) -> None:
        hello = FakeAgent().hello[0]
        late = [encode(b"E", b"RunControl", b"contextRemoved", b"[]"), hello]
        for first in (late, [hello, hello]):
            agent = FakeAgent()
            agent.hello = first
            with self.assertRaises((ProtocolError, Closed), msg=first):
                await self.with_agent(agent, services.tree)

    async def test_the_end_of_a_stream_tells_why(self) -> None:
        agent = FakeAgent()
        agent.answers["RunControl", "getChildren"] = encode_end(
            b'{"Code":2,"Format":"JSON syntax error"}'
        )

        async def ended(channel: Channel) -> None:
            with self.assertRaises(Closed) as caught:
                await services.tree(channel)
            assert caught.exception.reason is not None
            self.assertEqual(caught.exception.reason["Code"], 2)

        await self.with_agent(agent, ended)

    async def test_an_agent_that_just_closes_is_at_fault(self) -> None:
        async def close_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(FakeAgent().hello[0])
            await reader.readuntil(b"\x03\x02")
            writer.close()

        server = await asyncio.start_server(close_only, "127.0.0.1", 0)
        channel = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
        with self.assertRaises(ProtocolError):
            await channel.close()
        server.close()


if __name__ == "__main__":
    unittest.main()
