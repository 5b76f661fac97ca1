"""A channel to a TCF agent: connection, Hello, tokens, events, TLS.

    channel = await connect("127.0.0.1", 1534)
    reply = await channel.service("RunControl").getChildren(None)

A reply is the list of its fields in JSON's terms behind the error, which is raised as `Refused`. The
channel is as strict as real clients are, and drops the connection at what they would drop it at; see
`ProtocolError`. What does not belong here: what services mean.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import ssl
import time
from typing import Any, Callable

from wire import Decoder, End, Message, ProtocolError, encode, encode_end

#: How long an answer may take.
PATIENCE_S = 30.0

#: Events that clients know. Any other one of these services ends a real client's channel.
EVENTS: dict[str, dict[str, int]] = {
    "Locator": {"Hello": 1, "peerAdded": 1, "peerChanged": 1, "peerRemoved": 1, "peerHeartBeat": 1},
    "RunControl": {
        "contextAdded": 1,
        "contextChanged": 1,
        "contextRemoved": 1,
        "contextSuspended": 4,
        "contextResumed": 1,
        "contextException": 2,
        "containerSuspended": 5,
        "containerResumed": 1,
        "contextStateChanged": 1,
    },
    "Processes": {"exited": 2},
    "MemoryMap": {"changed": 1},
}

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')


class Refused(Exception):
    """The agent answered with an error."""

    def __init__(self, report: dict[str, Any], fields: list[Any]) -> None:
        super().__init__(f"{report.get('Code')}: {report.get('Format')}")
        self.report = report
        self.code: int = report["Code"]
        self.text = str(report.get("Format", ""))
        self.fields = fields


class Unknown(Exception):
    """The agent answered N: there is no such service or command."""


class Closed(Exception):
    """The channel is closed; `reason` is the report in the agent's end of stream, if it gave one."""

    def __init__(self, text: str, reason: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.reason = reason


def from_json(data: bytes) -> Any:
    """A field. It has to be compact: agents and clients that skip no blanks are about."""
    try:
        value = json.loads(data.decode("utf-8"))
    except ValueError as error:
        raise ProtocolError(f"no JSON ({error}): {data[:100]!r}") from error
    if re.search(rb"\s", _STRINGS.sub(b"", data)):
        raise ProtocolError(f"JSON with blanks: {data[:100]!r}")
    return value


def to_json(value: Any) -> bytes:
    """An argument. Bytes are sent as they are."""
    if isinstance(value, bytes):
        return value
    return json.dumps(value, separators=(",", ":")).encode()


def error_of(data: bytes) -> dict[str, Any] | None:
    """The error field of a reply."""
    if not data:
        return None
    report = from_json(data)
    if report is None:
        raise ProtocolError("no error is an empty field, not null")
    code = report.get("Code") if isinstance(report, dict) else None
    if not isinstance(code, int) or code == 0:
        raise ProtocolError(f"an error without a code: {data[:200]!r}")
    if not isinstance(report.get("Format"), str) or not report["Format"]:
        raise ProtocolError(f"an error without words: {data[:200]!r}")
    return report


class Event:
    """Something that the agent told."""

    def __init__(self, service: str, name: str, arguments: list[Any]) -> None:
        self.at = time.monotonic()
        self.service = service
        self.name = name
        self.arguments = arguments


class Service:
    """Commands of a service as methods."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel = channel
        self._name = name

    def __getattr__(self, command: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return self._channel.call(self._name, command, *arguments)

        return call


class Channel(asyncio.Protocol):
    """See the module; made by `connect`."""

    def __init__(self) -> None:
        self.services: list[str] = []
        self.events: list[Event] = []
        self.closed: Closed | None = None
        self.failure: ProtocolError | None = None
        self.received_bytes = 0
        self.is_ended = False
        self._decoder = Decoder()
        self._tokens = itertools.count(1)
        self._pending: dict[bytes, tuple[asyncio.Future[list[bytes]], str]] = {}
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gone = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    # What the loop calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.send(encode(b"E", b"Locator", b"Hello", b'["Locator"]'))

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        try:
            for came in self._decoder.feed(data):
                if isinstance(came, End):
                    self._end(came)
                else:
                    self._message(came)
        except ProtocolError as error:
            self.failure = error
            self._close(Closed(f"the agent's fault: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._decoder.is_between:
            self.failure = self.failure or ProtocolError("closed inside of a message")
        self._close(Closed(f"closed without an end of stream ({exc or 'no error'})"))
        self._gone.set()

    # What clients call.

    def send(self, data: bytes) -> None:
        """Sends bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def service(self, name: str) -> Service:
        """A service by its name."""
        return Service(self, name)

    def start(self, service: str, command: str, *arguments: Any) -> asyncio.Future[list[bytes]]:
        """Sends a command; the future gives the fields of its result."""
        future: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        if self.closed is not None:
            future.set_exception(self.closed)
            return future
        token = str(next(self._tokens)).encode()
        self._pending[token] = (future, f"{service}.{command}")
        fields = [b"C", token, service.encode(), command.encode()]
        self.send(encode(*fields, *map(to_json, arguments)))
        return future

    async def fields(self, service: str, command: str, *arguments: Any) -> list[bytes]:
        """The fields of a command's result, as they came."""
        return await asyncio.wait_for(self.start(service, command, *arguments), PATIENCE_S)

    async def call(self, service: str, command: str, *arguments: Any) -> list[Any]:
        """The fields of a command's result behind the error, which is raised."""
        fields = await self.fields(service, command, *arguments)
        if not fields:
            raise self._fault(f"{service}.{command}: a result without an error field")
        try:
            report = error_of(fields[0])
            values = [from_json(data) for data in fields[1:]]
        except ProtocolError as error:
            raise self._fault(f"{service}.{command}: {error}") from error
        if report is not None:
            raise Refused(report, values)
        return values

    async def close(self) -> None:
        """Ends the stream and waits until the agent has closed too."""
        if self.closed is None:
            self.send(encode_end())
        try:
            await asyncio.wait_for(self._gone.wait(), PATIENCE_S)
        except TimeoutError:
            self.abort()
            raise ProtocolError("the agent does not close behind an end of stream") from None
        if self.failure is not None:
            raise self.failure
        if not self.is_ended:
            raise ProtocolError("the agent closed without an end of stream")

    def abort(self) -> None:
        """Drops the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self, seconds: float) -> Closed:
        """Waits until the agent closes."""
        await asyncio.wait_for(self._gone.wait(), seconds)
        assert self.closed is not None
        return self.closed

    async def wait_event(self, seconds: float, holds: Callable[[Event], bool]) -> Event:
        """Waits for an event; one that has come already counts."""
        until, seen = time.monotonic() + seconds, 0
        while True:
            for event in self.events[seen:]:
                if holds(event):
                    return event
            seen = len(self.events)
            if self.closed is not None:
                raise self.closed
            if time.monotonic() > until:
                names = [(event.name, event.arguments) for event in self.events[-5:]]
                raise TimeoutError(f"no such event; the last ones are {names}")
            await asyncio.sleep(0.01)

    # What comes.

    def _fault(self, text: str) -> ProtocolError:
        self.failure = ProtocolError(text)
        self._close(Closed(f"the agent's fault: {text}"))
        return self.failure

    def _message(self, message: Message) -> None:
        fields = message.fields
        if self.closed is not None:
            raise ProtocolError(f"a message {message.kind} behind the end of the stream")
        if not self._hello.done() and (message.kind, *fields[:2]) != ("E", b"Locator", b"Hello"):
            raise ProtocolError(f"a message {message.kind} {fields[:2]} before Hello")
        if message.kind == "F":
            raise ProtocolError("an agent sends no flow control")
        if message.kind == "E":
            self._event(fields)
        elif message.kind == "C":
            self.send(encode(b"N", fields[0]))
        elif message.kind == "P":
            if fields[0] not in self._pending:
                raise ProtocolError(f"progress with token {fields[0]!r}, which nobody waits for")
        else:
            future, _ = self._pending.pop(fields[0], (None, ""))
            if future is None:
                raise ProtocolError(f"a reply with token {fields[0]!r}, which nobody waits for")
            if message.kind == "N" and len(fields) != 1:
                raise ProtocolError("a message N with more than its token")
            if future.done():
                return
            if message.kind == "N":
                future.set_exception(Unknown())
            else:
                future.set_result(list(fields[1:]))

    def _event(self, fields: tuple[bytes, ...]) -> None:
        service, name = fields[0].decode(), fields[1].decode()
        arguments = [from_json(data) for data in fields[2:]]
        known = EVENTS.get(service)
        if known is not None and name not in known:
            raise ProtocolError(f"event {service}.{name}, which no client knows")
        if known is not None and len(arguments) != known[name]:
            raise ProtocolError(f"event {service}.{name} with {len(arguments)} arguments")
        if (service, name) == ("Locator", "Hello"):
            if self._hello.done():
                raise ProtocolError("a second Hello")
            if not all(isinstance(text, str) for text in arguments[0]):
                raise ProtocolError(f"services {arguments[0]!r}")
            self.services = arguments[0]
            self._hello.set_result(None)
            return
        self.events.append(Event(service, name, arguments))

    def _end(self, end: End) -> None:
        report = error_of(end.reason)
        text = "the agent ended the stream"
        if report is not None:
            text += f": {report['Code']}: {report['Format']}"
        self.is_ended = True
        self._close(Closed(text, report))

    def _close(self, closed: Closed) -> None:
        if self.closed is not None:
            return
        self.closed = closed
        for future, _ in self._pending.values():
            if not future.done():
                future.set_exception(closed)
                future.exception()
        self._pending.clear()
        if not self._hello.done():
            self._hello.set_exception(closed)
            self._hello.exception()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    async def hello(self) -> None:
        """Waits for the agent's Hello."""
        await asyncio.wait_for(asyncio.shield(self._hello), PATIENCE_S)


def tls_context(
    authority: str | None, certificate: str | None = None, key: str | None = None
) -> ssl.SSLContext:
    """For the transport SSL: trusts `authority`, shows `certificate`. Files in PEM."""
    context = ssl.create_default_context(cafile=authority)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context


async def connect(host: str, port: int, tls: ssl.SSLContext | None = None) -> Channel:
    """A channel over which both sides have said Hello."""
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(Channel, host, port, ssl=tls)
    try:
        await channel.hello()
    except BaseException:
        channel.abort()
        raise
    return channel
