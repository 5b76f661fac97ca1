#!/usr/bin/env python3
"""A TCF client on the command line: walks an agent's contexts, profiles one of them, tells events.

    client.py HOST PORT walk
    client.py HOST PORT profile P1234 --seconds 5 --frames 64
    client.py HOST PORT watch --seconds 5
    client.py HOST PORT call RunControl getContext '"P1234"'
    client.py HOST PORT calls '[["RunControl", "suspend", "P1"], 0.5, ["RunControl", "resume", "P1", 0, 1]]'
    client.py HOST PORT raw 'C|1|Locator|sync' wait:0.5

JSON on standard output; status 1 and one line on standard error if the agent does what no agent may
do, or refuses. Python 3.11, standard library only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

import profiling
import services
from channel import Channel, Closed, Refused, Unknown, connect, from_json, tls_context
from wire import Decoder, End, ProtocolError, encode, encode_end


async def walk(channel: Channel, arguments: argparse.Namespace) -> dict[str, Any]:
    """Hello, the tree of RunControl, capabilities; with `--all` what else can be asked of processes."""
    tree = await services.tree(channel)
    ids = list(tree.contexts)

    async def of(id: str, ask: Any) -> Any:
        try:
            return await ask(channel, id)
        except Refused as refused:
            if refused.code not in (services.INV_CONTEXT, services.ALREADY_EXITED):
                raise
            return None

    async def asked(ids: list[str], ask: Any) -> dict[str, Any]:
        return dict(zip(ids, await services.all_of(of(id, ask) for id in ids)))

    result = {
        "services": channel.services,
        "seconds": tree.seconds,
        "contexts": tree.contexts,
        "gone": tree.gone,
        "capabilities": await asked(ids, services.capabilities),
    }
    if arguments.all:
        processes = [id for id in ids if tree.contexts[id]["ProcessID"] == id]
        threads = [id for id in ids if tree.contexts[id]["ProcessID"] != id]
        result["states"] = await asked(threads, services.state)
        for service, command in (
            ("Processes", "getContext"),
            ("SysMonitor", "getContext"),
            ("SysMonitor", "getCommandLine"),
        ):

            async def ask(
                channel: Channel, id: str, service: str = service, command: str = command
            ) -> Any:
                return (await channel.call(service, command, id))[0]

            result[f"{service}.{command}"] = await asked(processes, ask)
        for service, rest in (("Processes", [False]), ("SysMonitor", [])):
            result[f"{service}.getChildren"] = (
                await channel.call(service, "getChildren", None, *rest)
            )[0]
    return result


async def profiled(channel: Channel, arguments: argparse.Namespace) -> dict[str, Any]:
    """Profiles contexts side by side, each with the same parameters."""
    more = {
        "Frequency": arguments.frequency,
        "MaxSamples": arguments.max_samples,
        "KernelStacks": True if arguments.kernel else None,
        "Scope": arguments.scope,
    }
    runs = [
        profiling.run(
            channel,
            id,
            arguments.seconds,
            arguments.frames,
            arguments.period,
            arguments.until_exit,
            arguments.settle,
            **more,
        )
        for id in arguments.id
    ]
    found = [one.as_json() for one in await asyncio.gather(*runs)]
    result = found[0] if len(found) == 1 else {"profiles": found}
    if arguments.events:
        result["events"] = [told(event) for event in channel.events]
    return result


def told(event: Any) -> dict[str, Any]:
    """An event, and when it came."""
    return {
        "at": event.at,
        "service": event.service,
        "event": event.name,
        "arguments": event.arguments,
    }


async def watch(channel: Channel, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Events as they come, one per line at once."""
    until, seen = time.monotonic() + arguments.seconds, 0
    while time.monotonic() < until:
        for event in channel.events[seen:]:
            print(json.dumps(told(event)), flush=True)
        seen = len(channel.events)
        if channel.closed is not None:
            raise channel.closed
        await asyncio.sleep(0.01)
    return []


async def one_call(channel: Channel, service: str, command: str, *values: Any) -> dict[str, Any]:
    """A command; a refusal is a result."""
    try:
        return {"result": await channel.call(service, command, *values)}
    except Refused as refused:
        return {"error": refused.report, "result": refused.fields}
    except Unknown:
        return {"unknown": True}


async def call(channel: Channel, arguments: argparse.Namespace) -> dict[str, Any]:
    """One command with arguments in JSON."""
    values = [argument.encode() for argument in arguments.argument]
    return await one_call(channel, arguments.service, arguments.command, *values)


async def calls(channel: Channel, arguments: argparse.Namespace) -> dict[str, Any]:
    """Commands one after the other over one channel; a number is a time to wait, in seconds."""
    results = []
    for step in json.loads(arguments.steps):
        if isinstance(step, list):
            results.append(await one_call(channel, *step))
        else:
            await asyncio.sleep(step)
    events = [[event.service, event.name, event.arguments] for event in channel.events]
    return {"results": results, "events": events}


async def raw(arguments: argparse.Namespace) -> dict[str, Any]:
    """Steps, one after the other: `A|B|C` a message of these fields, `hex:..` bytes as they are,
    `wait:SECONDS`, `end` the end of the stream, `eof` no more bytes. Gives all that came."""
    tls = tls_of(arguments)
    reader, writer = await asyncio.open_connection(arguments.host, arguments.port, ssl=tls)
    decoder, came, how = Decoder(), [], "open"

    async def listen() -> None:
        nonlocal how
        try:
            while data := await reader.read(65536):
                for one in decoder.feed(data):
                    if isinstance(one, End):
                        came.append({"end": from_json(one.reason) if one.reason else None})
                    else:
                        fields = [data.decode("utf-8", "backslashreplace") for data in one.fields]
                        came.append({"kind": one.kind, "fields": fields})
            how = "closed"
        except ConnectionResetError:
            how = "reset"

    listener = asyncio.create_task(listen())
    for step in arguments.step:
        word, _, rest = step.partition(":")
        if word == "wait":
            await asyncio.wait({listener}, timeout=float(rest))
        elif word == "hex":
            writer.write(bytes.fromhex(rest))
        elif step == "end":
            writer.write(encode_end())
        elif step == "eof":
            writer.write_eof()
        else:
            writer.write(encode(*(field.encode() for field in step.split("|"))))
    await asyncio.wait({listener}, timeout=arguments.seconds)
    if listener.done():
        listener.result()
    listener.cancel()
    writer.transport.abort()
    return {"came": came, "channel": how}


def tls_of(arguments: argparse.Namespace) -> Any:
    """The keys that were asked for."""
    if not arguments.tls_ca:
        return None
    return tls_context(arguments.tls_ca, arguments.tls_cert, arguments.tls_key)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="transport SSL; who has signed the agent's certificate"
    )
    parser.add_argument("--tls-cert", metavar="FILE")
    parser.add_argument("--tls-key", metavar="FILE")
    commands = parser.add_subparsers(dest="do", required=True)
    one = commands.add_parser("walk")
    one.add_argument("--all", action="store_true")
    one = commands.add_parser("profile")
    one.add_argument("id", nargs="+")
    one.add_argument("--seconds", type=float, default=5)
    one.add_argument("--period", type=float, default=1, help="seconds between reads")
    one.add_argument("--frames", type=int, default=64)
    one.add_argument("--frequency", type=int, help="samples per second and processor")
    one.add_argument("--max-samples", type=int)
    one.add_argument("--kernel", action="store_true", help="kernel frames too")
    one.add_argument("--scope", choices=["Context", "Children", "Container"])
    one.add_argument("--until-exit", action="store_true", help="no longer than it lives")
    one.add_argument(
        "--settle", action="store_true", help="stops the process at the end, until all samples are here"
    )
    one.add_argument("--events", action="store_true", help="all that came meanwhile, too")
    one = commands.add_parser("watch")
    one.add_argument("--seconds", type=float, default=5)
    one = commands.add_parser("call")
    one.add_argument("service")
    one.add_argument("command")
    one.add_argument("argument", nargs="*")
    one = commands.add_parser("calls")
    one.add_argument("steps", help="JSON: an array of arrays and numbers")
    one = commands.add_parser("raw")
    one.add_argument("step", nargs="+")
    one.add_argument(
        "--seconds", type=float, default=1, help="how long to listen behind the last step"
    )
    return parser.parse_args(argv)


async def main(arguments: argparse.Namespace) -> Any:
    """Does what was asked for."""
    if arguments.do == "raw":
        return await raw(arguments)
    channel = await connect(arguments.host, arguments.port, tls_of(arguments))
    try:
        do: Any = {
            "walk": walk,
            "profile": profiled,
            "watch": watch,
            "call": call,
            "calls": calls,
        }
        result = await do[arguments.do](channel, arguments)
    except BaseException:
        failure = channel.failure
        channel.abort()
        if failure is not None:
            raise failure from None
        raise
    await channel.close()
    return result


if __name__ == "__main__":
    try:
        json.dump(asyncio.run(main(parse())), sys.stdout)
        print()
    except (ProtocolError, Refused, Unknown, Closed, OSError, TimeoutError) as problem:
        words = " ".join(str(problem).split())
        sys.exit(f"client.py: {type(problem).__name__}: {words}")
