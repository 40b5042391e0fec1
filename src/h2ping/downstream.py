"""One client connection: HTTP/1.1 requests in, HTTP/1.1 responses out, one at a time (RFC 9112).

Theory of operation
-------------------
1. The bytes are `_fast.client`'s (or its plain twin's); here is what they mean. A head is checked to the
   byte, split by httptools, read by `headers`, and becomes one exchange. Until its response is complete,
   what follows is held.
2. What is wrong before there is an exchange is answered here. Such an answer always ends the connection,
   because nobody knows where the next request would begin.
3. A connection lives on unless the client, a shutdown, or a body that is not worth reading to its end
   forbids it; what ends it is announced with `Connection: close`.
4. A connection that ends while the client may still be sending is closed lingering: our half first, then
   what comes is thrown away for a while (RFC 9112 section 9.6). Else a reset could overtake the answer.
5. A response that was cut is never ended as if it were whole: no last chunk, and a reset where only the
   end of the connection would mark the end of the body.
6. EOF while a response is owed is a client that left (`half_close` "cancel"), or one that still reads
   ("wait"): then whatever request came whole is answered, and the connection ends after the last.
7. A client that neither sends the body that it announced nor reads the response that it asked for is
   dropped after the idle time. One that is slow is not. Its next request waits until it has read.

It does not know the pool, re-sends, HTTP/2, nor who answers a request: it is handed a factory of exchanges.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import struct
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Protocol

import httptools

from h2ping import headers
from h2ping._fast import NO_EXTENSIONS, client_py
from h2ping.answer import error_response
from h2ping.clock import Deadlines, LoopClock
from h2ping.errors import (
    BAD_REQUEST,
    BODY_TIMEOUT,
    BODY_TOO_LARGE,
    HEAD_TIMEOUT,
    HEAD_TOO_LARGE,
    DownstreamError,
    UpstreamError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping._fast.arena_py import Body
    from h2ping.config import Settings
    from h2ping.door import Door
    from h2ping.headers import Fields, Request

    class _Base(client_py.ClientBytes, asyncio.BufferedProtocol):
        """What the subclasses of Client are made of."""

else:
    _Base = object

DRAIN_BYTES = 256 << 10
"""So much of an unwanted request body is read to keep the connection; hyper and nginx bear about the same."""
LINGER_BYTES = 1 << 20
LINGER_SECONDS = 2.0
"""Like nginx' lingering_close, shorter: clients on this machine read at once."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Any token is a method (RFC 9110 section 9.1), but llhttp refuses those it does not know; these it does.
_PARSED_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"})


class Exchange(Protocol):
    """What a client tells the one who answers its request."""

    def start(self) -> None:
        """The head is complete; called once, first."""

    def on_body(self) -> None:
        """Body bytes were committed."""

    def on_body_end(self, trailers: Fields | None) -> None:
        """The body is complete."""

    def on_body_stalled(self) -> None:
        """The body has no room; `Client.resume_body` when it has."""

    def on_client_error(self, error: DownstreamError) -> None:
        """The request broke; the client is answered and closed here. The last call."""

    def on_client_gone(self) -> None:
        """Nobody is there to read the response. The last call."""

    def on_held(self, size: int) -> None:
        """The socket does not take what it was given, which keeps so many bytes of memory."""

    def on_writable(self) -> None:
        """The socket took what was written; also once after the response's end if it had not by then."""


@dataclass
class ClientContext:
    """What all connections of one listener share."""

    settings: Settings
    exchanges: Callable[[Request, Client], Exchange]
    head_deadlines: Deadlines
    idle_deadlines: Deadlines
    clients: set[Client]
    draining: bool = False
    program: str = "h2ping"
    on_refused: Callable[[DownstreamError, bytes, bytes], None] | None = None
    """Told of requests that were answered before they had an exchange; method and target as far as known."""
    linger_deadlines: Deadlines | None = None
    door: Door | None = None
    """Told of those who come and go."""
    dirty: list[Client] = field(default_factory=list)
    """Those with output gathered in this turn of the loop."""

    def __post_init__(self) -> None:
        self.prefix = self.settings.upstream.prefix.encode()
        self.half_close_waits = self.settings.half_close == "wait"
        self.loop: asyncio.AbstractEventLoop | None = None

    def call_soon(self, callback: Callable[[], object]) -> None:
        """At the end of this turn of the loop."""
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
        self.loop.call_soon(callback)

    def linger(self, client: Client) -> None:
        """Have `client.on_linger_timeout` called."""
        if self.linger_deadlines is None:
            clock = LoopClock(asyncio.get_running_loop())
            self.linger_deadlines = Deadlines(
                clock, LINGER_SECONDS, lambda client: client.on_linger_timeout()
            )
        self.linger_deadlines.add(client)

    def mark_dirty(self, client: Client) -> None:
        """Flush `client` at the end of this turn of the loop; one callback serves all."""
        if not self.dirty:
            self.call_soon(self.flush)
        self.dirty.append(client)

    def flush(self) -> None:
        """Write what was gathered."""
        dirty = self.dirty[:]
        self.dirty.clear()
        for client in dirty:
            client.flush()


class _Head:
    """Callbacks of httptools for one head."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


_NOTHING = object()
"""For llhttp's verdict alone: without callbacks a head costs it about a microsecond."""


def _let_llhttp_read(raw: bytes, method: bytes, sink: object) -> bool:
    """Feed a whole head to httptools. False when llhttp refuses it."""
    if method not in _PARSED_METHODS:
        raw = b"POST" + raw[len(method) :]
    try:
        httptools.HttpRequestParser(sink).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # an offer that is not taken up (RFC 9110 section 7.8); the head was read to its end
    except httptools.HttpParserError:
        return False
    return True


def _parse_head_by_table(raw: bytes, upstream_prefix: bytes) -> Request:
    """The same with the compiled scan, which splits as it checks. llhttp has its say here too."""
    assert headers.compiled is not None
    split: tuple[bytes, bytes, str, Fields, Fields] | None = headers.compiled.split_head(
        raw, headers.READ_HERE
    )
    if split is None:
        headers.check_head(raw)  # knows the right words
        raise DownstreamError(BAD_REQUEST, "malformed head")
    method, target, version, fields, read = split
    # Read first: what is ambiguous about a head is told by a better name than the parser's.
    request = headers.read_request(method, target, version, fields, read, upstream_prefix)
    if not _let_llhttp_read(raw, method, _NOTHING):
        raise DownstreamError(BAD_REQUEST, "malformed head")
    return request


def parse_head(raw: bytes, upstream_prefix: bytes) -> Request:
    """The request in a whole head. Raises DownstreamError."""
    headers.check_head(raw)
    method, target, version = raw[: raw.index(b"\r\n")].split(b" ")
    sink = _Head()
    if not _let_llhttp_read(raw, method, sink):
        # What is ambiguous about it is told by a better name than the parser's.
        headers.parse_request(*headers.split_head(raw), upstream_prefix)
        raise DownstreamError(BAD_REQUEST, "malformed head")
    return headers.parse_request(method, target, version[5:].decode(), sink.fields, upstream_prefix)


class _Date:
    """The Date field, made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._line = b""

    def line(self) -> bytes:
        """RFC 9110 section 6.6.1: who forwards a response without Date adds one."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()
        return self._line


_date_line = _Date().line


def _inserted(head: bytes, lines: bytes) -> bytes:
    """`lines` right behind the status line."""
    start = head.index(b"\r\n") + 2
    return head[:start] + lines + head[start:]


class Client(_Base):
    """What the bytes of a connection mean; its subclasses say whose bytes."""

    if not TYPE_CHECKING:
        __slots__ = ()

    context: ClientContext
    request: Request | None
    exchange: Exchange | None
    owed: Exchange | None
    closing: bool
    head_sent: bool
    continue_sent: bool
    head_timed: bool
    eof: bool
    progress: tuple[int, int]

    def __init__(self, context: ClientContext) -> None:
        super().__init__()
        self.context = context
        self.request = None
        self.exchange = None
        self.owed = None
        """An exchange that is over but whose last bytes wait for the socket."""
        self.closing = False
        self.head_sent = False
        self.continue_sent = False
        self.head_timed = False
        self.eof = False
        self.progress = (-1, -1)
        self.max_body = context.settings.max_body_bytes

    # --- the connection's own life --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio.BaseProtocol."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        # What the socket does not take is held, and counted as such from its first byte.
        self.transport.set_write_buffer_limits(high=0)  # type: ignore[union-attr]
        self.context.clients.add(self)
        if self.context.door is not None:
            self.context.door.entered()
        if self.context.draining:
            transport.close()
        else:
            self.context.idle_deadlines.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio.BaseProtocol."""
        context = self.context
        context.clients.discard(self)
        if context.door is not None:
            context.door.left()
        context.idle_deadlines.discard(self)
        context.head_deadlines.discard(self)
        if context.linger_deadlines is not None:
            context.linger_deadlines.discard(self)
        self.transport = None
        self.mode = client_py.CLOSED
        self.held = None
        self.body = None
        self._leave()

    def _leave(self) -> None:
        """The response, or what of it is still to be read, has no reader any more."""
        exchange, self.exchange = self.exchange, None
        owed, self.owed = self.owed, None
        if exchange is not None:
            exchange.on_client_gone()
        if owed is not None:
            owed.on_client_gone()

    def eof_received(self) -> bool:
        """The client sends no more (RFC 9112 section 9.6). True keeps our half open."""
        self.eof = True
        if self.context.half_close_waits and self._has_work():
            return True
        self._forget_client()
        return False

    def _has_work(self) -> bool:
        """A whole request is here that is not answered."""
        if self.exchange is not None and self.mode == client_py.WAIT:
            return True
        if self.exchange is not None and self.mode == client_py.HOLD:
            # Of a chunked body that waits for memory the end is not known before it is read.
            return self.remaining <= (len(self.held) if self.held else 0)
        return self.mode in (client_py.HEAD, client_py.WAIT) and self._holds_a_head

    @property
    def _holds_a_head(self) -> bool:
        """A pipelined request, whole or at least its head, waits for its turn."""
        return self.held is not None and b"\r\n\r\n" in self.held

    def _forget_client(self) -> None:
        """Nobody reads any more; what was written already may still go."""
        self.body = None
        self.flush()
        self.mode = client_py.CLOSED
        self._leave()
        if self.pending_bytes:
            self.context.idle_deadlines.add(self)

    def _check_for_more(self) -> None:
        """A body that is not whole when everything that came is used, from a client that sends no more."""
        if self.eof and self.body is not None and not self.stalled:
            self._forget_client()
            if self.transport is not None:
                self.transport.close()

    def pause_writing(self) -> None:
        """asyncio.BaseProtocol: the socket takes no more for now."""
        self.write_paused = True
        exchange = self.exchange or self.owed
        if exchange is not None:
            exchange.on_held(self.lent_bytes)
        if self.exchange is not None:
            self._watch_progress()

    def resume_writing(self) -> None:
        """asyncio.BaseProtocol: it does again."""
        self.write_paused = False
        owed, self.owed = self.owed, None
        if owed is not None:
            owed.on_writable()
        if self.exchange is not None:
            self.exchange.on_writable()
        elif self.mode == client_py.WAIT and self.transport is not None:
            self._await_request()
            if not self.held and (self.context.draining or self.eof):
                self._end()  # else `_consume_later` does it

    def on_head_timeout(self) -> None:
        """A head was begun and not finished in time."""
        self.on_bad_input(DownstreamError(HEAD_TIMEOUT))

    def on_idle_timeout(self) -> None:
        """No request for too long, or no progress of what the client should send or read."""
        if self.exchange is None:
            self._end()
            return
        body = self.body
        before, self.progress = self.progress, self._progress()
        if body is not None and not self.stalled and self.progress[0] == before[0]:
            self.on_bad_input(DownstreamError(BODY_TIMEOUT))
        elif self.write_paused and self.progress[1] == before[1] and self.transport is not None:
            self.transport.abort()  # tells the exchange that nobody reads
        elif body is not None or self.write_paused:
            self.context.idle_deadlines.add(self)

    def _progress(self) -> tuple[int, int]:
        """Body bytes that came, bytes that were not taken; what the client does not owe has no number."""
        received = self.body.received if self.body is not None and not self.stalled else -1
        return received, self.pending_bytes if self.write_paused else -1

    def _watch_progress(self) -> None:
        """Nothing is counted while it goes well: the deadline looks whether anything moved (rule 7)."""
        self.progress = self._progress()
        self.context.idle_deadlines.add(self)

    def on_linger_timeout(self) -> None:
        """It was given enough time to read."""
        if self.transport is not None:
            self.transport.abort()

    def on_drain(self) -> None:
        """A shutdown begins: idle connections end now, others after their response."""
        is_idle = self.mode == client_py.HEAD or (self.mode == client_py.WAIT and self.exchange is None)
        if is_idle and self.held is None and self.transport is not None:
            self._end()

    def _end(self) -> None:
        """Close once the output is written; a client that never reads it is dropped by the idle deadline."""
        transport = self.transport
        if transport is None:
            return
        if transport.is_closing():
            self.mode = client_py.CLOSED
            transport.abort()
            return
        self.flush()
        self.mode = client_py.CLOSED
        self.held = None
        self._stop_waiting()
        if transport.get_write_buffer_size():
            self.context.idle_deadlines.add(self)
        transport.close()

    def _stop_waiting(self) -> None:
        """No request is expected any more, nor the rest of one."""
        self.head_timed = False
        self.context.idle_deadlines.discard(self)
        self.context.head_deadlines.discard(self)

    def _linger(self) -> None:
        """Close our half and throw away what comes (rule 4)."""
        transport = self.transport
        if transport is None:
            return
        if self.eof or transport.is_closing():
            self._end()
            return
        self.flush()
        self.mode = client_py.SINK
        self.remaining = LINGER_BYTES
        self.held = None
        self.body = None
        self.stalled = False
        self._stop_waiting()
        self.context.linger(self)
        transport.write_eof()
        self.regulate()

    def on_sink_full(self) -> None:
        self._end()

    def schedule_flush(self) -> None:
        self.context.mark_dirty(self)

    # --- requests -------------------------------------------------------------------------------------------

    def on_partial_head(self, held: bytearray, start: int) -> bool:
        if len(held) > self.context.settings.max_header_bytes:
            self.on_bad_input(DownstreamError(HEAD_TOO_LARGE))
            return False
        if reason := headers.bad_byte_in(held, start):
            self.on_bad_input(DownstreamError(BAD_REQUEST, reason))
            return False
        if not self.head_timed:
            self.head_timed = True
            self.context.idle_deadlines.discard(self)
            self.context.head_deadlines.add(self)
        return True

    def on_head(self, raw: bytes) -> None:
        context = self.context
        context.idle_deadlines.discard(self)
        if self.head_timed:
            self.head_timed = False
            context.head_deadlines.discard(self)
        self.head_sent = self.continue_sent = False
        try:
            if len(raw) > context.settings.max_header_bytes:
                raise DownstreamError(HEAD_TOO_LARGE)
            request = self.parse_head(raw, context.prefix)
            self.request = request
            if self.max_body and request.content_length and request.content_length > self.max_body:
                raise DownstreamError(BODY_TOO_LARGE, f"{request.content_length} bytes")
        except DownstreamError as error:
            self.on_bad_input(error, raw)
            return
        if request.chunked:
            self.mode = client_py.HOLD
            self.remaining = 0
            self.start_chunks()
        elif request.content_length:
            self.mode = client_py.HOLD
            self.remaining = request.content_length
        else:
            self.mode = client_py.WAIT
        self.exchange = exchange = context.exchanges(request, self)
        exchange.start()

    parse_head = staticmethod(parse_head)

    def receive_body(self, body: Body) -> None:
        """Memory is granted: read the body into it."""
        request = self.request
        assert request is not None
        self.body = body
        self.mode = client_py.CHUNKED if request.chunked else client_py.LENGTH
        if request.expect_continue and not self.held and not self.head_sent:
            # RFC 9110 section 10.1.1: a gateway answers as an origin server would. Not before there is room.
            self.continue_sent = True
            self.send(_CONTINUE, len(_CONTINUE))
        self.consume()
        self._check_for_more()
        if self.body is not None:
            self._watch_progress()

    def resume_body(self) -> None:
        """The body has room again."""
        if self.stalled:
            self.stalled = False
            self.consume()
            self._check_for_more()

    def on_body(self) -> None:
        if self.exchange is not None:
            self.exchange.on_body()

    def usable_trailers(self, trailers: Fields) -> Fields | None:
        return headers.forwardable_trailers(trailers) or None

    def on_body_end(self, trailers: Fields | None) -> None:
        if self.exchange is not None:
            self.exchange.on_body_end(trailers)

    def on_body_stalled(self) -> None:
        if self.exchange is not None:
            self.exchange.on_body_stalled()

    def on_bad_input(self, error: DownstreamError, head: bytes | None = None) -> None:
        """Answer what is not a request, or has ceased to be one, and end the connection. `head`: if it was whole."""
        exchange, self.exchange = self.exchange, None
        begun = head if head is not None else self.held
        self.body = None
        self.held = None
        self.stalled = False
        self.closing = True
        if exchange is not None:
            self.mode = client_py.SINK
            exchange.on_client_error(error)
            if self.head_sent:
                self._cut()
                return
        elif self.context.on_refused is not None:
            self.context.on_refused(error, *headers.request_line_of(begun or b""))
        answer = _inserted(error_response(error, self.request, self.context.program), _date_line())
        self.send(answer, len(answer))
        self._linger()

    # --- responses ------------------------------------------------------------------------------------------

    @property
    def will_close(self) -> bool:
        """The connection ends after this response."""
        return self.closing or self.context.draining or self._is_last or not self._can_go_on()

    @property
    def _is_last(self) -> bool:
        """The client sends no more, and nothing that it sent waits for its turn."""
        return self.eof and not self._holds_a_head

    def _can_go_on(self) -> bool:
        request = self.request
        if request is None or not request.keep_alive:
            return False
        if self.mode in (client_py.HOLD, client_py.LENGTH) and not request.chunked:
            # A client that was not told to go on may never send the body, or it may.
            withheld = request.expect_continue and not self.continue_sent and not self.held
            return self.remaining <= DRAIN_BYTES and not withheld
        return self.mode == client_py.WAIT

    def send_interim(self, head: bytes) -> None:
        """A 1xx response; HTTP/1.0 knows none (RFC 9110 section 15.2)."""
        if self.exchange is not None and self.request is not None and self.request.version >= (1, 1):
            self.send(head, len(head))

    def send_head(self, head: bytes, framing: headers.Framing) -> None:
        """The head of the final response."""
        if self.exchange is None:
            return
        self.head_sent = True
        self.framing = framing
        head = self._announced(head, head)
        if self.framing == client_py.UNTIL_CLOSE:
            self.closing = True
        self.send(head, len(head))

    def send_end(self, trailers: Fields | None) -> None:
        """The response is complete."""
        if self.exchange is None:
            return
        if self.framing == client_py.CHUNK_FRAMED:
            section = b""
            if trailers and self.request is not None and self.request.wants_trailers:
                try:
                    section = headers.trailer_section(trailers)
                except UpstreamError:
                    self.abort()
                    return
            self.send(b"0\r\n%b\r\n" % section, 5 + len(section))
        self._finish_response()

    def answer(self, response: bytes, close: bool) -> None:
        """A complete response that h2ping wrote itself; `close` if it says so."""
        if self.exchange is None:
            return
        self.head_sent = True
        self.closing = self.closing or close
        response = self._announced(response, response[: response.find(b"\r\n\r\n") + 2].lower())
        self.send(response, len(response))
        self._finish_response()

    def abort(self) -> None:
        """End the connection: what was written may still arrive, a response that is not complete stays so."""
        exchange, self.exchange = self.exchange, None
        if self.write_paused and exchange is not None:
            self.owed = exchange
        self._cut()

    def _cut(self) -> None:
        transport = self.transport
        self.body = None
        if transport is None:
            return
        self.flush()
        self.mode = client_py.CLOSED
        if self.head_sent and self.framing == client_py.UNTIL_CLOSE:
            # A mere end of the connection would say that the body is whole (RFC 9112 section 8).
            with contextlib.suppress(OSError, AttributeError, TypeError):
                transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
                )
            transport.abort()
            return
        self.context.linger(self)
        transport.close()

    def _announced(self, head: bytes, lowered: bytes) -> bytes:
        """`head` with Date, and with the end of the connection announced where it will end."""
        more = b""
        if b"\r\nconnection: close\r\n" in lowered:
            self.closing = True
        elif self.will_close:
            self.closing = True
            head = head.replace(b"\r\nconnection: keep-alive\r\n", b"\r\n", 1)
            more = b"connection: close\r\n"
        if b"\r\ndate: " not in lowered:
            more += _date_line()
        return _inserted(head, more) if more else head

    def _finish_response(self) -> None:
        self.owed, self.exchange = self.exchange, None
        self.flush()
        if not self.write_paused:
            self.owed = None
        unread = self.mode != client_py.WAIT
        go_on = not self.closing and self._can_go_on() and not self._is_last and not self.context.draining
        self.body = None
        self.request = None
        self.stalled = False
        if not go_on:
            if unread or self.held:
                self._linger()
            else:
                self._end()
        elif unread:
            self.mode = client_py.DISCARD
            self.context.idle_deadlines.add(self)
            self.context.call_soon(self._consume_later)
        else:
            self._await_request()

    def on_discarded(self) -> None:
        self._await_request()

    def _await_request(self) -> None:
        if self.write_paused:
            # A client that does not read what it asked for cannot ask for more: `resume_writing` goes on.
            self.mode = client_py.WAIT
            self.context.idle_deadlines.add(self)
            return
        self.mode = client_py.HEAD
        if self.held:
            # Not from here: an exchange that answers at once would make this a recursion.
            self.context.call_soon(self._consume_later)
        self.context.idle_deadlines.add(self)

    def _consume_later(self) -> None:
        if self.transport is None or self.exchange is not None:
            return
        if self.held or self.paused:
            self.consume()
        ending = self.context.draining or self.eof
        if ending and self.exchange is None and self.mode == client_py.HEAD:
            self._end()


_SLOTS = (
    "closing", "context", "continue_sent", "eof", "exchange", "head_sent", "head_timed", "owed", "progress",
    "request",
)  # fmt: skip


class PlainClient(Client, client_py.ClientBytes, asyncio.BufferedProtocol):
    """A client connection over the plain twin."""

    __slots__ = _SLOTS


def _compiled_class() -> type[Client] | None:
    try:
        module = importlib.import_module("h2ping._fast.client")
    except ImportError:
        return None

    class CompiledClient(Client, module.ClientBytes, asyncio.BufferedProtocol):  # type: ignore[misc, name-defined]
        """A client connection over the compiled module."""

        __slots__ = _SLOTS

        parse_head = staticmethod(_parse_head_by_table)

    return CompiledClient


CompiledClient: type[Client] | None = None if NO_EXTENSIONS else _compiled_class()


def make_client(context: ClientContext) -> Client:
    """A protocol for `loop.create_server`, over the compiled module where there is one."""
    return (CompiledClient or PlainClient)(context)
