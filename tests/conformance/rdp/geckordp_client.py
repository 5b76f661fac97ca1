"""A client made with geckordp: what it gets of a server of the remote debugging protocol, as JSON.

Usage: geckordp_client.py PORT PID N   The program PID is asked through our own standard output and input to call its
functions N times: a line `run` out, a line in when that is done. Last line of the output: a summary.
"""

import json
import sys
import threading
from enum import Enum

from geckordp.actors.descriptors.process import ProcessActor
from geckordp.actors.events import Events
from geckordp.actors.root import RootActor
from geckordp.rdp_client import RDPClient


class TraceActor(str, Enum):
    """What a TraceActor says without having been asked: a client has to know, or takes it for an answer."""

    ENTERED_FRAME = "enteredFrame"
    EXITED_FRAME = "exitedFrame"
    LOST_FRAMES = "lostFrames"


Events.TraceActor = TraceActor


def main() -> None:
    port, pid, count = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    client = RDPClient(timeout_sec=20)
    hello = client.connect("127.0.0.1", port)
    assert hello["applicationType"] == "browser", hello
    root = RootActor(client)
    said = {
        "root": sorted(root.request_types()),
        "addons": root.list_addons(),
        "workers": root.list_workers(),
        "registrations": root.list_service_worker_registrations(),
        "tabs": len(root.list_tabs()),
        "selected": root.current_tab() is not None,
    }
    root.get_root()
    processes = root.list_processes()
    assert any(process["id"] == pid for process in processes), processes
    descriptor = root.get_process(pid)["processDescriptor"]
    assert descriptor["traits"]["watcher"] is False
    target = ProcessActor(client, descriptor["actor"]).get_target()
    target = target.get("process", target)
    actor = target["traceActor"]

    def ask(kind: str, **more: object) -> dict:
        return client.send_receive({"to": actor, "type": kind, **more})

    errors = [ask("startTrace", trace=["name"])["error"], ask("detach")["error"], ask("dance")["error"]]
    attached = ask("attach")
    said["traceTypes"] = attached["traceTypes"]
    errors.append(ask("attach")["error"])
    errors.append(ask("stopTrace")["error"])
    errors.append(ask("startTrace", trace=["name", "colour"])["error"])

    frames: list[dict] = []
    lock = threading.Lock()

    def keep(frame: dict) -> None:
        with lock:
            frames.append(frame)

    for event in TraceActor:
        client.add_event_listener(actor, event, keep)
    types = ["name", "depth", "time"]
    started = [
        ask("startTrace", trace=types, name=name, functions=["main:outer", "main:leaf"])["name"]
        for name in ["foo", "foo", "bar", "baz"]
    ]
    print("run", count, flush=True)
    sys.stdin.readline()
    stopped = [ask("stopTrace", name="bar")["name"], ask("stopTrace")["name"], ask("stopTrace")["name"]]
    errors.append(ask("stopTrace")["error"])
    unnamed = [ask("startTrace", trace=types, functions=["main:outer", "main:leaf"])["name"] for _ in range(50)]
    errors.append(ask("stopTrace", name="nobody")["error"])
    names = [ask("stopTrace")["name"] for _ in range(50)]
    assert ask("detach")["type"] == "detached"
    client.disconnect()
    # Each is handled by one of several threads.
    frames.sort(key=lambda frame: frame["sequence"])
    said |= {
        "errors": errors,
        "started": started,
        "stopped": stopped,
        "lifo": len(set(unnamed)) == 50 and names == unnamed[::-1],
        "whole": [frame["sequence"] for frame in frames] == list(range(len(frames))),
        "entered": sum(frame["type"] == "enteredFrame" for frame in frames),
        "exited": sum(frame["type"] == "exitedFrame" for frame in frames),
    }
    print(json.dumps(said), flush=True)


main()
