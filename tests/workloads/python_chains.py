"""Known chains of calls. Each leaf uses the processor and says its own chain.

Usage: python_chains.py SECONDS. Prints a JSON object: leaf -> its chain, leaf first, each
frame as [qualified name, file, line]. The line of a leaf is that of its loop.
"""
import asyncio
import ctypes
import functools
import json
import os
import sys
import threading
import time

SECONDS = float(sys.argv[1])
CHAINS = {}
DEEP = 400


def note(frame):
    """Keeps the chain of `frame`, whose own line is that of the loop that follows."""
    chain = []
    first = frame
    while frame is not None:
        code = frame.f_code
        line = frame.f_lineno + (1 if frame is first else 0)
        chain.append([getattr(code, "co_qualname", code.co_name), code.co_filename, line])
        frame = frame.f_back
    CHAINS[first.f_code.co_name] = chain


def leaf_recursion():
    note(sys._getframe())
    for _ in range(COUNT): pass


def recursion(depth):
    if depth:
        return recursion(depth - 1)
    return leaf_recursion()


def leaf_deep():
    note(sys._getframe())
    for _ in range(COUNT): pass


def deep(depth):
    return deep(depth - 1) if depth else leaf_deep()


def leaf_generator():
    note(sys._getframe())
    for _ in range(COUNT): pass


def inner_generator():
    yield leaf_generator()


def generator():
    yield from inner_generator()


async def leaf_async():
    note(sys._getframe())
    for _ in range(COUNT): pass


async def middle():
    await asyncio.sleep(0)
    await leaf_async()


async def outer():
    await middle()


def leaf_key(item):
    note(sys._getframe())
    for _ in range(COUNT): pass
    return item


def leaf_qsort(a, b):
    note(sys._getframe())
    for _ in range(COUNT): pass
    return a[0] - b[0]


def qsort():
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)
    )
    numbers = (ctypes.c_int * 2)(2, 1)
    libc = ctypes.CDLL(None)
    libc.qsort(numbers, 2, ctypes.sizeof(ctypes.c_int), kind(leaf_qsort))


def leaf_comprehension(number):
    note(sys._getframe())
    for _ in range(COUNT): pass
    return number


def comprehension():
    return [
        leaf_comprehension(number)
        for number in range(2)
    ]


def leaf_lambda():
    note(sys._getframe())
    for _ in range(COUNT): pass


class Outer:
    class Inner:
        def method(self):
            return self.own()

        @classmethod
        def own(cls):
            return cls.leaf_method()

        @staticmethod
        def leaf_method():
            note(sys._getframe())
            for _ in range(COUNT): pass


class Made:
    def __init__(self):
        self.leaf_init()

    def leaf_init(self):
        note(sys._getframe())
        for _ in range(COUNT): pass


def leaf_partial(_):
    note(sys._getframe())
    for _ in range(COUNT): pass


MADE = '''
def leaf_made():
    note(sys._getframe())
    for _ in range(COUNT): pass


def größe():
    leaf_made()


def ключ():
    größe()
'''
exec(compile(MADE, "/ü/ключ/\N{GRINNING FACE}.py", "exec"))


def leaf_thread():
    note(sys._getframe())
    for _ in range(COUNT): pass


def thread():
    while time.monotonic() < END:
        leaf_thread()


COUNT = 200000
END = time.monotonic() + SECONDS


def main():
    other = threading.Thread(target=thread)
    other.start()
    while time.monotonic() < END:
        recursion(5)
        deep(DEEP)
        for _ in generator():
            pass
        asyncio.run(outer())
        sorted([1], key=leaf_key)
        qsort()
        comprehension()
        (lambda: leaf_lambda())()
        Outer.Inner().method()
        Made()
        list(map(functools.partial(leaf_partial), [1]))
        ключ()
    other.join()
    json.dump(CHAINS, sys.stdout)
    sys.stdout.flush()


if os.environ.get("FORKED"):
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
main()
