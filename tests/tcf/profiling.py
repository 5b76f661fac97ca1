"""Profiling a context in the order of commands that real clients use.

getContext, getCapabilities, configure, a first read at once, a read each period, symbols and lines of
what came, configure {}. What does not belong here: what is printed.
"""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import services
from channel import Channel, Refused
from services import Place, Region
from stacks import FORMAT, Reads
from wire import ProtocolError

#: What was sampled comes some time later: as long as it still does, and so long behind the last of it.
QUIET_S = 0.3
#: If some are missing then, they may be waiting for what their stacks are walked by.
MISSING_S = 10.0

#: Addresses from here on are the kernel's.
KERNEL = 1 << 63


@dataclass
class Profile:
    """What profiling a context for a while gave."""

    id: str
    process: str
    reads: Reads
    places: dict[int, Place] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    seconds: float = 0.0
    #: When it began and ended, of CLOCK_MONOTONIC.
    window_ns: tuple[int, int] = (0, 0)
    #: At least and at most, of the time that was sampled.
    cpu_ns: tuple[int, int] | None = None

    def module(self, address: int) -> str | None:
        """The file at an address."""
        if address >= KERNEL:
            return "[kernel]"
        for region in self.regions:
            if region.start <= address < region.start + region.size:
                return region.path
        return None

    def functions(self) -> list[dict[str, Any]]:
        """Samples per function, as the innermost and anywhere in the stack, hottest first."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}

        def row(address: int) -> tuple[str, str]:
            place = self.places.get(address, Place())
            key = (place.name or f"{address:#x}", self.module(address) or "")
            entry = rows.setdefault(
                key,
                {
                    "name": key[0],
                    "module": key[1],
                    "named": place.name is not None,
                    "leaf": 0,
                    "inclusive": 0,
                    "lines": {},
                },
            )
            if place.file is not None:
                lines = entry["lines"].setdefault(place.file, [])
                if place.line not in lines:
                    lines.append(place.line)
            return key

        for stack, count in self.reads.stacks.items():
            keys = [row(address) for address in stack]
            rows[keys[0]]["leaf"] += count
            for key in set(keys):
                rows[key]["inclusive"] += count
        return sorted(rows.values(), key=lambda one: (-one["leaf"], -one["inclusive"], one["name"]))

    def chains(self) -> list[dict[str, Any]]:
        """Stacks by name, leaf first, with their counts."""
        sums: dict[tuple[str, ...], int] = {}
        for stack, count in self.reads.stacks.items():
            names = tuple(
                self.places.get(address, Place()).name or f"{address:#x}" for address in stack
            )
            sums[names] = sums.get(names, 0) + count
        return [
            {"count": count, "frames": list(names)}
            for names, count in sorted(sums.items(), key=lambda one: -one[1])
        ]

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        reads = self.reads
        return {
            "id": self.id,
            "process": self.process,
            "seconds": self.seconds,
            "window_ns": self.window_ns,
            "cpu_ns": self.cpu_ns,
            "samples": reads.samples,
            "dropped": reads.sum_of("Dropped"),
            "lost": reads.sum_of("Lost"),
            "no_stack": reads.sum_of("NoStack"),
            "frequency": [read["Frequency"] for read in reads.reads if "Frequency" in read][-1:],
            "reads": reads.reads,
            "bytes": reads.bytes,
            "functions": self.functions(),
            "chains": self.chains(),
            "addresses": {
                f"{address:#x}": asdict(place) for address, place in sorted(self.places.items())
            },
        }


def cpu_ns(id: str) -> int | None:
    """Time on processors of a context so far, if its process runs here. Exact to a kernel tick."""
    process, _, thread = id.removeprefix("P").partition(".")
    total = None
    for path in glob.glob(f"/proc/{process}/task/{thread or '*'}/schedstat"):
        try:
            with open(path, encoding="ascii") as file:
                total = (total or 0) + int(file.read().split()[0])
        except OSError:
            pass
    return total


def between(
    before: int | None, behind: int | None, used: int | None, now: int | None
) -> tuple[int, int] | None:
    """What was used from a moment between the first two to one between the last two."""
    if before is None or behind is None or used is None or now is None:
        return None
    return max(used - behind, 0), now - before


#: How many wait for what a stopped process was sampled with.
STOPPED: Counter[int] = Counter()


async def settled(
    channel: Channel, id: str, reads: Reads, before: int, behind: int, frequency: int
) -> tuple[int, int]:
    """Stops the process until all that was sampled of it has come; gives what it used, at least and at most."""
    process = int(id.removeprefix("P").partition(".")[0])

    def come() -> int:
        return reads.samples + sum(reads.sum_of(key) for key in ("NoStack", "Lost", "Dropped"))

    used = cpu_ns(id) or behind
    STOPPED[process] += 1
    os.kill(process, signal.SIGSTOP)
    try:
        last = time.monotonic()
        while True:
            await asyncio.sleep(QUIET_S / 3)
            had = come()
            reads.take(await services.read(channel, id))
            now = time.monotonic()
            if come() > had:
                last = now
            expected = (used - behind) / 1e9 * frequency
            limit = QUIET_S if come() >= expected - 2 * expected**0.5 else MISSING_S
            if now - last > limit:
                return max(used - behind, 0), (cpu_ns(id) or used) - before
    finally:
        STOPPED[process] -= 1
        if STOPPED[process] == 0:
            os.kill(process, signal.SIGCONT)


async def select(channel: Channel, id: str) -> str:
    """What a client does when a context is selected; gives its process."""
    context = await services.known(channel, id)
    process = context["ProcessID"]
    await services.run_control_context(channel, process)
    if FORMAT not in await services.capabilities(channel, id):
        raise ProtocolError(f"{id} can't be profiled")
    return process


async def symbolize(channel: Channel, profile: Profile) -> None:
    """Looks up what is not known yet of the addresses that came."""
    new = {address for stack in profile.reads.stacks for address in stack} - profile.places.keys()
    found = await services.all_of(
        services.place(channel, profile.process, address) for address in sorted(new)
    )
    profile.places.update(zip(sorted(new), found))


async def run(
    channel: Channel,
    id: str,
    seconds: float,
    frames: int,
    period: float = 4.0,
    until_exit: bool = False,
    settle: bool = False,
    **more: Any,
) -> Profile:
    """Profiles a context for a time, or until it has ended; with `settle` it is stopped then until all samples are here."""
    profile = Profile(id, await select(channel, id), Reads(frames))
    profile.regions = await services.memory_map(channel, profile.process)
    parameters = {
        "FrameCnt": frames,
        **{key: value for key, value in more.items() if value is not None},
    }
    # What is sampled begins and ends while the agent is asked, however long that takes.
    before = cpu_ns(id)
    await services.configure(channel, id, parameters)
    begin, behind = time.monotonic(), cpu_ns(id)
    profile.reads.take(await services.read(channel, id))
    exited = False
    left = seconds
    # At least one, however late this comes to run.
    while not exited and left > 0:
        await asyncio.sleep(min(left, period))
        left = begin + seconds - time.monotonic()
        try:
            used = cpu_ns(id)
            profile.reads.take(await services.read(channel, id))
            profile.cpu_ns = between(before, behind, used, cpu_ns(id))
        except Refused as refused:
            if not until_exit or refused.code != services.ALREADY_EXITED:
                raise
            if refused.fields != [None]:
                raise ProtocolError(f"read of what has ended gives {refused.fields}") from refused
            exited = True
        # Files may have been mapped since.
        try:
            profile.regions = await services.memory_map(channel, profile.process) or profile.regions
        except Refused as refused:
            if refused.code not in (services.ALREADY_EXITED, services.INV_CONTEXT):
                raise
        await symbolize(channel, profile)
    end = time.monotonic()
    profile.seconds, profile.window_ns = end - begin, (int(begin * 1e9), int(end * 1e9))
    if settle and before is not None and behind is not None:
        profile.cpu_ns = await settled(
            channel, id, profile.reads, before, behind, more["Frequency"]
        )
        await symbolize(channel, profile)
    await services.configure(channel, id, {})
    if not exited and (rest := await services.read(channel, id)):
        raise ProtocolError(f"a context that was stopped is read as {rest}")
    return profile
