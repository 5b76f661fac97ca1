"""Functions that wait in turn, at one depth of machine code: each says how long it was off its processor.

    python_waits.py SECONDS

Two call time.sleep themselves, two by a function that both call.
"""

import json
import sys
import time

waited = {"brief": 0, "lengthy": 0, "near": 0, "far": 0}


def off_cpu_ns():
    return time.monotonic_ns() - time.thread_time_ns()


def brief():
    time.sleep(0.0001)


def lengthy():
    time.sleep(0.0003)


def pause(seconds):
    time.sleep(seconds)


def near():
    pause(0.00015)


def far():
    pause(0.00045)


def turn():
    for function in (brief, lengthy, near, far):
        before = off_cpu_ns()
        function()
        waited[function.__name__] += off_cpu_ns() - before


def main():
    # It is known for an interpreter by then.
    time.sleep(1.5)
    end = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < end:
        turn()
    print(json.dumps(waited))


main()
