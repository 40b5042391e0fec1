"""One request's life, phase by phase, top to bottom.

    start -> (memory) -> (stream) -> request goes up -> response comes down -> done
                ^            ^______________|
             waits        refused or never sent: again, with exactly the same bytes

Theory of operation
-------------------
1. An exchange has exactly one outcome: a whole response, an error answer, or a cut client connection.
2. The body's copy is kept until the response begins, perhaps compressed (packing.py); whether it may be sent again is
   decided in retry.py alone.
3. Once a byte of the response went to the client nothing is sent again, and a failure cuts the client's connection,
   so that the response never looks complete.
4. Credit for response bytes goes back to the upstream when the client's socket took them, not before: a slow client
   stalls its own stream only. A client that reads gets a wider window, as long as the others read, too. What a
   client does not read is counted by memory, which may end the response for it (`on_unread_too_long`).
5. A client that goes away becomes RST_STREAM(CANCEL) in the same turn of the loop.

It knows neither the bytes of a protocol nor timers nor sockets. It is callbacks, not a coroutine: a task would cost
6 KB for each of thousands of requests that wait for minutes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

from h2ping import headers, log, retry, timers
from h2ping.answer import error_response, status_of
from h2ping.errors import (
    BODY_TOO_LARGE,
    CLIENT_GONE,
    COPY_NOT_KEPT,
    FIRST_BYTE_TIMEOUT,
    FLOOD,
    MALFORMED_RESPONSE,
    RESPONSE_UNREAD,
    SHUTDOWN_GRACE,
    DownstreamError,
    H2pingError,
    Processed,
    UpstreamError,
)
from h2ping.packing import PackedCopy, Unpacking

if TYPE_CHECKING:
    from h2ping._fast.arena_py import Body
    from h2ping.clock import Timer
    from h2ping.downstream.client import Client
    from h2ping.errors import Cause
    from h2ping.headers import Request
    from h2ping.instance import Instance
    from h2ping.upstream.connection import Connection
    from h2ping.upstream.wire import Fields, WireStream

NO_ERROR = 0x0
WINDOW_MOST_BYTES = 4 << 20
"""Largest receive window of a stream whose client reads: 50 ms at 80 MB/s."""
INTERIM_BURST = 16
"""Interim responses at once, and ..."""
INTERIM_A_SECOND = 1
"""... for each second since the request was sent: an endpoint may say 102 for minutes."""
CANCEL = 0x8
ENHANCE_YOUR_CALM = 0xB


class Phase(enum.IntEnum):
    """Where an exchange is. Numbers grow along its life, but for a re-send."""

    WAITING = 0
    """For memory, for a stream, or for the moment of a re-send."""
    SENT = 1
    """It has a stream; no response yet."""
    RESPONDING = 2
    DONE = 3


class Exchange:
    """One request and its response."""

    __slots__ = (
        "_again_timer", "_announced", "_body", "_client", "_connection", "_given_up", "_held", "_instance", "_interims",
        "_last_error", "_left", "_lost_attempts", "_packed", "_sent_at", "_stream", "_uncredited", "_unpacking",
        "_uploaded", "_window", "attempts", "bytes_in", "bytes_out", "ident", "phase", "request", "started", "status",
        "stream_id", "upstream_status",
    )  # fmt: skip

    def __init__(self, instance: Instance, request: Request, client: Client) -> None:
        self._instance = instance
        self._client = client
        self._body: Body | None = None
        self._packed: PackedCopy | None = None
        self._unpacking: Unpacking | None = None
        self._stream: WireStream | None = None
        self._connection: Connection | None = None
        self._sent_at = 0.0
        self._interims = 0
        self._again_timer: Timer | None = None
        self._given_up = False
        self._uncredited = 0
        self._held = 0
        """Response bytes that were credited and yet not taken by the client's socket."""
        self._announced = -1
        """Content bytes that the response announced; -1: none or not yet."""
        self._uploaded = -1
        """Bytes of the request's body that had been sent when END_STREAM was last found missing."""
        self._window = instance.pool.limits.stream_window_bytes
        self._left = False
        """We cancelled a stream that was open."""
        self._lost_attempts = 0
        self._last_error: UpstreamError | None = None
        self.request = request
        self.ident = instance.next_ident()
        self.started = instance.clock.now()
        self.phase = Phase.WAITING
        self.attempts = 0
        self.status: int | None = None
        self.upstream_status: int | None = None
        self.stream_id = 0
        self.bytes_in = 0
        self.bytes_out = 0

    # --- the request goes up ------------------------------------------------------------------------------------

    def start(self) -> None:
        """The client's head is complete."""
        self._instance.exchanges[self] = None
        request, settings = self.request, self._instance.settings
        size = None if request.chunked else request.content_length
        if size == 0 or (size is None and not request.chunked):
            self._instance.pool.acquire(self)
        elif settings.max_body_bytes and size is not None and size > settings.max_body_bytes:
            self._answer(
                DownstreamError(BODY_TOO_LARGE, f"{size} bytes, -max-body-bytes {settings.max_body_bytes}")
            )
        else:
            kept = settings.retry_body_limit > 0 and (size is None or size <= settings.retry_body_limit)
            self._instance.memory.admit(self, size, kept=kept)

    def on_memory(self, body: Body) -> None:
        """Room for the body is reserved: read it."""
        self._body = body
        body.on_room = self._on_room
        if self._packed is not None:
            self._unpacking = Unpacking(self._packed, body)
            self._unpacking.fill()
            self._instance.pool.acquire(self)
            return
        self._client.receive_body(body)
        if self.phase is Phase.WAITING:
            self._instance.pool.acquire(self)

    def on_no_memory(self, error: DownstreamError) -> None:
        self._answer(error)

    def on_connection(self, connection: Connection) -> None:
        """A connection has room for a stream."""
        self.attempts += 1
        self.phase = Phase.SENT
        self._connection = connection
        self._sent_at = self._instance.clock.now()
        self._interims = 0
        self._instance.first_byte.add(self)
        fields = headers.h2_fields(self.request, self._instance.authority)
        self._stream = connection.open(fields, self._body, self)
        self.stream_id = self._stream.id

    def on_no_connection(self, error: H2pingError) -> None:
        assert isinstance(error, (UpstreamError, DownstreamError))
        self._answer(error)

    def on_body(self) -> None:
        """The client sent more of the body."""
        if self._stream is not None:
            self._stream.body_ready()

    def on_body_end(self, trailers: Fields | None) -> None:
        """The client sent all of it."""
        assert self._body is not None
        self.bytes_in = self._body.received
        if trailers:
            self._body.trailers = trailers
        if self._stream is not None:
            self._stream.body_ready()

    def on_body_stalled(self) -> None:
        """There is no room for the next byte."""
        body = self._body
        assert body is not None
        if body.kept:
            limit = self._instance.settings.retry_body_limit
            if body.received < limit and self._instance.memory.make_room(body):
                self._client.resume_body()
                return
            body.drop_copy()
            self._given_up = True
            if body.writable() is not None:
                self._client.resume_body()

    def _on_room(self) -> None:
        if self.phase is Phase.DONE:
            return
        if self._unpacking is not None:
            # Not inside the Wire, which is handing out this very body.
            self._instance.clock.call_later(0, self._unpack)
        else:
            self._client.resume_body()

    def _unpack(self) -> None:
        if self._unpacking is not None:
            self._unpacking.fill()
            if self._stream is not None:
                self._stream.body_ready()

    def on_upload_done(self) -> None:
        """The request was sent whole."""
        body = self._body
        if body is None or self.phase is Phase.DONE:
            return
        if self.phase is Phase.RESPONDING or (not body.kept and self._packed is None):
            self._given_up = True
            self._release_body()
        elif self._packed is not None:
            self._release_window()
            self._instance.memory.on_sent_whole(self)
        else:
            self._instance.memory.on_sent_whole(self, body)

    def give_up_copy(self) -> None:
        """Memory is short and this request is near its answer: it can no longer be sent again."""
        self._given_up = True
        self._release_window()
        self._release_packed()

    def on_packed(self, pieces: list[bytes]) -> None:
        """The same bytes in less memory; a re-send unpacks them as they are sent."""
        memory, body = self._instance.memory, self._body
        assert body is not None
        assert memory.packer is not None
        size, trailers = body.received, body.trailers
        self._release_window()
        self._packed = PackedCopy(memory.arena, pieces, memory.packer.unpack, size, trailers)

    def _release_body(self) -> None:
        self._release_window()
        self._release_packed()
        self._instance.memory.on_released(self)

    def _release_window(self) -> None:
        """The body as the Wire reads it; a packed copy of it stays."""
        self._unpacking = None
        body, self._body = self._body, None
        if body is not None:
            self.bytes_in = max(self.bytes_in, body.received)
            body.on_room = None
            body.release()

    def _release_packed(self) -> None:
        packed, self._packed = self._packed, None
        if packed is not None:
            packed.release()

    # --- the response comes down --------------------------------------------------------------------------------

    def on_interim(self, status: int, fields: Fields) -> None:
        self._interims += 1
        passed = self._instance.clock.now() - self._sent_at
        if self._interims > INTERIM_BURST + passed * INTERIM_A_SECOND:
            self._leave_stream(ENHANCE_YOUR_CALM)
            self._answer(UpstreamError(FLOOD, f"{self._interims} interim responses in {passed:.3g}s"))
            return
        # 100 was answered here already (RFC 9110 section 10.1.1); a 1.0 client knows no interim responses (15.2).
        if status != 100 and self.request.version >= (1, 1):
            self._client.send_interim(headers.interim_head(status, fields))

    def on_response(self, status: int, fields: Fields, end: bool) -> None:
        self.phase = Phase.RESPONDING
        self.status = self.upstream_status = status
        self._instance.first_byte.discard(self)
        stream = self._stream
        assert stream is not None
        if self._body is not None or self._packed is not None:
            if self._body is None or stream.upload_done:
                self._release_body()
            else:
                self._body.drop_copy()
                self._given_up = True
        head, framing = headers.response_head(status, fields, self.request, end, self._client.will_close)
        if framing is headers.Framing.LENGTH:
            self._announced = headers.content_length(fields)
        elif framing is headers.Framing.NONE:
            self._announced = 0
        self._client.send_head(head, framing)
        if end:
            self.on_end(None)
        elif self._announced == 0 and self._stream is not None:  # else it ended inside send_head
            self._instance.endings.add(self)

    def on_data(self, data: Any) -> None:
        size = len(data)
        self.bytes_out += size
        client = self._client
        if client.write_paused:
            data = bytes(data)  # a slice of what was received would keep all of that, uncounted
        client.send_data(data)
        stream = self._stream
        if stream is None:  # the client went away inside send_data
            return
        if self.bytes_out == self._announced:
            self._instance.endings.add(self)
        if client.write_paused:
            self._uncredited += size
            self._instance.memory.hold(self, size)
        else:
            stream.credit(size)
            if self.bytes_out >= self._window < WINDOW_MOST_BYTES and self._instance.memory.may_widen:
                more = min(self._window, WINDOW_MOST_BYTES - self._window)
                stream.widen(more)
                self._window += more

    def on_held(self, size: int) -> None:
        """The client's socket did not take what was written before it was known that it is slow."""
        self._held += size
        self._instance.memory.hold(self, size)

    def on_writable(self) -> None:
        """The client's socket took what was written."""
        self._give_credit()

    def on_unread_too_long(self) -> None:
        """The memory for responses is used up, and this client is behind for longest."""
        self._give_credit()
        self._client.drop()
        if self.phase is Phase.DONE:
            return
        self._leave_stream()
        self.phase = Phase.DONE
        self._finish(DownstreamError(RESPONSE_UNREAD, f"{self.bytes_out} bytes of it had come"))

    def on_end(self, trailers: Fields | None) -> None:
        stream = self._stream
        assert stream is not None
        if not stream.upload_done:
            # RFC 9113 section 8.1: the response is whole, the rest of the request is not wanted.
            stream.reset(NO_ERROR)
        self.phase = Phase.DONE
        self._client.send_end(trailers)
        self._finish(None)

    # --- what goes wrong ----------------------------------------------------------------------------------------

    def on_failed(self, error: UpstreamError) -> None:
        """The stream is over without a complete response."""
        self._stream = None
        self._last_error = error
        # Nobody wants the credit any more; what the client has not read stays counted until it has, or is gone.
        self._held, self._uncredited = self._held + self._uncredited, 0
        if self._announced == self.bytes_out and error.cause is not MALFORMED_RESPONSE:
            # The client has every byte that the response announced; only END_STREAM is missing.
            self.phase = Phase.DONE
            self._client.send_end(None)
            self._finish(None)
            return
        self._lost_attempts += error.processed is Processed.MAYBE
        body = self._body
        attempted = retry.Attempted(
            method=self.request.method,
            attempts=self.attempts,
            lost=self._lost_attempts,
            response_begun=self.phase is Phase.RESPONDING,
            body_kept=not self._given_up
            and (body is None or body.kept or body.sent == 0 or self._packed is not None),
        )
        verdict = retry.decide(attempted, error)
        if verdict is retry.Verdict.AGAIN:
            self._again(error)
        elif verdict is retry.Verdict.CUT:
            self.phase = Phase.DONE
            self._client.abort()
            self._finish(self._explained(error))
        elif verdict is retry.Verdict.NOT_KEPT:
            self._answer(
                UpstreamError(COPY_NOT_KEPT, error.cause.token, processed=error.processed, code=error.code)
            )
        else:
            self._answer(self._explained(error))

    def on_no_end(self) -> None:
        """The client has all that was announced, END_STREAM does not come: the client's next request waits for it."""
        stream = self._stream
        if stream is not None and not stream.upload_done and stream.sent > self._uploaded:
            # An upload that goes on is not cut off: the next request waits for its end anyway.
            self._uploaded = stream.sent
            self._instance.endings.add(self)
            return
        self._leave_stream()
        self.phase = Phase.DONE
        self._client.send_end(None)
        self._finish(None)

    def on_first_byte_timeout(self) -> None:
        """Nothing began within -first-byte-timeout."""
        self._leave_stream()
        limit = self._instance.settings.first_byte_timeout
        self._answer(UpstreamError(FIRST_BYTE_TIMEOUT, f"-first-byte-timeout {limit:g}s"))

    def on_client_error(self, error: DownstreamError) -> None:
        """The client broke its own request: it answers and closes by itself."""
        self._leave_stream()
        self.phase = Phase.DONE
        self.status = self.status or error.cause.status
        self._finish(error)

    def on_client_gone(self, cause: Cause = CLIENT_GONE) -> None:
        """The client's connection ended before the response did, or before it was read."""
        self._give_credit()
        if self.phase is Phase.DONE:
            return
        self._leave_stream()
        self.phase = Phase.DONE
        self._finish(DownstreamError(cause))

    def cut(self) -> None:
        """The grace of the shutdown ran out."""
        begun = self.phase is Phase.RESPONDING
        self._leave_stream()
        error = DownstreamError(SHUTDOWN_GRACE)
        if begun or self._instance.settings.program == "h2-ping-sidecar":
            self.phase = Phase.DONE
            self._client.abort()
            self._finish(error)
        else:
            self._answer(error)

    # --- inside -------------------------------------------------------------------------------------------------

    def _again(self, error: UpstreamError) -> None:
        self.phase = Phase.WAITING
        log.request_retried(self._instance.settings, self.record(error))
        self._instance.metrics.retried(error.cause.token)
        if self._packed is not None:
            self._release_window()
        self._instance.memory.on_again(self)
        delay = retry.delay(self.attempts, error)
        if delay:
            self._again_timer = self._instance.clock.call_later(delay, self._acquire_again)
        else:
            self._acquire_again()

    def _acquire_again(self) -> None:
        self._again_timer = None
        if self._packed is not None:
            self._instance.memory.admit_again(self, self._packed.size)
        else:
            self._instance.pool.acquire(self)

    def _explained(self, error: UpstreamError) -> UpstreamError:
        """The same error, with the timer of the path that it looks like, if any."""
        connection = self._connection
        if error.processed is not Processed.MAYBE or connection is None or error.cause is FIRST_BYTE_TIMEOUT:
            return error
        now = self._instance.clock.now()
        hint = timers.looks_like(
            timers.Evidence(
                waited=now - self._sent_at,
                silent=now - connection.last_received,
                age=now - connection.born,
                requests=connection.requests,
                poll_seconds=headers.poll_seconds(self.request),
            )
        )
        if not hint:
            return error
        detail = f"{error.detail}; {hint}" if error.detail else hint
        return UpstreamError(error.cause, detail, processed=error.processed, code=error.code)

    def _leave_stream(self, code: int = CANCEL) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            self._left = True
            stream.reset(code)

    def _give_credit(self) -> None:
        size, self._uncredited = self._uncredited, 0
        held, self._held = self._held, 0
        if size or held:
            if size and self._stream is not None:
                self._stream.credit(size)
            self._instance.memory.let_go(self, size + held)

    def _answer(self, error: UpstreamError | DownstreamError) -> None:
        self.phase = Phase.DONE
        self.status = status_of(error.cause, self._instance.settings.permanent_status)
        client = self._client
        close = client.will_close
        program = self._instance.settings.program
        response = error_response(error, self.request, program, status=self.status, close=close)
        # The line in the log comes first: whoever has the answer finds it there.
        self._finish(error)
        client.answer(response, close)

    def _finish(self, error: UpstreamError | DownstreamError | None) -> None:
        instance = self._instance
        instance.first_byte.discard(self)
        instance.endings.discard(self)
        if error is not None:
            if self._client.owed is not self:
                self._give_credit()  # the client will not say that its socket took the rest
            instance.pool.cancel(self)
            if self._again_timer is not None:
                self._again_timer.cancel()
                self._again_timer = None
        if error is not None or self._body is not None:  # else it was released when the response began
            self._release_body()
        if not self._uncredited:
            self._stream = None
        instance.on_finished(self, error)

    def record(self, error: UpstreamError | DownstreamError | None) -> log.AccessRecord:
        """What the log says of it: no header, no body, no query value."""
        last = error or self._last_error
        upstream = last if isinstance(last, UpstreamError) else None
        return log.AccessRecord(
            ident=self.ident,
            method=self.request.method,
            path=self.request.target,
            status=499 if error is not None and error.cause is CLIENT_GONE else self.status or 0,
            upstream_status=self.upstream_status,
            attempts=self.attempts,
            connection_id=self._connection.ident if self._connection is not None else None,
            stream_id=self.stream_id,
            cause=last.cause.token if last is not None else None,
            detail=last.detail if last is not None else "",
            code=upstream.code if upstream is not None else None,
            processed=None if error is None else self._processed(error).value,
            elapsed=self._instance.clock.now() - self.started,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
        )

    def _processed(self, error: UpstreamError | DownstreamError) -> Processed:
        """Whether the upstream may have acted on it, by any of the attempts."""
        if self._left or self._lost_attempts:
            return Processed.MAYBE
        last = error if isinstance(error, UpstreamError) else self._last_error
        return Processed.NEVER_SENT if last is None else last.processed
