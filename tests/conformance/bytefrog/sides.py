"""Both sides by script: an HQ that a `profiler stream bytefrog` meets, an agent that meets a `profiler hq`.

Whatever is waited for has a limit, at which the case fails; nothing is decided by how long something takes.
"""

import os
import socket
import subprocess
import threading
import time

import wire

LIMIT = 60


class Broken(Exception):
    """What the document says does not hold."""


def check(condition, *what):
    if not condition:
        raise Broken(" ".join(str(part) for part in what))


def equal(found, wanted, what=""):
    check(found == wanted, what, "found", repr(found)[:600], "wanted", repr(wanted)[:600])


class Line:
    """A connection. Its reader keeps messages in the order in which they come."""

    def __init__(self, stream, forms):
        self.socket = stream
        stream.settimeout(None)
        self.forms = forms
        self.messages = []
        self.ended = None
        self.changed = threading.Condition()

    def listen(self):
        """Reads all from here on, on a thread of its own."""
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def _take(self, count):
        out = b""
        while len(out) < count:
            more = self.socket.recv(count - len(out))
            if not more:
                raise EOFError(*([out] if out else []))
            out += more
        return out

    def next(self):
        """The next message, without a reader."""
        self.socket.settimeout(LIMIT)
        found = wire.read(self._take, self.forms)
        self.socket.settimeout(None)
        return found

    def _read(self):
        buffered = self.socket.makefile("rb", 1 << 16)

        def take(count):
            out = buffered.read(count)
            if len(out) < count:
                raise EOFError(*([out] if out else []))
            return out

        why = "end"
        while True:
            try:
                message = wire.read(take, self.forms)
            except Exception as error:
                why = error
                message = None
            with self.changed:
                if message is None:
                    self.ended = why
                else:
                    self.messages.append(message)
                self.changed.notify_all()
            if message is None:
                return

    def wait(self, what, test, more=None):
        """Waits until `test` holds of the messages so far; gives what it gives."""
        until = time.monotonic() + LIMIT
        with self.changed:
            while True:
                found = test(self.messages)
                if found:
                    return found
                left = until - time.monotonic()
                if self.ended is not None or left <= 0:
                    raise Broken("no %s; %s after %r" % (what, self.ended or "waiting", self.messages[-6:]))
                self.changed.wait(left)

    def one(self, kind, *fields, after=0):
        """Waits for a message that begins so; its position."""
        def test(messages):
            for at, message in enumerate(messages[after:], after):
                if message[:len(fields) + 1] == (kind, *fields):
                    return at + 1
        return self.wait("message %r" % ((kind, *fields),), test) - 1

    def end(self):
        """Waits for the end, which has to be one between messages; all messages."""
        until = time.monotonic() + LIMIT
        with self.changed:
            while self.ended is None:
                left = until - time.monotonic()
                check(left > 0, "no end of the connection after", self.messages[-6:])
                self.changed.wait(left)
        equal(self.ended, "end", "the connection ended with")
        return self.messages

    def gone(self):
        """Waits for the end, in whatever way."""
        until = time.monotonic() + LIMIT
        with self.changed:
            while self.ended is None:
                left = until - time.monotonic()
                check(left > 0, "the connection does not end")
                self.changed.wait(left)
        return self.messages

    def send(self, kind, *fields):
        self.raw(wire.message(kind, *fields))

    def raw(self, data):
        self.socket.sendall(data)

    def close(self):
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()


class Tool:
    """The profiler, with what it says."""

    def __init__(self, scene, *arguments):
        self.scene = scene
        self.process = subprocess.Popen(
            [scene.profiler, *arguments], cwd=scene.folder, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        self.lines, self.output = [], []
        self.changed = threading.Condition()
        self.readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.process.stderr, self.lines), (self.process.stdout, self.output))]
        for reader in self.readers:
            reader.start()
        scene.tools.append(self)

    def _read(self, stream, lines):
        for line in stream:
            with self.changed:
                lines.append(line.rstrip("\n"))
                self.changed.notify_all()

    def said(self, text):
        """Waits until it has said this; the line."""
        until = time.monotonic() + LIMIT
        with self.changed:
            while True:
                for line in self.lines:
                    if text in line:
                        return line
                left = until - time.monotonic()
                gone = self.process.poll() is not None and not self.readers[0].is_alive()
                if left <= 0 or gone:
                    raise Broken("never said %r: %r" % (text, self.lines))
                self.changed.wait(min(left, 1))

    def order(self, line):
        self.process.stdin.write(line + "\n")

    def end(self, status=0):
        """Waits for its end, and checks the status."""
        found = self.process.wait(LIMIT)
        for reader in self.readers:
            reader.join(LIMIT)
        check(found == status, "status", found, "in place of", status, "\n".join(self.lines))
        return "\n".join(self.lines)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except OSError:
                pass


class Scene:
    """A folder, the profiler, and what was started."""

    def __init__(self, profiler, folder):
        self.profiler, self.folder, self.tools, self.lines = profiler, folder, [], []

    def path(self, name):
        return os.path.join(self.folder, name)

    def close(self):
        for line in self.lines:
            line.close()
        for tool in self.tools:
            tool.kill()

    def run(self, *arguments):
        done = subprocess.run([self.profiler, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=LIMIT)
        check(done.returncode == 0, arguments, done.stderr)
        return done.stdout

    def hq(self, *arguments, output="hq.cap"):
        """`profiler hq`, and where it listens."""
        tool = Tool(self, "hq", "--listen", "127.0.0.1:0", "--runs", "1", "--force", "-o", output, *arguments)
        tool.port = int(tool.said("listening at ").rsplit(":", 1)[1])
        return tool

    def dial(self, tool):
        line = Line(socket.create_connection(("127.0.0.1", tool.port), LIMIT), wire.HQ)
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lines.append(line)
        return line


class Agent:
    """An agent: control, and data connections when they are opened."""

    def __init__(self, scene, tool, version=1):
        self.scene, self.tool, self.data = scene, tool, []
        self.control = scene.dial(tool)
        self.control.send(wire.HELLO, version)
        kind, raw = self.control.next()
        equal(kind, wire.CONFIGURATION, "the answer to hello")
        self.configuration = wire.unconfiguration(raw)
        self.run = self.configuration["runId"]
        self.control.listen()

    def mode(self, mode, buffers=0):
        self.control.send(wire.HEARTBEAT, ord(mode), buffers)

    def start(self):
        """Says that it is there, and waits for the start."""
        self.mode("I")
        self.control.one(wire.START)
        return self

    def open(self, count=1):
        for _ in range(count):
            line = self.scene.dial(self.tool)
            line.send(wire.DATA_HELLO, self.run)
            equal(line.next(), (wire.DATA_HELLO_REPLY,), "the answer to a data hello")
            self.data.append(line.listen())
        self.mode("T")
        return self

    def settle(self):
        """Waits until HQ has taken all that was sent on control."""
        self.mode("S")
        until = time.monotonic() + LIMIT
        while not any(": suspended, " in line for line in self.tool.lines):
            check(time.monotonic() < until, "the mode is not told", self.tool.lines)
            self.tool.order("status")
            time.sleep(0.01)

    def finish(self):
        """The normal end."""
        before = len(self.control.messages)
        self.mode("X")
        self.control.one(wire.STOP, after=min(before, len(self.control.messages)))
        for line in self.data:
            line.socket.shutdown(socket.SHUT_WR)
        for line in self.data:
            line.end()
        self.control.socket.shutdown(socket.SHUT_WR)


class Hq:
    """An HQ: it listens; what connects is told apart by its hello."""

    def __init__(self, scene, *arguments, command=(), **configuration):
        self.scene, self.wanted = scene, configuration
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(LIMIT)
        scene.lines.append(self.listener)
        port = self.listener.getsockname()[1]
        self.tool = Tool(scene, "stream", "bytefrog", "127.0.0.1:%d" % port, *arguments, *(["--", *command] if command else []))
        self.control, self.data = None, []

    def accept(self):
        line = Line(self.listener.accept()[0], wire.AGENT)
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.scene.lines.append(line)
        return line

    def greet(self):
        """Takes the control connection up to hello."""
        self.control = self.accept()
        equal(self.control.next(), (wire.HELLO, 1), "the first message")
        return self

    def configure(self, **wanted):
        self.wanted.update(wanted)
        self.control.send(wire.CONFIGURATION, wire.configuration(**self.wanted))
        return self

    def initial(self):
        """The first heartbeat: nothing else has come since hello."""
        self.control.listen()
        self.control.wait("heartbeat", lambda messages: messages)
        equal(self.control.messages[0][:2], (wire.HEARTBEAT, ord("I")), "the first message after hello")
        return self

    def ready(self):
        return self.greet().configure().initial()

    def start(self, *before):
        for order in before:
            self.control.send(order)
        self.control.send(wire.START)
        return self

    def open(self):
        """Takes all data connections."""
        for _ in range(self.wanted.get("senders", 1)):
            line = self.accept()
            equal(line.next(), (wire.DATA_HELLO, self.wanted.get("run", 0)), "the first message of a data connection")
            line.send(wire.DATA_HELLO_REPLY)
            self.data.append(line.listen())
        return self

    def mode(self, mode, after=0):
        return self.control.one(wire.HEARTBEAT, ord(mode), after=after)

    def finish(self, status=0):
        """The normal end: all data messages by sequence, and those without one in their places."""
        self.mode("X")
        self.control.send(wire.STOP)
        streams = [line.end() for line in self.data]
        for line in self.data:
            line.close()
        self.control.end()
        self.control.close()
        self.said = self.tool.end(status)
        return Run(streams)


class Run:
    """Data messages of a run."""

    def __init__(self, streams):
        self.messages = [message for stream in streams for message in stream]
        check(not any(kind not in wire.SEQUENCED + (wire.THREAD, wire.METHOD, wire.EXCEPTION)
                      for kind, *_ in self.messages), "a message that is no data")
        self.sequenced = sorted((m for m in self.messages if m[0] in wire.SEQUENCED), key=lambda m: m[2])
        equal([m[2] for m in self.sequenced], list(range(len(self.sequenced))), "sequence ids")
        self.names = {kind: dict(m[1:] if kind != wire.THREAD else (m[1], m[3]) for m in self.messages if m[0] == kind)
                      for kind in (wire.METHOD, wire.EXCEPTION, wire.THREAD)}
        for kind in (wire.METHOD, wire.EXCEPTION):
            ids = [m[1] for m in self.messages if m[0] == kind]
            check(len(set(ids)) == len(ids) and 0 not in ids, "ids", kind, "are not unique from 1")
        if len(streams) == 1:
            self.named_first(streams[0])

    @staticmethod
    def named_first(stream):
        known = {wire.METHOD: set(), wire.EXCEPTION: set(), wire.THREAD: set()}
        for message in stream:
            kind = message[0]
            if kind in known:
                known[kind].add(message[1])
            elif kind in (wire.ENTRY, wire.EXIT, wire.THROW, wire.BUBBLE):
                check(message[-1] in known[wire.THREAD], "a thread without a name:", message)
                check(message[3] in known[wire.METHOD], "a method without a name:", message)
                if kind in (wire.THROW, wire.BUBBLE):
                    check(message[4] in known[wire.EXCEPTION], "an exception without a name:", message)

    def told(self, breaks=()):
        """What happened, in words, with stacks that have to balance; `breaks` clear them."""
        out, stacks = [], {}
        methods, exceptions = self.names[wire.METHOD], self.names[wire.EXCEPTION]
        for message in self.sequenced:
            kind, _, sequence, *rest = message
            if sequence in breaks:
                stacks.clear()
            if kind == wire.MARKER:
                out.append("mark %s: %s" % tuple(rest))
                continue
            method, thread = methods[rest[0]], rest[-1]
            stack = stacks.setdefault(thread, [])
            if kind == wire.ENTRY:
                stack.append(method)
                out.append("%d +%s" % (thread, method))
                continue
            if kind == wire.THROW:
                check(stack and stack[-1] == method, "thrown in", method, "inside of", stack[-3:])
                out.append("%d !%s %s:%d" % (thread, method, exceptions[rest[1]], rest[2]))
                continue
            check(not stack or stack[-1] == method, "left", method, "inside of", stack[-3:])
            if stack:
                stack.pop()
            how = ":%d" % rest[1] if kind == wire.EXIT else " %s" % exceptions[rest[1]]
            out.append("%d -%s%s" % (thread, method, how))
        return out
