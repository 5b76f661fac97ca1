"""Runs a command under ptrace(2), so that nobody else can trace it: python_traced.py COMMAND ARGS."""
import ctypes
import os
import sys

TRACEME, CONTINUE = 0, 7
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
child = os.fork()
if not child:
    if libc.ptrace(TRACEME, 0, None, None):
        os._exit(99)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        sys.exit(os.waitstatus_to_exitcode(status))
    signal = os.WSTOPSIG(status)
    # The exec itself stops it with SIGTRAP.
    libc.ptrace(CONTINUE, child, None, 0 if signal == 5 else signal)
