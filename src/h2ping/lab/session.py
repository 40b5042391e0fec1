"""One HTTP/2 connection, the origin's end (RFC 9113), written for scripts and for load.

Theory of operation
-------------------
1. The session owns frames, windows and stream ids. What a request gets is decided by its `Origin`: `admit`
   says whether a stream is taken, `execute` starts its answer, which writes through the `Reply` methods.
2. It is strict: a client that breaks the protocol is noted in the origin's `violations` and gets GOAWAY (a
   connection error) or RST_STREAM (a stream error), so that a test through a proxy shows the proxy's faults.
3. "Refused" is honest. A stream above the last id of a GOAWAY was never executed and never will be; a stream
   that ought to be refused by GOAWAY while a later one is already executed gets REFUSED_STREAM instead.
4. Streams send in turn, one DATA frame each, as far as the windows and the socket allow. Control frames are
   written at once, ahead of them.
5. Request bodies are counted and given credit for at once; DATA of streams that are gone counts too.
6. After the final GOAWAY the session reads on until its last stream ended, then closes.

It does not know: paths, delays, JSON, nor what a request's head must look like (head.py).
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Protocol, cast

import hpack

from h2ping.lab import frames
from h2ping.lab.call import Call
from h2ping.lab.frames import Code, Flag, FrameType, Setting
from h2ping.lab.head import RequestHead
from h2ping.lab.transports import abort

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from h2ping.lab.script import Fields, Script
    from h2ping.lab.trace import Scale
    from h2ping.lab.watch import Watch

WRITE_BATCH_BYTES = 262_144
"""One join and one write for this much DATA; the transport splits it into TLS records itself."""

_DRAIN_PING = b"lab-goaw"
_DRAIN_WAIT = 5.0
"""How long the first GOAWAY of two waits for its PING to come back, in seconds of the path."""


class Origin(Protocol):
    """What a session needs of its origin."""

    script: Script
    scale: Scale
    watch: Watch
    violations: list[str]
    goaways: int
    resets_seen: int
    peak_streams: int
    retirements: Counter[str]

    def admit(self, call: Call) -> str:
        """ "accept", "refuse" or "goaway", for a request whose head arrived."""

    def execute(self, call: Call) -> None:
        """The request is complete (or wants its answer early): start it."""

    def finished(self, call: Call, outcome: str) -> None:
        """The call is over, for better or worse."""

    def session_lost(self, session: Session) -> None:
        """The connection is gone."""


class Stream:
    """One stream: the request that comes in, and the `Reply` that goes out."""

    __slots__ = (
        "call", "closing", "declared", "id", "pending", "queued", "receive_window", "remote_done",
        "send_window", "session", "trailers", "unacknowledged", "verdict",
    )  # fmt: skip

    def __init__(self, session: Session, stream_id: int, declared: int | None) -> None:
        self.session = session
        self.id = stream_id
        self.call: Call
        self.verdict = "accept"
        self.declared = declared
        self.remote_done = False
        self.receive_window = session.script.stream_window
        self.unacknowledged = 0
        self.send_window = session.peer_window
        self.pending: deque[memoryview] = deque()
        self.queued = False
        self.closing = False
        self.trailers: Fields | None = None

    # --- Reply ---

    def interim(self, status: int, fields: Fields) -> None:
        self.session.send_headers(self.id, [(b":status", b"%d" % status), *fields], end=False)

    def head(self, status: int, fields: Fields) -> None:
        self.session.send_headers(self.id, [(b":status", b"%d" % status), *fields], end=False)

    def data(self, data: bytes) -> None:
        if data:
            self.pending.append(memoryview(data))
            self.session.send_soon(self)

    def end(self, trailers: Fields | None = None) -> None:
        self.closing = True
        self.trailers = trailers
        self.session.send_soon(self)

    def reset(self, code: int) -> None:
        self.session.reset(self.id, code)

    def cut(self, mode: str) -> None:
        self.session.close(mode)


class Session(asyncio.Protocol):
    """See the module's text. Tests drive a live one: `goaway`, `retire`, `ping`, `reset`, `close` ..."""

    def __init__(self, origin: Origin, number: int) -> None:
        self.origin = origin
        self.script = origin.script
        self.number = number
        self.transport: asyncio.Transport
        self.streams: dict[int, Stream] = {}
        self.requests = 0
        self.refused = 0
        self.pings: list[bytes] = []
        self.acks: list[bytes] = []
        self.log: list[tuple[str, int, int, int]] = []
        """Frames received, in order, as (type, flags, stream id, size), when `keep_frames` is set."""
        self.peer_settings: dict[int, int] = {}
        self.settings_acknowledged = 0
        self.last_id = 0
        self.executed_id = 0
        self.final_last: int | None = None
        """Last id of the final GOAWAY, once it was sent."""
        self.retiring = False
        self.closed = False
        self.peer_window = frames.DEFAULT_WINDOW_BYTES
        self.send_window = frames.DEFAULT_WINDOW_BYTES
        self._peer_frame = frames.DEFAULT_FRAME_BYTES
        self._receive_window = self.script.connection_window
        self._unacknowledged = 0
        self._rest = b""
        self._started = False
        self._block: tuple[int, int, bytearray] | None = None
        self._decoder = hpack.Decoder(max_header_list_size=1 << 20)
        self._encoder = hpack.Encoder()
        self._out: list[bytes] = []
        self._ready: deque[Stream] = deque()
        self._paused = False
        self._in_read = False
        self._flush_due = False
        self._timers: list[asyncio.TimerHandle] = []

    # --- the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        first = {
            Setting.MAX_CONCURRENT_STREAMS.value: self.script.max_streams,
            Setting.INITIAL_WINDOW_SIZE.value: self.script.stream_window,
            **self.script.settings,
        }
        self._out.append(frames.settings(first))
        if self.script.connection_window > frames.DEFAULT_WINDOW_BYTES:
            more = self.script.connection_window - frames.DEFAULT_WINDOW_BYTES
            self._out.append(frames.window_update(0, more))
        self._flush()
        if self.script.max_age:
            self._later(self.script.max_age, lambda: self.retire("age"))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        self.transport.close()  # Python 3.10's TLS transport warns when nobody said so, even when it is gone
        for timer in self._timers:
            timer.cancel()
        for stream in list(self.streams.values()):
            self._drop(stream, "lost")
        self._ready.clear()
        self.origin.session_lost(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def eof_received(self) -> bool:
        return False

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at = 0
        if not self._started:
            if len(data) < len(frames.PREFACE):
                self._rest = data
                return
            if not data.startswith(frames.PREFACE):
                self._broken(Code.PROTOCOL_ERROR, "no HTTP/2 preface")
                return
            self._started = True
            at = len(frames.PREFACE)
        size_of_all = len(data)
        self._in_read = True
        try:
            while size_of_all - at >= frames.FRAME_HEAD_BYTES and not self.closed:
                size, kind, flags, stream_id = frames.read_head(data, at)
                if size > frames.DEFAULT_FRAME_BYTES:
                    self._broken(Code.FRAME_SIZE_ERROR, f"frame of {size} bytes")
                    return
                end = at + frames.FRAME_HEAD_BYTES + size
                if end > size_of_all:
                    break
                self._on_frame(kind, flags, stream_id, data[at + frames.FRAME_HEAD_BYTES : end])
                at = end
        finally:
            self._in_read = False
        self._rest = data[at:]
        self._flush()

    # --- frames in ---

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self.script.keep_frames:
            name = FrameType(kind).name if kind <= FrameType.CONTINUATION else str(kind)
            self.log.append((name, flags, stream_id, len(payload)))
            self.origin.watch.changed()
        if self._block is not None and (kind != FrameType.CONTINUATION or stream_id != self._block[0]):
            self._broken(Code.PROTOCOL_ERROR, "a frame inside a header block")  # RFC 9113 section 6.10
        elif kind == FrameType.DATA:
            self._on_data(stream_id, flags, payload)
        elif kind == FrameType.HEADERS:
            fragment = frames.unpad(payload, flags, priority=bool(flags & Flag.PRIORITY))
            if fragment is None:
                self._broken(Code.PROTOCOL_ERROR, "padding longer than the frame")
                return
            self._block = (stream_id, flags, bytearray(fragment))
            if flags & Flag.END_HEADERS:
                self._on_block()
        elif kind == FrameType.CONTINUATION:
            if self._block is None:
                self._broken(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
                return
            self._block[2].extend(payload)
            if flags & Flag.END_HEADERS:
                self._on_block()
        elif kind == FrameType.SETTINGS:
            self._on_settings(flags, payload)
        elif kind == FrameType.PING:
            self._on_ping(flags, payload)
        elif kind == FrameType.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif kind == FrameType.RST_STREAM:
            self._on_rst_stream(stream_id, payload)
        elif kind == FrameType.GOAWAY:
            self.origin.watch.changed()
        elif kind == FrameType.PUSH_PROMISE:
            self._broken(Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _on_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < 0:
            self._broken(Code.FLOW_CONTROL_ERROR, "DATA beyond the connection's window")
            return
        stream = self.streams.get(stream_id)
        if self.script.give_credit:
            self._unacknowledged += size
            if self._unacknowledged * 2 >= self.script.connection_window:
                self._out.append(frames.window_update(0, self._unacknowledged))
                self._receive_window += self._unacknowledged
                self._unacknowledged = 0
        if stream is None:
            if stream_id > self.last_id:
                self._broken(Code.PROTOCOL_ERROR, f"DATA on idle stream {stream_id}")
            return  # reset, refused or finished here; the client could not know yet
        if stream.remote_done:
            self._stream_error(stream, Code.STREAM_CLOSED, "DATA after END_STREAM")
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            self._stream_error(stream, Code.FLOW_CONTROL_ERROR, "DATA beyond the stream's window")
            return
        data: bytes | None = payload
        if flags & Flag.PADDED:
            data = frames.unpad(payload, flags, priority=False)
            if data is None:
                self._broken(Code.PROTOCOL_ERROR, "padding longer than the frame")
                return
        assert data is not None
        stream.call.take(data)
        if flags & Flag.END_STREAM:
            self._on_request_end(stream)
        elif self.script.give_credit:
            stream.unacknowledged += size
            if stream.unacknowledged * 2 >= self.script.stream_window:
                self._out.append(frames.window_update(stream_id, stream.unacknowledged))
                stream.receive_window += stream.unacknowledged
                stream.unacknowledged = 0

    def _on_block(self) -> None:
        assert self._block is not None
        stream_id, flags, block = self._block
        self._block = None
        try:
            decoded = self._decoder.decode(bytes(block), raw=True)
        except hpack.HPACKError as error:
            self._broken(Code.COMPRESSION_ERROR, f"HPACK: {error}")
            return
        fields = [(bytes(name), bytes(value)) for name, value in decoded]
        stream = self.streams.get(stream_id)
        if stream is not None:
            if stream.remote_done or not flags & Flag.END_STREAM:
                self._stream_error(stream, Code.PROTOCOL_ERROR, "a second head")
            else:
                self._on_request_end(stream)  # trailers
        elif stream_id <= self.last_id:
            return  # trailers of a stream that is gone here
        elif stream_id % 2 == 0:
            self._broken(Code.PROTOCOL_ERROR, f"stream id {stream_id}")
        else:
            self.last_id = stream_id
            self._open(stream_id, fields, end=bool(flags & Flag.END_STREAM))

    def _open(self, stream_id: int, fields: Fields, *, end: bool) -> None:
        if self.final_last is not None and stream_id > self.final_last:
            return  # RFC 9113 section 6.8: ignored, and the client knows
        if len(self.streams) >= self.script.max_streams:
            if self.settings_acknowledged:
                self.origin.violations.append(f"more than {self.script.max_streams} streams")
            self.refused += 1
            self._out.append(frames.rst_stream(stream_id, Code.REFUSED_STREAM))
            return
        try:
            head = RequestHead.of(fields)
        except ValueError as fault:
            self.origin.violations.append(str(fault))
            self._out.append(frames.rst_stream(stream_id, Code.PROTOCOL_ERROR))
            return
        stream = Stream(self, stream_id, head.content_length)
        stream.call = Call(
            stream, connection=self.number, stream_id=stream_id, method=head.method, path=head.path,
            fields=fields, steer=head.steer,
        )  # fmt: skip
        self.streams[stream_id] = stream
        self.origin.peak_streams = max(self.origin.peak_streams, len(self.streams))
        self.requests += 1
        stream.verdict = self.origin.admit(stream.call)
        if stream.verdict != "accept" and (end or self.script.refuse_at == "head"):
            self._refuse(stream)
        elif end:
            self._on_request_end(stream)
        elif stream.call.steer.early:
            self._execute(stream)
        if self.script.max_requests and self.requests >= self.script.max_requests:
            self.retire("requests")

    def _on_request_end(self, stream: Stream) -> None:
        stream.remote_done = True
        stream.call.complete = True
        if stream.declared is not None and stream.declared != stream.call.received:
            self._stream_error(stream, Code.PROTOCOL_ERROR, "content-length and DATA differ")
        elif stream.verdict != "accept":
            self._refuse(stream)
        elif not stream.call.executed:
            self._execute(stream)
        else:
            self._forget_if_done(stream)

    def _execute(self, stream: Stream) -> None:
        self.executed_id = max(self.executed_id, stream.id)
        self.origin.execute(stream.call)

    def _refuse(self, stream: Stream) -> None:
        self.refused += 1
        if stream.verdict == "goaway" and self.executed_id < stream.id and not self.retiring:
            self.retiring = True
            self.goaway(max(0, stream.id - 2), Code.NO_ERROR)
        else:
            self.origin.finished(stream.call, "refused")
            self._out.append(frames.rst_stream(stream.id, Code.REFUSED_STREAM))
            self._remove(stream)

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & Flag.ACK:
            self.settings_acknowledged += 1
            self.origin.watch.changed()
            return
        for key, value in frames.read_settings(payload):
            self.peer_settings[key] = value
            if key == Setting.INITIAL_WINDOW_SIZE:
                change = value - self.peer_window
                self.peer_window = value
                for stream in self.streams.values():  # RFC 9113 section 6.9.2
                    stream.send_window += change
                    self.send_soon(stream)
            elif key == Setting.MAX_FRAME_SIZE:
                self._peer_frame = value
            elif key == Setting.HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, 4096)
        self._out.append(frames.frame(FrameType.SETTINGS, Flag.ACK, 0))
        self.origin.watch.changed()

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            self._broken(Code.FRAME_SIZE_ERROR, "PING of another size than 8")
        elif flags & Flag.ACK:
            self.acks.append(payload)
            if payload == _DRAIN_PING:
                self._finish_goaway()
        else:
            self.pings.append(payload)
            if not self.script.ignore_pings:
                answer = frames.ping(payload, ack=True)
                if self.script.ack_delay:
                    self._later(self.script.ack_delay, lambda: self.send_raw(answer))
                else:
                    self._out.append(answer)
        self.origin.watch.changed()

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        increment = frames.read_u32(payload) & frames.MAX_STREAM_ID
        if stream_id == 0:
            self.send_window += increment
            if not increment or self.send_window > frames.MAX_STREAM_ID:
                self._broken(Code.FLOW_CONTROL_ERROR, "connection window past 2^31-1, or by nothing")
            return
        stream = self.streams.get(stream_id)
        if stream is not None:
            stream.send_window += increment
            if not increment or stream.send_window > frames.MAX_STREAM_ID:
                self._stream_error(stream, Code.FLOW_CONTROL_ERROR, "window past 2^31-1, or by nothing")
            else:
                self.send_soon(stream)

    def _on_rst_stream(self, stream_id: int, payload: bytes) -> None:
        if stream_id > self.last_id:
            self._broken(Code.PROTOCOL_ERROR, f"RST_STREAM on idle stream {stream_id}")
            return
        self.origin.resets_seen += 1
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._drop(stream, "cancelled")
        self._close_if_drained()
        self.origin.watch.changed()

    # --- frames out ---

    def send_headers(self, stream_id: int, fields: Fields, *, end: bool) -> None:
        """HEADERS and as many CONTINUATION frames as it takes."""
        block = self._encoder.encode(fields)
        flags = Flag.END_STREAM if end else Flag.NONE
        kind = FrameType.HEADERS
        while True:
            part, block = block[: self._peer_frame], block[self._peer_frame :]
            last = Flag.NONE if block else Flag.END_HEADERS
            self._out.append(frames.frame(kind, flags | last, stream_id, part))
            if not block:
                break
            kind, flags = FrameType.CONTINUATION, Flag.NONE
        self._flush_soon()

    def send_soon(self, stream: Stream) -> None:
        """The stream has something to send, or room again: give it its turn."""
        if not stream.queued and (stream.pending or stream.closing):
            stream.queued = True
            self._ready.append(stream)
        self._flush_soon()

    def send_raw(self, data: bytes) -> None:
        """Any bytes at all."""
        self._out.append(data)
        self._flush()

    def ping(self, data: bytes) -> None:
        """PING the client; its answer lands in `acks`."""
        self.send_raw(frames.ping(data))

    def send_settings(self, values: dict[int, int]) -> None:
        """Further SETTINGS, such as a smaller MAX_CONCURRENT_STREAMS."""
        self.send_raw(frames.settings(values))

    def reset(self, stream_id: int, code: int) -> None:
        """RST_STREAM, behind as much of what is queued as can go now; the rest is dropped."""
        self._flush()
        self._out.append(frames.rst_stream(stream_id, code))
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._remove(stream)
        self._flush()
        self._close_if_drained()

    def retire(self, reason: str = "asked") -> None:
        """Begin to close as a balancer does: GOAWAY now, FIN when the last stream ended."""
        if self.retiring or self.closed:
            return
        self.retiring = True
        self.origin.retirements[reason] += 1
        if self.script.goaway_style == "one-step":
            self.goaway(self.last_id, Code.NO_ERROR)
            return
        self.origin.goaways += 1
        self.send_raw(frames.goaway(frames.MAX_STREAM_ID, Code.NO_ERROR) + frames.ping(_DRAIN_PING))
        self._later(_DRAIN_WAIT, self._finish_goaway)

    def _finish_goaway(self) -> None:
        if self.final_last is None and self.retiring:
            self.goaway(self.last_id, Code.NO_ERROR, counted=False)

    def goaway(self, last: int, code: int, debug: bytes = b"", *, counted: bool = True) -> None:
        """The final GOAWAY: streams above `last` are gone here, the others go on; then FIN."""
        self.retiring = True
        self.final_last = last if self.final_last is None else min(last, self.final_last)
        self.origin.goaways += counted
        self._out.append(frames.goaway(last, code, debug))
        for stream in [stream for stream in self.streams.values() if stream.id > last]:
            self._drop(stream, "goaway")
        self._flush()
        self._close_if_drained()

    def close(self, mode: str = "fin") -> None:
        """End the connection now: "fin" (with close_notify) or "rst"."""
        self._flush()
        if mode == "rst":
            linger_zero(self.transport)
            abort(self.transport)
        else:
            self.transport.close()

    def pause_reading(self) -> None:
        """Stop reading the socket, so that the client's writes block."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self.transport.resume_reading()

    def _flush_soon(self) -> None:
        """One write per turn of the loop: a head, a body and its end leave together."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        if self._in_read or self.closed:
            return  # one write at the end of the read
        while True:
            budget = WRITE_BATCH_BYTES
            while self._ready and budget > 0 and self.send_window > 0 and not self._paused:
                budget -= self._send_some(self._ready.popleft())
            if not self._out:
                return
            data = b"".join(self._out)
            self._out.clear()
            self.transport.write(data)
            if not self._ready or self._paused or self.send_window <= 0:
                return

    def _send_some(self, stream: Stream) -> int:
        """One DATA frame of `stream`, or its end; returns the bytes sent."""
        stream.queued = False
        size = 0
        if stream.pending:
            first = stream.pending[0]
            size = min(len(first), stream.send_window, self.send_window, frames.DEFAULT_FRAME_BYTES)
            if size <= 0:
                return 0  # its WINDOW_UPDATE puts it back
            if size == len(first):
                stream.pending.popleft()
            else:
                stream.pending[0] = first[size:]
            last = stream.closing and not stream.pending and stream.trailers is None
            flags = Flag.END_STREAM if last else Flag.NONE
            self._out.append(frames.frame_head(size, FrameType.DATA, flags, stream.id))
            self._out.append(bytes(first[:size]))
            stream.send_window -= size
            self.send_window -= size
            if not last:
                if stream.pending or stream.closing:
                    stream.queued = True
                    self._ready.append(stream)
                return size
        elif stream.trailers is not None:
            block = self._encoder.encode(stream.trailers)
            flags = Flag.END_STREAM | Flag.END_HEADERS
            self._out.append(frames.frame(FrameType.HEADERS, flags, stream.id, block))
        else:
            self._out.append(frames.frame(FrameType.DATA, Flag.END_STREAM, stream.id))
        self.origin.finished(stream.call, "answered")
        if not stream.remote_done and stream.call.steer.early == "reset":
            self._out.append(frames.rst_stream(stream.id, Code.NO_ERROR))  # RFC 9113 section 8.1
            self._remove(stream)
        else:
            self._forget_if_done(stream)
        return size

    # --- books ---

    def _forget_if_done(self, stream: Stream) -> None:
        if stream.remote_done and stream.closing and not stream.pending and stream.call.outcome == "answered":
            self._remove(stream)
            self._close_if_drained()

    def _remove(self, stream: Stream) -> None:
        stream.pending.clear()
        stream.closing = False
        self.streams.pop(stream.id, None)

    def _drop(self, stream: Stream, outcome: str) -> None:
        self._remove(stream)
        if stream.call.task is not None:
            stream.call.task.cancel()
        self.origin.finished(stream.call, outcome)

    def _close_if_drained(self) -> None:
        if self.final_last is not None and not self.streams and not self.closed:
            asyncio.get_running_loop().call_soon(self._close_drained)

    def _close_drained(self) -> None:
        if not self.closed and not self.streams:
            self._flush()
            self.transport.close()

    def _stream_error(self, stream: Stream, code: Code, what: str) -> None:
        self.origin.violations.append(f"stream {stream.id}: {what}")
        self._out.append(frames.rst_stream(stream.id, code))
        self._drop(stream, "reset")

    def _broken(self, code: Code, what: str) -> None:
        self.origin.violations.append(what)
        self._out.append(frames.goaway(self.last_id, code, what.encode()))
        self._in_read = False
        self._flush()
        self.closed = True
        self.transport.close()

    def _later(self, delay: float, action: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(self.origin.scale.of(delay), action))


def linger_zero(transport: asyncio.BaseTransport) -> None:
    """Make the close of this socket an RST instead of a FIN."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
