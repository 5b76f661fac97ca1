"""The Profiler service as its document has it: one case for each sentence that demands something.

docs/formats/tcf.md says which case is of which sentence.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import Any

from side import Scene, Target, refused, until

#: Words of an address.
WIDE = 8


def stacks(buffer: dict[str, Any]) -> list[tuple[int, tuple[int, ...]]]:
    """The counts and addresses of a buffer in the format StackTraces."""
    assert buffer["Format"] == "StackTraces", buffer
    size = buffer.get("AddrSize", 4)
    assert size == WIDE and not buffer.get("BigEndian", False), buffer
    data = base64.b64decode(buffer["Data"], validate=True)
    words = struct.unpack(f"<{len(data) // WIDE}Q", data)
    found, at = [], 0
    while at < len(words):
        count, length = words[at], words[at + 1]
        assert 0 < count < 2**31 and length > 0, (count, length)
        found.append((count, words[at + 2 : at + 2 + length]))
        at += 2 + length
    assert at == len(words), "a stack is cut"
    return found


async def read(channel: Any, id: str) -> list[dict[str, Any]]:
    """One read."""
    (buffers,) = await channel.service("Profiler").read(id)
    assert isinstance(buffers, list), buffers
    return buffers


async def sampled(channel: Any, id: str) -> dict[str, Any]:
    """The first buffer with samples."""

    async def some() -> Any:
        buffers = await read(channel, id)
        assert len(buffers) == 1, buffers
        return buffers[0] if buffers[0].get("Data") else None

    return await until(some, "a sample")


async def setting(scene: Scene, depth: int = 200) -> tuple[Any, Target]:
    """A channel and a target that is seen over it."""
    scene.serve()
    target = scene.target(depth)
    channel = await scene.channel()
    run_control = channel.service("RunControl")

    async def is_there() -> bool:
        return target.id in (await run_control.getChildren(None))[0]

    await until(is_there, "the target")
    return channel, target


async def the_service_is_offered_by_its_name(scene: Scene) -> None:
    channel, target = await setting(scene)
    assert "Profiler" in channel.services
    await channel.service("Profiler").getCapabilities(target.id)


async def errors_have_the_standard_format(scene: Scene) -> None:
    channel, _ = await setting(scene)
    profiler = channel.service("Profiler")
    for call, fields in (
        (profiler.getCapabilities("P0"), [{}]),
        (profiler.read("P0"), [None]),
    ):
        text = await refused(16, call, fields)
        assert text.startswith("Invalid context"), text


async def capabilities_are_reported(scene: Scene) -> None:
    channel, target = await setting(scene)
    for id in (target.id, target.thread()):
        (found,) = await channel.service("Profiler").getCapabilities(id)
        assert {"FrameCnt", "MaxSamples"} <= found["StackTraces"].keys(), found


async def configuring_starts_and_data_are_read(scene: Scene) -> None:
    channel, target = await setting(scene)
    profiler = channel.service("Profiler")
    assert await read(channel, target.id) == [], "nothing was started"
    assert await profiler.configure(target.id, {"FrameCnt": 8, "Frequency": 499}) == []
    assert stacks(await sampled(channel, target.id))


async def no_parameters_and_null_stop(scene: Scene) -> None:
    channel, target = await setting(scene)
    profiler = channel.service("Profiler")
    for stop in ({}, None):
        await profiler.configure(target.id, {"FrameCnt": 1, "Frequency": 499})
        await sampled(channel, target.id)
        assert await profiler.configure(target.id, stop) == []
        assert await read(channel, target.id) == []


async def frame_count_0_is_off_and_1_has_no_callers(scene: Scene) -> None:
    channel, target = await setting(scene)
    profiler = channel.service("Profiler")
    await profiler.configure(target.id, {"FrameCnt": 0, "Frequency": 499})
    assert await read(channel, target.id) == []
    for frames in (1, 2, 8):
        await profiler.configure(target.id, {"FrameCnt": frames, "Frequency": 499})
        lengths = {len(stack) for _, stack in stacks(await sampled(channel, target.id))}
        assert max(lengths) == frames, lengths


async def stacks_that_are_cut_are_said(scene: Scene) -> None:
    channel, target = await setting(scene, depth=400)
    profiler = channel.service("Profiler")
    (found,) = await profiler.getCapabilities(target.id)
    most = found["StackTraces"]["FrameCnt"]["Max"]
    await profiler.configure(target.thread(), {"FrameCnt": most, "Frequency": 499})
    buffer = await sampled(channel, target.thread())
    longest = max(len(stack) for _, stack in stacks(buffer))
    assert longest == most or buffer["Truncated"] == buffer["Samples"], buffer
    await profiler.configure(target.thread(), {"FrameCnt": 8, "Frequency": 499})
    assert "Truncated" not in await sampled(channel, target.thread())


async def the_buffer_has_its_size_in_samples(scene: Scene) -> None:
    channel, target = await setting(scene)
    profiler = channel.service("Profiler")
    await profiler.configure(target.id, {"FrameCnt": 1, "MaxSamples": 5, "Frequency": 999})

    async def full() -> Any:
        # Reading would empty it: it is left alone until it must be full.
        await asyncio.sleep(1)
        (buffer,) = await read(channel, target.id)
        return buffer if buffer.get("Dropped") else None

    buffer = await until(full, "a lost sample")
    assert sum(count for count, _ in stacks(buffer)) == buffer["Samples"] == 5, buffer


async def a_read_clears_the_buffer(scene: Scene) -> None:
    channel, target = await setting(scene)
    profiler = channel.service("Profiler")
    await profiler.configure(target.id, {"FrameCnt": 1, "Frequency": 1})
    first = await sampled(channel, target.id)
    total = first["Samples"]
    # At one sample a second the next two reads can have one more at most.
    again = [(await read(channel, target.id))[0] for _ in range(2)]
    assert sum(buffer.get("Samples", 0) for buffer in again) <= 1, (total, again)
    assert {"Format": "StackTraces"} in [
        {key: value for key, value in buffer.items() if key != "Lost"} for buffer in again
    ]


async def data_have_their_properties(scene: Scene) -> None:
    channel, target = await setting(scene)
    await channel.service("Profiler").configure(target.id, {"FrameCnt": 8, "Frequency": 499})
    buffer = await sampled(channel, target.id)
    assert (buffer["Format"], buffer["AddrSize"]) == ("StackTraces", WIDE)
    assert sum(count for count, _ in stacks(buffer)) == buffer["Samples"]
    addresses = [stack for _, stack in stacks(buffer)]
    assert len(set(addresses)) == len(addresses), "a stack is there twice"


async def several_profile_one_context_at_a_time(scene: Scene) -> None:
    first, target = await setting(scene)
    second = await scene.channel()
    await first.service("Profiler").configure(target.id, {"FrameCnt": 1, "Frequency": 99})
    await second.service("Profiler").configure(target.id, {"FrameCnt": 4, "Frequency": 499})
    await second.service("Profiler").configure(target.thread(), {"FrameCnt": 2})
    for channel, id, frames in (
        (first, target.id, 1),
        (second, target.id, 4),
        (second, target.thread(), 2),
    ):
        lengths = {len(stack) for _, stack in stacks(await sampled(channel, id))}
        assert max(lengths) == frames, (id, lengths)
    await first.close()
    assert await sampled(second, target.id), "one that leaves takes nothing of the other's"


async def parameters_of_others_are_no_errors(scene: Scene) -> None:
    channel, target = await setting(scene)
    profiler = channel.service("Profiler")
    odd = {"FrameCnt": "x", "MaxSamples": [], "Else": {"a": None}, "a\x01": "\x1f"}
    assert await profiler.configure(target.id, odd) == []
    assert await profiler.configure("P0", {"FrameCnt": 1}) == [], "it may come yet"


CASES = (
    the_service_is_offered_by_its_name,
    errors_have_the_standard_format,
    capabilities_are_reported,
    configuring_starts_and_data_are_read,
    no_parameters_and_null_stop,
    frame_count_0_is_off_and_1_has_no_callers,
    stacks_that_are_cut_are_said,
    the_buffer_has_its_size_in_samples,
    a_read_clears_the_buffer,
    data_have_their_properties,
    several_profile_one_context_at_a_time,
    parameters_of_others_are_no_errors,
)
