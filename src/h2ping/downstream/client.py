"""One client connection: HTTP/1.1 requests in, HTTP/1.1 responses out, one at a time (RFC 9112).

Theory of operation
-------------------
1. The bytes are `_fast.client`'s (or its plain twin's), `octets` here; what they mean is decided here. A head is read
   by head.py and becomes one exchange. Until its response is complete, what follows is held.
2. What is wrong before there is an exchange is answered here. Such an answer always ends the connection,
   because nobody knows where the next request would begin.
3. A connection lives on unless the client, a shutdown, or a body that is not worth reading to its end
   forbids it; what ends it is announced with `Connection: close`. How it ends stands in ending.py.
4. EOF while a response is owed is a client that left (`half_close` "cancel"), or one that still reads
   ("wait"): then whatever request came whole is answered, and the connection ends after the last.
5. A client that neither sends the body that it announced nor reads the response that it asked for is
   dropped after the idle time. One that is slow is not. Its next request waits until it has read.

It does not know the pool, re-sends, HTTP/2, nor who answers a request: it is handed a factory of exchanges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2ping import headers
from h2ping._fast.client_py import CHUNK_FRAMED, CHUNKED, DISCARD, HEAD, HOLD, LENGTH, SINK, UNTIL_CLOSE, WAIT
from h2ping.answer import date_line, error_response, inserted
from h2ping.downstream import ending
from h2ping.errors import (
    BAD_REQUEST,
    BODY_TIMEOUT,
    BODY_TOO_LARGE,
    CLIENT_GONE,
    HEAD_TIMEOUT,
    HEAD_TOO_LARGE,
    READER_TIMEOUT,
    DownstreamError,
    UpstreamError,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from h2ping._fast.arena_py import Body
    from h2ping.downstream.context import ClientContext, Exchange
    from h2ping.downstream.protocol import Octets
    from h2ping.errors import Cause
    from h2ping.headers import Fields, Request

DRAIN_BYTES = 256 << 10
"""So much of an unwanted request body is read to keep the connection; hyper and nginx bear about the same."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Client:
    """What the bytes of a connection mean."""

    __slots__ = (
        "_continue_sent", "closing", "context", "eof", "exchange", "head_sent", "head_timed", "lingering", "octets",
        "owed", "progress", "request", "write_paused",
    )  # fmt: skip

    def __init__(self, context: ClientContext, octets: Callable[[Client], Octets]) -> None:
        """`octets` makes the protocol that the loop is given; the two know each other until the connection ends."""
        self.context = context
        self.request: Request | None = None
        self.exchange: Exchange | None = None
        self.owed: Exchange | None = None
        """An exchange that is over but whose last bytes wait for the socket."""
        self.closing = False
        self.head_sent = False
        self._continue_sent = False
        self.head_timed = False
        self.eof = False
        self.write_paused = False
        self.progress = (-1, -1)
        self.lingering: tuple[int, int, int] | None = None
        """What was left to come and to deliver when the end was last looked at, and how often it was (ending.py)."""
        self.octets = octets(self)
        self.octets.max_body = context.settings.max_body_bytes

    # --- the connection's own life ------------------------------------------------------------------------------

    def on_connected(self, transport: asyncio.Transport) -> None:
        """The client is there."""
        context = self.context
        # What the socket does not take is held, and counted as such from its first byte.
        transport.set_write_buffer_limits(high=0)
        context.clients.add(self)
        if context.door is not None:
            context.door.entered()
        if context.draining:
            transport.close()
        else:
            context.idle_deadlines.add(self)

    def on_lost(self) -> None:
        """The connection is over, and `octets` with it."""
        context = self.context
        context.clients.discard(self)
        if context.door is not None:
            context.door.left()
        context.idle_deadlines.discard(self)
        context.head_deadlines.discard(self)
        if context.linger_deadlines is not None:
            context.linger_deadlines.discard(self)
        self.leave()

    def leave(self, cause: Cause = CLIENT_GONE) -> None:
        """The response, or what of it is still to be read, has no reader any more."""
        exchange, self.exchange = self.exchange, None
        owed, self.owed = self.owed, None
        if exchange is not None:
            exchange.on_client_gone(cause)
        if owed is not None:
            owed.on_client_gone(cause)

    def on_eof(self) -> bool:
        """The client sends no more (RFC 9112 section 9.6). True keeps our half open."""
        self.eof = True
        if self.context.half_close_waits and self._has_work():
            return True
        ending.forget(self)
        return False

    def _has_work(self) -> bool:
        """A whole request is here that is not answered."""
        octets = self.octets
        if self.exchange is not None and octets.mode == WAIT:
            return True
        if self.exchange is not None and octets.mode == HOLD:
            # Of a chunked body that waits for memory the end is not known before it is read.
            return octets.remaining <= (len(octets.held) if octets.held else 0)
        return octets.mode in (HEAD, WAIT) and self._holds_a_head()

    def _holds_a_head(self) -> bool:
        """A pipelined request, whole or at least its head, waits for its turn."""
        held = self.octets.held
        return held is not None and b"\r\n\r\n" in held

    def _check_for_more(self) -> None:
        """A body that is not whole when everything that came is used, from a client that sends no more."""
        if self.eof and self.octets.body is not None and not self.octets.stalled:
            ending.forget(self)
            if self.octets.transport is not None:
                self.octets.transport.close()

    def on_write_paused(self) -> None:
        """The socket takes no more for now."""
        self.write_paused = True
        exchange = self.exchange or self.owed
        if exchange is not None:
            exchange.on_held(self.octets.lent_bytes)
        if self.exchange is not None:
            self.watch_progress()

    def on_write_resumed(self) -> None:
        """It does again."""
        self.write_paused = False
        owed, self.owed = self.owed, None
        if owed is not None:
            owed.on_writable()
        octets = self.octets
        if self.exchange is not None:
            self.exchange.on_writable()
        elif octets.mode == WAIT and octets.transport is not None:
            self._await_request()
            if not octets.held and (self.context.draining or self.eof):
                ending.end(self)  # else `_consume_later` does it
        elif octets.mode == SINK:
            ending.on_all_written(self)

    def on_head_timeout(self) -> None:
        """A head was begun and not finished in time."""
        self.on_bad_input(DownstreamError(HEAD_TIMEOUT))

    def on_idle_timeout(self) -> None:
        """No request for too long, or no progress of what the client should send or read."""
        body = self.octets.body
        before, self.progress = self.progress, self._progress()
        reads = self.write_paused and self.progress[1] != before[1]
        if self.exchange is None:
            if reads:
                self.context.idle_deadlines.add(self)
            else:
                ending.end_idle(self)
        elif body is not None and not self.octets.stalled and self.progress[0] == before[0]:
            self.on_bad_input(DownstreamError(BODY_TIMEOUT))
        elif self.write_paused and not reads and self.octets.transport is not None:
            self.leave(READER_TIMEOUT)
            self.octets.transport.abort()
        elif body is not None or self.write_paused:
            self.context.idle_deadlines.add(self)

    def on_linger_timeout(self) -> None:
        """It was given enough time to read."""
        ending.on_linger_timeout(self)

    def _progress(self) -> tuple[int, int]:
        """Body bytes that came, bytes that were not taken; what the client does not owe has no number."""
        octets = self.octets
        received = octets.body.received if octets.body is not None and not octets.stalled else -1
        return received, octets.pending_bytes if self.write_paused else -1

    def watch_progress(self) -> None:
        """Nothing is counted while it goes well: the deadline looks whether anything moved (rule 5)."""
        self.progress = self._progress()
        self.context.idle_deadlines.add(self)

    def stop_waiting(self) -> None:
        """No request is expected any more, nor the rest of one."""
        self.head_timed = False
        self.context.idle_deadlines.discard(self)
        self.context.head_deadlines.discard(self)

    def on_drain(self) -> None:
        """A shutdown begins: idle connections end now, others after their response."""
        octets = self.octets
        is_idle = octets.mode == HEAD or (octets.mode == WAIT and self.exchange is None)
        if is_idle and octets.held is None and octets.transport is not None:
            ending.end(self)

    def on_sink_full(self) -> None:
        ending.end(self)

    def schedule_flush(self) -> None:
        self.context.mark_dirty(self.octets)

    @property
    def pending_bytes(self) -> int:
        """Output that the kernel has not taken."""
        return self.octets.pending_bytes

    # --- requests -----------------------------------------------------------------------------------------------

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
        context, octets = self.context, self.octets
        context.idle_deadlines.discard(self)
        if self.head_timed:
            self.head_timed = False
            context.head_deadlines.discard(self)
        self.head_sent = self._continue_sent = False
        try:
            request = self._read(raw)
        except DownstreamError as error:
            self.on_bad_input(error, raw)
            return
        if request.chunked:
            octets.mode = HOLD
            octets.remaining = 0
            octets.start_chunks()
        elif request.content_length:
            octets.mode = HOLD
            octets.remaining = request.content_length
        else:
            octets.mode = WAIT
        self.exchange = exchange = context.exchanges(request, self)
        exchange.start()

    def _read(self, raw: bytes) -> Request:
        """The request in a head, if it is one that may be served."""
        settings = self.context.settings
        if len(raw) > settings.max_header_bytes:
            raise DownstreamError(HEAD_TOO_LARGE)
        self.request = request = self.octets.read_head(raw, self.context.prefix)
        length, most = request.content_length, settings.max_body_bytes
        if most and length and length > most:
            raise DownstreamError(BODY_TOO_LARGE, f"{length} bytes")
        return request

    def receive_body(self, body: Body) -> None:
        """Memory is granted: read the body into it."""
        request, octets = self.request, self.octets
        assert request is not None
        octets.body = body
        octets.mode = CHUNKED if request.chunked else LENGTH
        if request.expect_continue and not octets.held and not self.head_sent:
            # RFC 9110 section 10.1.1: a gateway answers as an origin server would. Not before there is room.
            self._continue_sent = True
            octets.send(_CONTINUE, len(_CONTINUE))
        octets.consume()
        self._check_for_more()
        if octets.body is not None:
            self.watch_progress()

    def resume_body(self) -> None:
        """The body has room again."""
        if self.octets.stalled:
            self.octets.stalled = False
            self.octets.consume()
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

    def on_discarded(self) -> None:
        self._await_request()

    def on_bad_input(self, error: DownstreamError, head: bytes | None = None) -> None:
        """Answer what is not a request, or has ceased to be one, and end the connection. `head`: if it was whole."""
        octets = self.octets
        exchange, self.exchange = self.exchange, None
        begun = head if head is not None else octets.held
        method, path = headers.request_line_of(begun or b"") if exchange is None else (b"", b"")
        octets.body = None
        octets.held = None
        octets.stalled = False
        self.closing = True
        if exchange is not None:
            octets.mode = SINK
            exchange.on_client_error(error)
            if self.head_sent:
                ending.cut(self)
                return
        elif self.context.on_refused is not None:
            self.context.on_refused(error, method, path)
        response = error_response(error, self.request, self.context.program, method=method)
        answer = inserted(response, date_line())
        octets.send(answer, len(answer))
        ending.linger(self)

    # --- responses ----------------------------------------------------------------------------------------------

    @property
    def will_close(self) -> bool:
        """The connection ends after this response."""
        return self._will_close()

    def _will_close(self) -> bool:
        return self.closing or self.context.draining or self._is_last() or not self._can_go_on()

    def _is_last(self) -> bool:
        """The client sends no more, and nothing that it sent waits for its turn."""
        return self.eof and not self._holds_a_head()

    def _can_go_on(self) -> bool:
        request = self.request
        if request is None or not request.keep_alive:
            return False
        octets = self.octets
        mode = octets.mode
        if mode == WAIT:
            return True
        if mode not in (HOLD, LENGTH) or request.chunked:
            return False
        # A client that was not told to go on may never send the body, or it may.
        withheld = request.expect_continue and not self._continue_sent and not octets.held
        return octets.remaining <= DRAIN_BYTES and not withheld

    def send_interim(self, head: bytes) -> None:
        """A 1xx response; HTTP/1.0 knows none (RFC 9110 section 15.2)."""
        if self.exchange is not None and self.request is not None and self.request.version >= (1, 1):
            self.octets.send(head, len(head))

    def send_head(self, head: bytes, framing: headers.Framing) -> None:
        """The head of the final response."""
        if self.exchange is None:
            return
        self.head_sent = True
        self.octets.framing = framing
        head = self._announced(head, head)
        if framing == UNTIL_CLOSE:
            self.closing = True
        self.octets.send(head, len(head))

    def send_data(self, data: memoryview | bytes) -> None:
        """Body bytes of the response."""
        self.octets.send_data(data)

    def send_end(self, trailers: Fields | None) -> None:
        """The response is complete."""
        if self.exchange is None:
            return
        if self.octets.framing == CHUNK_FRAMED:
            section = b""
            if trailers and self.request is not None and self.request.wants_trailers:
                try:
                    section = headers.trailer_section(trailers)
                except UpstreamError:
                    self.abort()
                    return
            self.octets.send(b"0\r\n%b\r\n" % section, 5 + len(section))
        self._finish_response()

    def answer(self, response: bytes, close: bool) -> None:
        """A complete response that h2ping wrote itself; `close` if it says so."""
        if self.exchange is None:
            return
        self.head_sent = True
        self.closing = self.closing or close
        response = self._announced(response, response[: response.find(b"\r\n\r\n") + 2].lower())
        self.octets.send(response, len(response))
        self._finish_response()

    def abort(self) -> None:
        """End the connection: what was written may still arrive, a response that is not complete stays so."""
        exchange, self.exchange = self.exchange, None
        if self.write_paused and exchange is not None:
            self.owed = exchange
        ending.cut(self)

    def drop(self) -> None:
        """End the connection at the end of this turn of the loop, and forget what it did not take."""
        self.context.call_soon(lambda: ending.drop(self))

    def _announced(self, head: bytes, lowered: bytes) -> bytes:
        """`head` with Date, and with the end of the connection announced where it will end."""
        more = b""
        if b"\r\nconnection: close\r\n" in lowered:
            self.closing = True
        elif self._will_close():
            self.closing = True
            head = head.replace(b"\r\nconnection: keep-alive\r\n", b"\r\n", 1)
            more = b"connection: close\r\n"
        if b"\r\ndate: " not in lowered:
            more += date_line()
        return inserted(head, more) if more else head

    def _finish_response(self) -> None:
        octets = self.octets
        self.owed, self.exchange = self.exchange, None
        octets.flush()
        if not self.write_paused:
            self.owed = None
        unread = octets.mode != WAIT
        go_on = not (self.closing or self.context.draining or self._is_last()) and self._can_go_on()
        octets.body = None
        self.request = None
        octets.stalled = False
        if not go_on:
            if unread or octets.held:
                ending.linger(self)
            else:
                ending.end(self)
        elif unread:
            octets.mode = DISCARD
            self.context.idle_deadlines.add(self)
            self.context.call_soon(self._consume_later)
        else:
            self._await_request()

    def _await_request(self) -> None:
        octets = self.octets
        if self.write_paused:
            # A client that does not read what it asked for cannot ask for more: `on_write_resumed` goes on.
            octets.mode = WAIT
            self.watch_progress()
            return
        octets.mode = HEAD
        if octets.held:
            # Not from here: an exchange that answers at once would make this a recursion.
            self.context.call_soon(self._consume_later)
        self.context.idle_deadlines.add(self)

    def _consume_later(self) -> None:
        octets = self.octets
        if octets.transport is None or self.exchange is not None:
            return
        if octets.held or octets.paused:
            octets.consume()
        is_idle = self.exchange is None and octets.mode == HEAD
        if is_idle and (self.context.draining or self.eof):
            ending.end(self)
