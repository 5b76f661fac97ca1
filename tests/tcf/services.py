"""What the replies of services mean, checked as strictly as the clients that are about.

Each function sends a command and gives its result in Python's terms. A reply that lacks what clients
take for granted is a `ProtocolError`. What does not belong here: in which order a client asks.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any, Awaitable, Iterable, TypeVar

from channel import Channel, Refused
from wire import ProtocolError

INV_CONTEXT = 16
ALREADY_EXITED = 11
SYM_NOT_FOUND = 22

#: Commands on their way at a time.
WINDOW = 1000

Properties = dict[str, Any]
T = TypeVar("T")


async def all_of(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Results of commands that are sent without waiting for one another."""
    pending, results = list(awaitables), []
    for start in range(0, len(pending), WINDOW):
        results += await asyncio.gather(*pending[start : start + WINDOW])
    return results


def _need(condition: bool, what: str, value: Any) -> None:
    if not condition:
        raise ProtocolError(f"{what}: {str(value)[:300]}")


def _properties(value: Any, what: str, **types: type | tuple[type, ...]) -> Properties:
    _need(isinstance(value, dict), f"{what} is no object", value)
    for name, kind in types.items():
        # To Python true is a number.
        right = isinstance(value.get(name), kind) and (kind is bool or value[name] is not True)
        _need(right, f"{what} without {name}", value)
    return value


def _one(values: list[Any], what: str, count: int = 1) -> Any:
    _need(len(values) == count, f"{what} with {len(values)} fields", values)
    return values[0]


def _ids(values: list[Any], what: str) -> list[str]:
    ids = _one(values, what)
    _need(isinstance(ids, list) and all(isinstance(id, str) for id in ids), what, ids)
    _need(len(set(ids)) == len(ids), f"{what} names a child twice", ids)
    return ids


def check_context(context: Any, id: str | None = None) -> Properties:
    """A context of RunControl with all that clients need of it."""
    what = f"context {id or ''}"
    _properties(context, what, ID=str, ProcessID=str, Name=str)
    _need(id is None or context["ID"] == id, f"{what} has another id", context)
    if context["ID"] == context["ProcessID"]:
        _properties(context, what, IsContainer=bool, WordSize=int, SymbolsGroup=str, RCGroup=str)
        _need(not context.get("HasState"), f"{what} is a process with a state", context)
    else:
        _properties(context, what, ParentID=str, HasState=bool)
        _need(context["HasState"], f"{what} is a thread without state", context)
    return context


async def run_control_children(channel: Channel, id: str | None) -> list[str]:
    """Ids of processes, or of the threads of one."""
    return _ids(await channel.service("RunControl").getChildren(id), "RunControl.getChildren")


async def run_control_context(channel: Channel, id: str) -> Properties:
    """Properties of a process or thread."""
    return check_context(_one(await channel.service("RunControl").getContext(id), "getContext"), id)


async def state(channel: Channel, id: str) -> tuple[bool, str | None]:
    """Whether a thread is suspended, and why."""
    values = await channel.service("RunControl").getState(id)
    suspended = _one(values, "RunControl.getState", 4)
    _need(isinstance(suspended, bool), "getState", values)
    _need(values[1] is None or isinstance(values[1], int), "getState", values)
    _need(isinstance(values[3], dict), "getState without parameters", values)
    return suspended, values[2]


@dataclass
class Tree:
    """All contexts by their ids, and how long it took to fetch them."""

    contexts: dict[str, Properties]
    gone: list[str]
    seconds: float

    def threads_of(self, process: str) -> list[str]:
        """Threads of a process."""
        return [id for id, props in self.contexts.items() if props.get("ParentID") == process]


async def tree(channel: Channel) -> Tree:
    """Walks the tree of RunControl. What ends while it is walked is in `gone`."""
    begin, found, gone = time.monotonic(), {}, []
    level: list[str | None] = [None]

    async def children(id: str | None) -> list[str]:
        try:
            return await run_control_children(channel, id)
        except Refused as refused:
            _need(refused.code in (INV_CONTEXT, ALREADY_EXITED), "getChildren", refused.report)
            return []

    async def context(id: str) -> Properties | None:
        try:
            return await run_control_context(channel, id)
        except Refused as refused:
            _need(refused.code in (INV_CONTEXT, ALREADY_EXITED), "getContext", refused.report)
            gone.append(id)
            return None

    while level:
        ids = [id for ids in await all_of(map(children, level)) for id in ids]
        contexts = await all_of(map(context, ids))
        present = [one for one in contexts if one is not None]
        for one in present:
            _need(one["ID"] not in found, "a context that has two parents", one)
            found[one["ID"]] = one
        level = [one["ID"] for one in present if one.get("IsContainer")]
    for one in found.values():
        _need(one["ProcessID"] in found, "a context without its process", one)
        _need(one.get("ParentID", one["ID"]) in found, "a context without its parent", one)
    return Tree(found, gone, time.monotonic() - begin)


async def capabilities(channel: Channel, id: str) -> Properties:
    """What the profiler can do with a context."""
    return _properties(
        _one(await channel.service("Profiler").getCapabilities(id), "getCapabilities"), id
    )


async def configure(channel: Channel, id: str, parameters: Properties | None) -> None:
    """Starts or stops. An error here ends a real client's channel."""
    try:
        values = await channel.service("Profiler").configure(id, parameters)
    except Refused as refused:
        raise ProtocolError(f"configure is refused: {refused}") from refused
    _need(not values, "configure with a result", values)


async def read(channel: Channel, id: str) -> list[Properties]:
    """Samples since the last read."""
    buffers = _one(await channel.service("Profiler").read(id), "Profiler.read")
    _need(isinstance(buffers, list), "Profiler.read", buffers)
    return buffers


@dataclass(frozen=True)
class Region:
    """A piece of memory."""

    start: int
    size: int
    flags: int
    path: str
    offset: int


async def known(channel: Channel, id: str, seconds: float = 10.0) -> Properties:
    """A context. One that runs here may have begun just now: the agent knows it when it has taken what came before,
    which files of others can hold up for a second."""
    process = id.removeprefix("P").partition(".")[0]
    until = time.monotonic() + seconds
    while True:
        try:
            return await run_control_context(channel, id)
        except Refused as refused:
            is_here = os.path.exists(f"/proc/{process}")
            if refused.code != INV_CONTEXT or not is_here or time.monotonic() > until:
                raise
        await asyncio.sleep(0.05)


async def memory_map(channel: Channel, id: str) -> list[Region]:
    """What is mapped into a process."""
    regions = _one(await channel.service("MemoryMap").get(id), "MemoryMap.get")
    _need(isinstance(regions, list), "MemoryMap.get", regions)
    found = []
    for one in regions:
        _properties(one, "a region", Addr=int, Size=int, Flags=int)
        path, offset = one.get("FileName", ""), one.get("Offs", 0)
        _need(isinstance(path, str) and isinstance(offset, int), "a region", one)
        _need(one["Size"] > 0 and one["Flags"] & ~7 == 0, "a region", one)
        found.append(Region(one["Addr"], one["Size"], one["Flags"], path, offset))
    return found


@dataclass
class Place:
    """What an address means: function, and the line of the innermost inlined function."""

    name: str | None = None
    start: int | None = None
    file: str | None = None
    line: int | None = None


async def symbol(channel: Channel, process: str, address: int) -> Place:
    """The function at an address of a process."""
    service = channel.service("Symbols")
    try:
        id = _one(await service.findByAddr(process, address), "Symbols.findByAddr")
    except Refused as refused:
        right = refused.code == SYM_NOT_FOUND and refused.fields == [None]
        _need(right, "a symbol that is not found", (refused.report, refused.fields))
        return Place()
    _need(isinstance(id, str) and id != "", "Symbols.findByAddr", id)
    found = _one(await service.getContext(id), "Symbols.getContext")
    _properties(
        found,
        f"symbol {id}",
        ID=str,
        OwnerID=str,
        UpdatePolicy=int,
        Name=str,
        Class=int,
    )
    # A function that is not known to begin anywhere has no address, one of unknown length no size.
    for name in ("Address", "Size"):
        if name in found:
            _properties(found, f"symbol {id}", **{name: int})
    start = found.get("Address", address)
    _need(found["ID"] == id and found["OwnerID"] == process, f"symbol {id} of {process}", found)
    _need(found["Class"] == 3, f"symbol {id} is no function", found)
    _need(
        start <= address < start + found.get("Size", address - start + 1),
        f"symbol {id} is not at {address}",
        found,
    )
    return Place(found["Name"], found.get("Address"))


async def line(channel: Channel, process: str, address: int) -> tuple[str, int] | None:
    """File and line at an address of a process."""
    areas = _one(
        await channel.service("LineNumbers").mapToSource(process, address, address + 1),
        "mapToSource",
    )
    if areas is None:
        return None
    _need(isinstance(areas, list), "mapToSource", areas)
    for area in areas:
        _properties(area, "a piece of code", SAddr=int, EAddr=int, SLine=int, ELine=int, File=str)
        _need(area["SAddr"] < area["EAddr"], "a piece of code", area)
    for area in areas:
        if area["SAddr"] <= address < area["EAddr"]:
            folder, path = area.get("Dir") or ".", area["File"]
            whole = path if path.startswith("/") or folder == "." else f"{folder}/{path}"
            return whole, area["SLine"]
    raise ProtocolError(f"lines of {address} that are elsewhere: {areas}")


async def place(channel: Channel, process: str, address: int) -> Place:
    """The function and the line at an address of a process."""
    found, where = await asyncio.gather(
        symbol(channel, process, address), line(channel, process, address)
    )
    if where is not None:
        found.file, found.line = where
    return found
