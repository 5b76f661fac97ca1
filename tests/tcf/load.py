#!/usr/bin/env python3
"""Many clients at once, and clients that behave badly.

    load.py HOST PORT many --seconds 5 '[{"id": "P100", "frames": 8, "frequency": 99}, ..]'
    load.py HOST PORT vanish P100 --rounds 20
    load.py HOST PORT deaf P100
    load.py HOST PORT churn --seconds 60 --clients 6

JSON on standard output: what the clients saw. One process, one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import struct
import sys
import time
from typing import Any

import profiling
import services
from channel import Channel, Closed, Refused, connect
from stacks import Reads
from wire import ProtocolError, encode

#: A context may end while it is asked for.
GONE = (services.INV_CONTEXT, services.ALREADY_EXITED)


async def many(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Each profile at a channel of its own, all at the same time."""

    async def one(wish: dict[str, Any]) -> dict[str, Any]:
        channel = await connect(arguments.host, arguments.port)
        more = {
            "Frequency": wish.get("frequency"),
            "KernelStacks": wish.get("kernel"),
            "Scope": wish.get("scope"),
        }
        found = await profiling.run(
            channel, wish["id"], arguments.seconds, wish["frames"], wish.get("period", 1), **more
        )
        await channel.close()
        result = found.as_json()
        for part in ("chains", "addresses", "reads"):
            del result[part]
        return {**wish, **result, "events": len(channel.events)}

    return list(await asyncio.gather(*map(one, json.loads(arguments.wishes))))


async def vanish(arguments: argparse.Namespace) -> dict[str, int]:
    """Clients that are gone in the middle of things; between them one that behaves finds all well."""
    where = (arguments.host, arguments.port)
    hello = encode(b"E", b"Locator", b"Hello", b'["Locator"]')
    id = json.dumps(arguments.id).encode()
    ask = [encode(b"C", str(number).encode(), b"MemoryMap", b"get", id) for number in range(300)]
    configure = encode(b"C", b"1", b"Profiler", b"configure", id, b'{"FrameCnt":64}')
    sent = {
        "in a message": hello + ask[0][:12],
        "behind an escape": hello + ask[0][:-1],
        "in raw bytes": hello + b"C\x001\x00\x03\x03\xff\x0f" + bytes(100),
        "before Hello": b"",
        "in many replies": hello + b"".join(ask),
        "while it profiles": hello + configure,
        "with a read on its way": hello + configure + encode(b"C", b"2", b"Profiler", b"read", id),
    }
    counts: dict[str, int] = {}
    for way in ("reset", "close", "half"):
        for name, data in sent.items():
            for _ in range(arguments.rounds):
                connection = socket.create_connection(where)
                connection.sendall(data)
                # So that replies are on their way, some of the time.
                await asyncio.sleep(random.choice((0, 0, 0.01)))
                if way == "reset":
                    connection.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                elif way == "half":
                    connection.shutdown(socket.SHUT_WR)
                    await asyncio.sleep(0.005)
                connection.close()
                counts[f"{name}, {way}"] = counts.get(f"{name}, {way}", 0) + 1
        channel = await connect(*where)
        await services.run_control_context(channel, arguments.id)
        await channel.close()
    return counts


async def deaf(arguments: argparse.Namespace) -> dict[str, Any]:
    """A client that asks and never reads: how much it can send until it is cut off. Beside it one that
    behaves is served all the time: its slowest answer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((arguments.host, arguments.port))
    connection.setblocking(False)
    id = json.dumps(arguments.id).encode()
    piece = b"".join(encode(b"C", b"1", b"MemoryMap", b"get", id) for _ in range(100))
    loop, sent, cut = asyncio.get_running_loop(), 0, False
    channel = await connect(arguments.host, arguments.port)
    # The first answer waits until the agent follows the machine.
    await services.run_control_context(channel, arguments.id)
    begin = time.monotonic()
    slowest = 0.0

    async def behave() -> None:
        nonlocal slowest
        while True:
            asked = time.monotonic()
            await services.run_control_context(channel, arguments.id)
            slowest = max(slowest, time.monotonic() - asked)
            await asyncio.sleep(0.01)

    other = asyncio.create_task(behave())
    try:
        async with asyncio.timeout(arguments.seconds):
            await loop.sock_sendall(connection, encode(b"E", b"Locator", b"Hello", b'["Locator"]'))
            while True:
                await loop.sock_sendall(connection, piece)
                sent += len(piece)
    except (ConnectionError, BrokenPipeError):
        cut = True
    except TimeoutError:
        pass
    seconds = time.monotonic() - begin
    connection.close()
    if other.done():
        other.result()
    other.cancel()
    await channel.close()
    return {"cut": cut, "sent_bytes": sent, "seconds": seconds, "slowest_answer_s": slowest}


class Churn:
    """Clients that come, walk, profile what they like for a moment, and go in all ways."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.where = (arguments.host, arguments.port)
        self.until = time.monotonic() + arguments.seconds
        self.counts: dict[str, int] = {}

    def count(self, what: str, more: int = 1) -> None:
        """Counts."""
        self.counts[what] = self.counts.get(what, 0) + more

    async def client(self, seed: int) -> None:
        """One client after the other, until time is over."""
        pick = random.Random(seed)
        while time.monotonic() < self.until:
            channel = await connect(*self.where)
            self.count("channels")
            await self.use(channel, pick)
            if pick.random() < 0.3:
                channel.abort()
            else:
                await channel.close()

    async def use(self, channel: Channel, pick: random.Random) -> None:
        """One client's life."""
        tree = await services.tree(channel)
        self.count("contexts", len(tree.contexts))
        ids = pick.sample(sorted(tree.contexts), min(len(tree.contexts), pick.randint(1, 8)))
        frames = pick.choice((1, 8, 64))
        parameters = {"FrameCnt": frames, "Frequency": pick.choice((49, 99, 499))}
        if pick.random() < 0.3:
            parameters["KernelStacks"] = True
        if pick.random() < 0.3:
            parameters["Scope"] = "Children"
        for id in ids:
            await services.configure(channel, id, parameters)
        self.count("configured", len(ids))
        for _ in range(pick.randint(1, 5)):
            await asyncio.sleep(pick.uniform(0.05, 0.3))
            for id in ids:
                await self.read(channel, tree, id, frames)
            if channel.closed is not None:
                return
        if pick.random() < 0.5:
            for id in ids:
                await services.configure(channel, id, None)

    async def read(self, channel: Channel, tree: services.Tree, id: str, frames: int) -> None:
        """A read and the names of what it gave."""
        reads = Reads(frames)
        try:
            self.count("samples", reads.take(await services.read(channel, id)))
        except Refused as refused:
            if refused.code not in GONE:
                raise
            self.count("gone")
            return
        self.count("reads")
        process = tree.contexts[id]["ProcessID"]
        addresses = sorted({address for stack in reads.stacks for address in stack})[:50]

        async def name(address: int) -> None:
            try:
                found = await services.place(channel, process, address)
                self.count("addresses" if found.name else "addresses without a name")
            except Refused as refused:
                # What was found is gone when the process executes another program before it is asked for.
                if refused.code not in (*GONE, services.SYM_NOT_FOUND):
                    raise

        await services.all_of(map(name, addresses))


async def churn(arguments: argparse.Namespace) -> dict[str, int]:
    """Several such clients."""
    load = Churn(arguments)
    await asyncio.gather(*(load.client(seed) for seed in range(arguments.clients)))
    return load.counts


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    commands = parser.add_subparsers(dest="do", required=True)
    one = commands.add_parser("many")
    one.add_argument("wishes", help="JSON: what each client profiles")
    one.add_argument("--seconds", type=float, default=5)
    one = commands.add_parser("vanish")
    one.add_argument("id")
    one.add_argument("--rounds", type=int, default=10)
    one = commands.add_parser("deaf")
    one.add_argument("id")
    one.add_argument("--seconds", type=float, default=100)
    one = commands.add_parser("churn")
    one.add_argument("--seconds", type=float, default=60)
    one.add_argument("--clients", type=int, default=6)
    return parser.parse_args()


if __name__ == "__main__":
    wanted = parse()
    try:
        do = {"many": many, "vanish": vanish, "deaf": deaf, "churn": churn}[wanted.do]
        json.dump(asyncio.run(do(wanted)), sys.stdout)
        print()
    except (ProtocolError, Refused, Closed, OSError, TimeoutError) as problem:
        words = " ".join(str(problem).split())
        sys.exit(f"load.py: {type(problem).__name__}: {words}")
