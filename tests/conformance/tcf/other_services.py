"""The channel, and all services beside the Profiler: each command, each error that can be had, each event.

The source is the framework's description of them, not the agent. What does not belong here: the Profiler
(`profiler_service`).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

from side import HELLO, Scene, Target, refused, unknown, until
from wire import End, encode, encode_end

#: Flags by which a client may do everything.
ALL = ("--allow-control", "--allow-env")


async def setting(scene: Scene, *flags: str) -> tuple[Any, Target]:
    """A channel and a target with its thread, as they are seen over it."""
    scene.serve(*flags)
    target = scene.target()
    channel = await scene.channel()
    run_control = channel.service("RunControl")

    async def is_there() -> bool:
        if target.id not in (await run_control.getChildren(None))[0]:
            return False
        return target.thread() in (await run_control.getChildren(target.id))[0]

    await until(is_there, "the target")
    return channel, target


def told(channel: Any, name: str, id: str) -> list[Any]:
    """Events of this name about a context."""

    def about(event: Any) -> bool:
        first = event.arguments[0]
        ids = first if isinstance(first, list) else [first]
        return any(one == id or isinstance(one, dict) and one["ID"] == id for one in ids)

    return [event for event in channel.events if event.name == name and about(event)]


async def event(channel: Any, name: str, id: str) -> Any:
    """Waits for an event about a context."""

    async def came() -> Any:
        return told(channel, name, id)

    return (await until(came, f"{name} of {id}"))[0]


# The channel.


async def commands_before_hello_are_unknown(scene: Scene) -> None:
    scene.serve()
    (came,) = await scene.raw(encode(b"C", b"7", b"Locator", b"sync"))
    assert (came.kind, came.fields) == ("N", (b"7",)), came


async def bytes_that_are_no_message_end_the_channel(scene: Scene) -> None:
    scene.serve()
    sync = encode(b"C", b"1", b"Locator", b"sync")
    for sent, code in (
        (b"C\x001\x00\x03\x07", 3),
        (b"C\x001\x03\x01", 3),
        (encode(b"X", b"1"), 3),
        (encode(b"R", b"1", b""), 3),
        (b"C\x00\x03\x03\xff\xff\xff\xff\x0f", 3),
        (encode(b"C", b"1", b"Profiler", b"read", b"{"), 2),
        (encode(b"C", b"1", b"Profiler", b"read", b"7"), 2),
        (encode(b"C", b"1", b"Profiler", b"read"), 2),
        (encode(b"C", b"1", b"Profiler", b"read", b'"P1"', b"null"), 2),
    ):
        (came,) = await scene.raw(HELLO, sent, sync)
        assert came.reason.startswith(b'{"Code":%d,' % code), (sent, came)


async def the_end_of_a_stream_is_answered_by_one(scene: Scene) -> None:
    scene.serve()
    (came,) = await scene.raw(HELLO, encode_end())
    assert came == End(b""), came


async def escaped_and_raw_bytes_are_the_same(scene: Scene) -> None:
    scene.serve()
    for argument in (b'"\x03\x00"', b'\x03\x03\x03"\x03"', b'\x03\x03\x83\x00"\x03"'):
        sent = b"C\x00t\x03\x00\x00Diagnostics\x00echo\x00" + argument + b"\x00\x03\x01"
        (came,) = await scene.raw(HELLO, sent)
        assert came.fields == (b"t\x03", b'"\\u0003"'), came


async def flow_control_is_accepted(scene: Scene) -> None:
    scene.serve()
    (came,) = await scene.raw(HELLO, encode(b"F", b"-100"), encode(b"C", b"1", b"Locator", b"sync"))
    assert came.fields == (b"1", b""), came


async def a_client_that_says_no_hello_is_sent_away(scene: Scene) -> None:
    scene.serve()
    (came,) = await scene.raw()
    assert came.reason.startswith(b'{"Code":3,"Format":"no Hello'), came


# Locator and Diagnostics.


async def locator(scene: Scene) -> None:
    scene.serve()
    channel = await scene.channel()
    service = channel.service("Locator")
    assert await service.sync() == []
    (id,) = await service.getAgentID()
    (peers,) = await service.getPeers()
    (peer,) = peers
    assert peer["AgentID"] == id and peer["ID"] == f"TCP:127.0.0.1:{scene.port}", peer
    await refused(7, service.redirect("TCP:10.0.0.1:1534"), [])
    await unknown(service.publishPeer({}))


async def diagnostics(scene: Scene) -> None:
    scene.serve()
    channel = await scene.channel()
    for argument in (b'"abc"', b'"\xff\xfe"'):
        assert await channel.fields("Diagnostics", "echo", argument) == [argument]
    assert await channel.fields("Diagnostics", "echo", b'"\x01\x1f"') == [b'"\\u0001\\u001f"']
    assert await channel.fields("Diagnostics", "echoINT", 16, -(2**70)) == [b"-1180591620717411303424"]
    assert await channel.fields("Diagnostics", "echoINT", 8, 2**64 - 1) == [b"18446744073709551615"]
    assert await channel.fields("Diagnostics", "echoFP", 0.5) == [b"0.5"]
    report = {"Code": 1, "Format": "{1} '' {0,number,percent} '{}'", "Params": [0.5, "b\x03"]}
    fields = await channel.fields("Diagnostics", "echoERR", report)
    assert fields[1] == b"\"b\\u0003 ' 50% {}\"", fields
    assert await channel.fields("Diagnostics", "echoERR", None) == [b"", b"null"]
    assert await channel.service("Diagnostics").getTestList() == [[]]
    await unknown(channel.service("Diagnostics").runTest("RCBP1"))


# RunControl, Processes, SysMonitor.


async def contexts_of_run_control(scene: Scene) -> None:
    channel, target = await setting(scene)
    run_control = channel.service("RunControl")
    (process,) = await run_control.getContext(target.id)
    assert process["ProcessID"] == target.id and process["IsContainer"], process
    assert process["CreatorID"] == f"P{os.getpid()}", "who started it was known"
    (thread,) = await run_control.getContext(target.thread())
    assert (thread["ParentID"], thread["Name"], thread["HasState"]) == (target.id, "burner", True)
    assert await run_control.getChildren(target.thread()) == [[]]
    assert await run_control.getState(target.thread()) == [False, 0, None, {}]
    await refused(16, run_control.getState(target.id), [False, 0, None, None])
    for call in (run_control.getContext("P0"), run_control.getChildren("P0")):
        await refused(16, call, [None])
    await refused(16, run_control.getState("P0"), [False, 0, None, None])
    await refused(23, run_control.detach(target.id), [])
    await unknown(run_control.doMagic(target.id))


async def nothing_is_controlled_unless_that_is_allowed(scene: Scene) -> None:
    channel, target = await setting(scene)
    run_control, processes = channel.service("RunControl"), channel.service("Processes")
    for call in (
        run_control.suspend(target.id),
        run_control.resume(target.id, 0, 1),
        run_control.terminate(target.id),
        processes.terminate(target.id),
        processes.signal(target.id, 15),
    ):
        assert "--allow-control" in await refused(23, call, [])
    text = await refused(23, channel.service("SysMonitor").getEnvironment(target.id), [None])
    assert "--allow-env" in text
    await refused(23, processes.getEnvironment(), [None])


async def suspend_and_resume(scene: Scene) -> None:
    channel, target = await setting(scene, *ALL)
    run_control, thread = channel.service("RunControl"), target.thread()
    await refused(12, run_control.resume(target.id, 0, 1), [])
    assert await run_control.suspend(thread) == []
    suspended = await event(channel, "contextSuspended", thread)
    assert suspended.arguments[1:3] == [0, "Suspended"], suspended.arguments
    assert (await run_control.getState(thread))[0] is True
    await refused(10, run_control.suspend(target.id), [])
    await refused(23, run_control.resume(target.id, 1, 1), [])
    assert await run_control.resume(thread, 0, 1) == []
    await event(channel, "contextResumed", thread)
    assert (await run_control.getState(thread))[0] is False
    # What a channel has stopped goes on when it closes.
    other = await scene.channel()
    await other.service("RunControl").suspend(target.id)
    await other.close()
    await until(lambda: go_on(target), "that it goes on")


async def go_on(target: Target) -> bool:
    """Whether it is not stopped."""
    with open(f"/proc/{target.pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] != "T"


async def ends_are_told_before_they_are_said(scene: Scene) -> None:
    channel, target = await setting(scene, *ALL)
    run_control, monitor = channel.service("RunControl"), channel.service("SysMonitor")
    services = (run_control, monitor, channel.service("Processes"), channel.service("Profiler"))
    await channel.service("Profiler").configure(target.id, {"FrameCnt": 1})
    assert await run_control.terminate(target.id) == []
    asked = 0
    while not told(channel, "contextRemoved", target.id):
        calls = [service.getContext(target.id) for service in services[:3]]
        calls += [monitor.getCommandLine(target.id), monitor.getEnvironment(target.id)]
        calls += [services[3].getCapabilities(target.id), services[3].read(target.id)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        # The event may have come before one of these answers, and then comes before it here too.
        if not told(channel, "contextRemoved", target.id):
            bad = [one for one in answers if isinstance(one, Exception)]
            assert not bad, bad
        asked += 1
    assert asked > 1
    for call in (
        run_control.getContext(target.id),
        monitor.getContext(target.id),
        channel.service("Processes").getContext(target.id),
        channel.service("Profiler").read(target.id),
    ):
        await refused(11, call, [None])
    await refused(11, run_control.terminate(target.id), [])


async def contexts_come_and_change(scene: Scene) -> None:
    channel, target = await setting(scene)
    later = scene.target()
    added = await event(channel, "contextAdded", later.id)
    assert added.service == "RunControl"
    await event(channel, "contextAdded", later.thread())
    thread = later.thread()
    later.renew()
    await event(channel, "contextChanged", later.id)
    changed = await event(channel, "changed", later.id)
    assert changed.service == "MemoryMap"
    await event(channel, "contextRemoved", thread)

    async def is_renewed() -> bool:
        (context,) = await channel.service("RunControl").getContext(later.id)
        return context["Name"] == "again" or context["Name"] == "exe"

    await until(is_renewed, "the new name")
    assert await channel.service("SysMonitor").getCommandLine(later.id) == [["again", "a b", "c"]]


async def processes(scene: Scene) -> None:
    channel, target = await setting(scene, *ALL)
    service = channel.service("Processes")
    for attached in (False, True):
        assert target.id in (await service.getChildren(None, attached))[0]
    assert await service.getChildren(target.id, False) == [[]]
    (context,) = await service.getContext(target.id)
    assert (context["ID"], context["Attached"], context["CanTerminate"]) == (target.id, True, True)
    assert await service.getContext(target.thread()) == [None]
    await refused(13, service.attach(target.id), [])
    await refused(23, service.detach(target.id), [])
    await refused(23, service.setSignalMask(target.id, 0, 0), [])
    await refused(23, service.start("/", "/bin/true", [], [], False), [None])
    (signals,) = await service.getSignalList(None)
    assert {signal["Name"]: signal["Code"] for signal in signals}["SIGTERM"] == 15
    assert len(await service.getSignalMask(target.id)) == 3
    await refused(20, service.signal(target.id, 65), [])
    await refused(23, service.signal(target.thread(), 15), [])
    await refused(16, service.attach(target.thread()), [])
    for call in (service.getContext("P0"), service.getChildren("P0", False)):
        await refused(16, call, [None])
    (environment,) = await service.getEnvironment()
    assert any(one.startswith("PATH=") for one in environment)
    await refused(1, service.signal("P2", 15), [])
    assert await service.signal(target.id, 9) == []
    await event(channel, "contextRemoved", target.id)


async def sys_monitor(scene: Scene) -> None:
    channel, target = await setting(scene, *ALL)
    service = channel.service("SysMonitor")
    assert target.id in (await service.getChildren(None))[0]
    assert target.thread() in (await service.getChildren(target.id))[0]
    (context,) = await service.getContext(target.id)
    assert (context["PID"], context["PPID"]) == (target.pid, os.getpid()), context
    assert context["File"].endswith("/target") and context["State"] in "RS", context
    (command,) = await service.getCommandLine(target.id)
    assert command[1:] == ["200"] and command[0].endswith("/target")
    (environment,) = await service.getEnvironment(target.id)
    assert any(one.startswith("PATH=") for one in environment)
    for name in ("getContext", "getChildren", "getCommandLine", "getEnvironment"):
        await refused(16, getattr(service, name)("P0"), [None])


# MemoryMap, Symbols, LineNumbers.


def function(target: Target, name: str) -> tuple[int, int]:
    """Where a function of the target is, and its length, by its symbols and what is mapped."""
    program = f"/proc/{target.pid}/exe"
    table = subprocess.run(["nm", "-S", program], check=True, capture_output=True, text=True)
    rows = [row.split() for row in table.stdout.splitlines()]
    (found,) = [row for row in rows if row[-1] == name]
    with open(f"/proc/{target.pid}/maps") as maps:
        base = int(maps.readline().split("-")[0], 16)
    return base + int(found[0], 16), int(found[1], 16)


async def memory_map(scene: Scene) -> None:
    channel, target = await setting(scene)
    service = channel.service("MemoryMap")
    (regions,) = await service.get(target.id)
    start, _ = function(target, "leaf")
    (code,) = [one for one in regions if one["Addr"] <= start < one["Addr"] + one["Size"]]
    assert code["Flags"] == 5 and code["FileName"].endswith("/target"), code
    await refused(16, service.get("P0"), [None])
    await refused(23, service.set(target.id, []), [])


async def symbols(scene: Scene) -> None:
    channel, target = await setting(scene)
    service = channel.service("Symbols")
    start, size = function(target, "leaf")
    for address in (start, start + size - 1):
        (id,) = await service.findByAddr(target.id, address)
        (symbol,) = await service.getContext(id)
        assert (symbol["Name"], symbol["Address"], symbol["Size"]) == ("leaf", start, size), symbol
        assert (symbol["OwnerID"], symbol["Class"]) == (target.id, 3), symbol
    assert await service.getChildren(id) == [[]]
    assert await service.list(target.id) == [[]]
    assert await service.find(target.id, 0, "leaf") == [id]
    assert await service.findByName(target.id, 0, "leaf") == [id]
    for address in (0, -1, 2**64, 2**63):
        await refused(22, service.findByAddr(target.id, address), [None])
    await refused(22, service.find(target.id, 0, "no_such_function"), [None])
    await refused(16, service.findByAddr("P0", start), [None])
    await refused(16, service.getContext("leaf"), [None])
    await unknown(service.findInScope(target.id, 0, "", "leaf"))


async def lines(scene: Scene) -> None:
    channel, target = await setting(scene)
    service = channel.service("LineNumbers")
    start, size = function(target, "deep")
    (areas,) = await service.mapToSource(target.id, start, start + size)
    with open(os.path.join(os.path.dirname(__file__), "target.c")) as source:
        text = source.read().splitlines()
    first = next(at for at, line in enumerate(text, 1) if "void deep" in line)
    last = next(at for at, line in enumerate(text, 1) if at > first and line == "}")
    assert areas[0]["SAddr"] == start and areas[-1]["EAddr"] == start + size, areas
    for one, next_one in zip(areas, areas[1:]):
        assert one["EAddr"] == next_one["SAddr"], "the whole range has lines"
        assert one["SLine"] != next_one["SLine"], "neighbours of one line are one area"
    seen = {area["SLine"] for area in areas}
    code = {at for at in range(first, last + 1) if text[at - 1].strip() not in ("else",)}
    assert seen == code, (seen, code)
    assert {area["File"] for area in areas} == {"target.c"}
    (area,) = (await service.mapToSource(target.id, start + 1, start + 2))[0]
    assert area["SAddr"] <= start + 1 < area["EAddr"]
    assert await service.mapToSource(target.id, 0, 1) == [None]
    assert await service.mapToSource(target.id, -1, 0) == [None]
    await refused(15, service.mapToSource(target.id, start, start + 2**20), [None])
    await refused(16, service.mapToSource("P0", start, start + 1), [None])
    await refused(23, service.mapToMemory(target.id, "target.c", first, 0), [None])


async def who_is_refused_is_told_why(scene: Scene) -> None:
    scene.serve()
    client = (
        "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
        "print(s.recv(4096, socket.MSG_WAITALL))"
    )
    words = ["setpriv", "--reuid", "65534", "--clear-groups", "/usr/bin/python3", "-c", client]
    said = subprocess.run([*words, str(scene.port)], check=True, capture_output=True, text=True)
    assert "--allow-user 65534" in said.stdout and '"Code":1' in said.stdout, said.stdout


CASES = (
    commands_before_hello_are_unknown,
    bytes_that_are_no_message_end_the_channel,
    the_end_of_a_stream_is_answered_by_one,
    escaped_and_raw_bytes_are_the_same,
    flow_control_is_accepted,
    a_client_that_says_no_hello_is_sent_away,
    locator,
    diagnostics,
    contexts_of_run_control,
    nothing_is_controlled_unless_that_is_allowed,
    suspend_and_resume,
    ends_are_told_before_they_are_said,
    contexts_come_and_change,
    processes,
    sys_monitor,
    memory_map,
    symbols,
    lines,
    who_is_refused_is_told_why,
)
