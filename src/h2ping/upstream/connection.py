"""One HTTP/2 connection: asyncio.BufferedProtocol <-> Wire <-> the streams' receivers.

Theory of operation
-------------------
1. This is the only writer to the transport. Output is collected by the Wire and written once per turn of the loop.
2. It reads for as long as it lives, not only while a stream pulls; a response that nobody reads is held back by
   flow control, so PING is always answered.
3. It takes new streams while `is_open`: settled, not retired, no GOAWAY in either direction, no late PING reply.
4. Once it takes no new streams it goes on serving the open ones and closes itself after the last (RFC 9113
   section 6.8).
5. When it is lost every open stream gets its failure at once, and the owner hears of it exactly once.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Protocol

from h2ping.errors import CONNECTION_LOST, PING_TIMEOUT, Processed, UpstreamError
from h2ping.upstream import dial
from h2ping.upstream.keepalive import Action, Cadence, KeepAlive
from h2ping.upstream.wire import Fields, Receiver, RequestBody, WireLimits, WireStream, make_wire

if TYPE_CHECKING:
    from h2ping.clock import Clock, Timer

NO_ERROR = 0x0

WRITE_HIGH_BYTES = 128 << 10
"""Bytes in the transport above which DATA is held back: what a PING may have to wait behind."""
WRITE_LOW_BYTES = 32 << 10
IDLE_FRAMES_A_SECOND = 200
"""What WireLimits.max_idle_frames grows by with time, ..."""
IDLE_FRAMES_A_SECOND_A_STREAM = 20
"""... and for each open stream: one token of a model a frame, however short."""
IDLE_FRAMES_SECONDS = 20.0
"""Longer than that is not saved up: 4000 frames."""
TAKES_A_TURN = 4
"""Batches of output written in one turn of the loop before other connections get theirs."""


class ConnectionOwner(Protocol):
    """Who hands out the connection's streams (upstream.pool)."""

    def on_load(self, connection: Connection) -> None:
        """The number of open streams, the peer's limit, or `is_open` changed."""

    def on_lost(self, connection: Connection) -> None:
        """The transport is gone, its streams have failed. The last call."""

    def on_goaway(self, connection: Connection, last_stream_id: int, code: int, debug: bytes) -> None:
        """The peer takes no new stream on it (RFC 9113 section 6.8)."""

    def on_round_trip(self, connection: Connection, seconds: float) -> None:
        """A PING was acknowledged."""


class Connection(asyncio.BufferedProtocol):
    """One connection to the upstream. Times are seconds of the given clock."""

    def __init__(
        self, ident: int, owner: ConnectionOwner, clock: Clock, cadence: Cadence, limits: WireLimits
    ) -> None:
        self.ident = ident
        self.born = clock.now()
        self.requests = 0
        self.load_slot = -1
        """Where the pool keeps it; -1: nowhere."""
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wire = make_wire(self, limits)
        self.retired = False
        self.lost = False
        self.failure: UpstreamError | None = None
        """Why it was lost; None where its end was due: it was retired or had said GOAWAY, and had no stream."""
        self.round_trip: float | None = None
        self.address: Any = None
        """Of the peer, as sockets have it, once it is dialled."""
        self._owner = owner
        self._clock = clock
        self._keepalive = KeepAlive(cadence, self.born)
        self._keepalive_timer: Timer | None = None
        self._transport: asyncio.Transport | None = None
        self._call_soon = asyncio.get_running_loop().call_soon
        self._flush_scheduled = False
        self._ping: tuple[bytes, float] | None = None
        self._fault: UpstreamError | None = None
        self._idle_frames_until = self.born

    # --- what the pool asks ---------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """It takes new streams (rule 3)."""
        return not self.retired and not self.lost and self.wire.can_open and not self._keepalive.late

    @property
    def load(self) -> int:
        """Open streams."""
        return self.wire.open_streams

    @property
    def last_received(self) -> float:
        """When the last byte arrived."""
        return self._keepalive.last_received

    def open(self, fields: Fields, body: RequestBody | None, receiver: Receiver) -> WireStream:
        """Send a request on a new stream."""
        self.requests += 1
        stream = self.wire.open(fields, body, receiver)
        self._watch_streams()
        self._owner.on_load(self)
        return stream

    def retire(self) -> None:
        """Take no new stream; close after the last one (rule 4)."""
        if not self.retired:
            self.retired = True
            self._owner.on_load(self)
            self._close_if_done()

    def abort(self, error: UpstreamError | None = None) -> None:
        """Drop the connection now; open streams fail with `error`."""
        self._fault = self._fault or error
        if self._transport is not None:
            self._transport.abort()
        self._lose(None)

    # --- asyncio.BufferedProtocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        tls = transport.get_extra_info("ssl_object")
        chosen = tls.selected_alpn_protocol() if tls is not None else None
        if chosen != "h2":
            self.abort(dial.wrong_protocol(chosen))
            return
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)  # type: ignore[union-attr]
        self.wire.start()
        self._flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        # All that the transport holds: at EOF it throws away what a read has left there.
        return self.wire.receive_buffer(max(sizehint, 0))

    def buffer_updated(self, nbytes: int) -> None:
        was_late = self._keepalive.late
        self._keepalive.on_received(self._clock.now())
        try:
            self.wire.received(nbytes)
        except UpstreamError as error:
            self._fail(error)
            return
        if was_late:
            self._owner.on_load(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc)

    def pause_writing(self) -> None:
        self.wire.hold_data(True)

    def resume_writing(self) -> None:
        self.wire.hold_data(False)
        self.on_output()

    # --- WireOwner --------------------------------------------------------------------------------------------------

    def on_output(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._call_soon(self._flush)

    def on_settings(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)
        else:
            self._owner.on_load(self)

    def on_ping_ack(self, payload: bytes) -> None:
        if self._ping is not None and self._ping[0] == payload:
            self.round_trip = self._clock.now() - self._ping[1]
            self._ping = None
            self._owner.on_round_trip(self, self.round_trip)

    def more_idle_frames(self) -> int:
        now = self._clock.now()
        passed, self._idle_frames_until = now - self._idle_frames_until, now
        rate = IDLE_FRAMES_A_SECOND + IDLE_FRAMES_A_SECOND_A_STREAM * self.wire.open_streams
        return int(min(passed, IDLE_FRAMES_SECONDS) * rate)

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        self._owner.on_goaway(self, last_stream_id, code, debug)
        self._owner.on_load(self)
        self._close_if_done()

    def on_stream_closed(self) -> None:
        self._watch_streams()
        self._owner.on_load(self)
        self._close_if_done()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flush_scheduled = False
        transport = self._transport
        if transport is None or self.lost:
            return
        for _ in range(TAKES_A_TURN):
            output = self.wire.take_output()
            if not output:
                return
            if len(output) == 1:
                transport.write(output[0])
            else:
                transport.writelines(output)
        self.on_output()

    def _watch_streams(self) -> None:
        if (
            self._keepalive.on_streams(self.wire.open_streams, self._clock.now())
            and self._keepalive_timer is None
        ):
            self._on_keepalive_timer()

    def _on_keepalive_timer(self) -> None:
        self._keepalive_timer = None
        if self.lost:
            return
        now = self._clock.now()
        action, delay = self._keepalive.on_timer(now)
        if action is Action.PING:
            payload = os.urandom(8)
            self._ping = (payload, now)
            self.wire.ping(payload)
            self._flush()
        elif action is Action.LATE:
            self._owner.on_load(self)
        elif action is Action.DEAD:
            silent = now - self._keepalive.last_received
            self.abort(UpstreamError(PING_TIMEOUT, f"nothing received for {silent:.3g}s, PING unanswered"))
            return
        if delay is not None:
            self._keepalive_timer = self._clock.call_later(delay, self._on_keepalive_timer)

    def _close_if_done(self) -> None:
        if self.wire.open_streams == 0 and not self.lost and (self.retired or not self.wire.can_open):
            if self._transport is None or not self.settled.done():
                return
            # Not inside the Wire's own call: it may still be handling the frame that closed the last stream.
            self._call_soon(self._close)

    def _close(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing() or self.wire.open_streams:
            return
        self.wire.goaway(NO_ERROR)
        self._flush()
        transport.close()

    def _fail(self, error: UpstreamError) -> None:
        """The peer broke the protocol: the Wire has queued the GOAWAY that says so."""
        self._fault = error
        self._flush()
        if self._transport is not None:
            self._transport.close()
        self._lose(None)

    def _lose(self, exc: Exception | None) -> None:
        if self.lost:
            return
        self.lost = True
        # Let go of it now, not when the collector next looks for cycles: TLS buffers are 300 KiB a connection.
        self._transport = None
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        error = self._fault
        if error is None and not self.settled.done() and exc is not None:
            error = dial.explain(exc)
        if error is None:
            how = "closed by the peer" if exc is None else "reset by the peer"
            if exc is not None and not isinstance(exc, ConnectionResetError):
                how = dial.explain(exc).detail
            error = UpstreamError(CONNECTION_LOST, how)
        if not self.settled.done():
            error = UpstreamError(error.cause, error.detail, processed=Processed.NEVER_SENT, code=error.code)
            self.settled.set_exception(error)
            self.settled.exception()  # retrieved here, so that a dial that was given up does not warn
        due = self.wire.open_streams == 0 and (self.retired or not self.wire.can_open)
        self.failure = error if self._fault is not None or not due else None
        try:
            self.wire.abandon(error)
        finally:
            self._owner.on_lost(self)


def describe(connection: Connection, now: float) -> dict[str, Any]:
    """What /connections shows of it. Ages and times in seconds."""
    return {
        "id": connection.ident,
        "age": round(now - connection.born, 3),
        "requests": connection.requests,
        "streams": connection.load,
        "max_streams": connection.wire.max_streams,
        "silent": round(now - connection.last_received, 3),
        "round_trip": connection.round_trip,
        "open": connection.is_open,
    }
