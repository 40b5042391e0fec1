"""The plain engine: HTTP/2 by h2's public API, correct and slow; oracle and fallback of the compiled one.

Theory of operation
-------------------
1. `splitter` makes frames of the peer's bytes and refuses those of wrong form. This file decides what a frame
   may do to a stream. Only what passes both reaches h2, frame by frame; an error that h2 still finds is the
   connection's.
2. h2 keeps settings, stream states, flow-control windows, PING and the encoder. It never sees GOAWAY in
   either direction (it closes its machine on any), PRIORITY (it kills the connection over a dependency),
   PUSH_PROMISE, or frames on streams that are over (it answers each of them with RST_STREAM).
3. Field blocks are decoded here, so that a malformed response is its stream's fault only (`response`); h2
   gets a stand-in block that moves its state along.
4. What has arrived for a stream that is over, and all padding, goes back to the connection's window at once.
   Bytes handed to a receiver go back when it credits them, or all at once when the stream is reset or fails.
5. Control frames and HEADERS wait in one queue in the order they were made; DATA is made only in
   `take_output`, behind them, stream by stream in turn.
6. A stream leaves the table before its receiver or the owner hears of its end, so that both may open another.

This module knows neither sockets nor time.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from h2ping.errors import (
    FLOOD,
    GOAWAY_REFUSED,
    MALFORMED_RESPONSE,
    PROTOCOL_ERROR,
    RESPONSE_HEAD_TOO_LARGE,
    STREAM_REFUSED,
    STREAM_RESET,
    Processed,
    UpstreamError,
)
from h2ping.upstream import splitter
from h2ping.upstream.blocks import BlockDecoder, BlockEncoder, field_tuples
from h2ping.upstream.plain_stream import PlainStream
from h2ping.upstream.response import Malformed, content_length, read_head, read_trailers
from h2ping.upstream.splitter import ACK, END_STREAM, ConnectionFault, ErrorCode, Frame, Splitter, build_frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping.upstream.wire import Fields, Receiver, RequestBody, WireLimits, WireOwner

RECEIVE_BYTES = 64 << 10
OUTPUT_BYTES = 64 << 10
"""DATA that one `take_output` hands out: small enough that a PING queued behind it is soon sent."""
DATA_BYTES = 16_375
"""Content of one DATA frame: with its header it fills one TLS record, whatever more the peer would take."""
UNSEEN_CREDIT_BYTES = 16 << 10
"""Credit for frames on streams that are over, collected before it is sent: a frame for every frame is too
many."""
CUT_STREAMS = 1000
"""Streams we ended that are remembered: no peer needs more of them to hear of a reset."""
LAST_STREAM_ID = 2**31 - 1
NO_LIMIT = 2**31 - 1

# Stand-ins for the peer's field blocks (rule 3): a static entry, literals that leave the table alone.
_FINAL_BLOCK = b"\x88"
_INTERIM_BLOCK = b"\x08\x03103"
_TRAILER_BLOCK = b"\x00\x01t\x00"


class PlainWire:
    """One connection (h2ping.upstream.wire.Wire)."""

    def __init__(self, owner: WireOwner, limits: WireLimits) -> None:
        self.limits = limits
        self.max_streams = NO_LIMIT
        self.open_streams = 0
        self.settled = False
        self._owner = owner
        self._splitter = Splitter(limits)
        self._decoder = BlockDecoder()
        self._h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(
                client_side=True,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
                validate_inbound_headers=False,
                normalize_inbound_headers=False,
            )
        )
        self._h2.encoder = BlockEncoder()
        self._streams: dict[int, PlainStream] = {}
        self._cut: dict[int, None] = {}
        """Ids of the last streams that we ended: frames for them may be on their way."""
        self._turns: deque[PlainStream] = deque()
        """Streams that upload, in the order of their next DATA frame."""
        self._control = bytearray()
        self._buffer = bytearray()
        self._answered = 0
        """Bytes of answers queued since the transport last took some."""
        self._patience = limits.max_idle_frames * limits.frame_worth_bytes
        """What is left of limits.max_idle_frames, in bytes."""
        self._unseen = 0
        self._last_taken = 0
        """Highest stream id whose HEADERS were handed out."""
        self._promised = 0
        """Highest stream id the peer has promised."""
        self._acknowledged = False
        """The peer has our SETTINGS, so it knows that it may not push."""
        self._draining = False
        self._dead = False
        self._held = False
        self._signalled = False
        self._frame_readers: dict[int, Callable[[Frame], None]] = {
            splitter.DATA: self._receive_data,
            splitter.HEADERS: self._receive_headers,
            splitter.PRIORITY: self._receive_priority,
            splitter.RST_STREAM: self._receive_reset,
            splitter.SETTINGS: self._receive_settings,
            splitter.PUSH_PROMISE: self._receive_promise,
            splitter.PING: self._receive_ping,
            splitter.GOAWAY: self._receive_goaway,
            splitter.WINDOW_UPDATE: self._receive_window_update,
        }

    # --- the owner's calls

    @property
    def can_open(self) -> bool:
        """See Wire."""
        return (
            self.settled
            and not self._draining
            and not self._dead
            and self._h2.highest_outbound_stream_id + 2 <= LAST_STREAM_ID
        )

    def start(self) -> None:
        """See Wire."""
        code = h2.settings.SettingCodes
        # Set as initial values: h2 overwrites what `update_settings` says before `initiate_connection`.
        self._h2.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                code.ENABLE_PUSH: 0,
                code.INITIAL_WINDOW_SIZE: self.limits.stream_window_bytes,
                code.MAX_HEADER_LIST_SIZE: self.limits.max_field_section_bytes,
            },
        )
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(self.limits.connection_window_bytes - 65_535)
        self._queue()
        self.signal()

    def receive_buffer(self, least: int = 0) -> memoryview:
        """See Wire."""
        if len(self._buffer) < max(least, RECEIVE_BYTES):
            self._buffer = bytearray(max(least, RECEIVE_BYTES))
        return memoryview(self._buffer)

    def received(self, size: int) -> None:
        """See Wire."""
        data = bytes(memoryview(self._buffer)[:size])
        self._buffer = bytearray()  # idle connections hold none
        self.receive(data)

    def receive(self, data: bytes) -> None:
        """See Wire."""
        if self._dead:
            return
        self._splitter.feed(data)
        try:
            while not self._dead and (frame := self._splitter.next()) is not None:
                self._receive_frame(frame)
        except ConnectionFault as fault:
            self._dead = True
            self._control += _goaway(fault.code)
            raise UpstreamError(fault.cause, fault.detail, code=fault.code) from None
        finally:
            self.signal()

    def open(self, fields: Fields, body: RequestBody | None, receiver: Receiver) -> PlainStream:
        """See Wire."""
        assert self.can_open, "open() on a Wire that takes no streams"
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream_id, field_tuples(fields), end_stream=body is None)
        self._queue()
        stream = PlainStream(self, stream_id, body, receiver, head=(b":method", b"HEAD") in fields)
        self._streams[stream_id] = stream
        self.open_streams += 1
        self._patience += self.limits.frames_a_stream * self.limits.frame_worth_bytes
        if body is not None:
            self._turns.append(stream)
        self.signal()
        return stream

    def ping(self, payload: bytes) -> None:
        """See Wire."""
        if not self._dead:
            self._h2.ping(payload)
            self._queue()
            self.signal()

    def goaway(self, code: int) -> None:
        """See Wire."""
        if not self._dead:
            self._draining = True
            self._control += _goaway(code)
            self.signal()

    def abandon(self, error: UpstreamError) -> None:
        """See Wire."""
        self._dead = True
        defect: Exception | None = None
        for stream in list(self._streams.values()):
            if stream.over:
                continue  # reset by a receiver that heard before it
            self._leave(stream)
            try:
                if not stream.complete:
                    never = UpstreamError(error.cause, error.detail, processed=Processed.NEVER_SENT)
                    stream.receiver.on_failed(error if stream.id <= self._last_taken else never)
                self._owner.on_stream_closed()
            except Exception as raised:  # a receiver's own; every other one must hear all the same
                defect = defect or raised
        if defect is not None:
            raise defect

    # --- output

    def hold_data(self, held: bool) -> None:
        """See Wire."""
        self._held = held
        if not held:
            self._answered = 0
            self.signal()

    def take_output(self) -> list[memoryview | bytes]:
        """See Wire."""
        output: list[memoryview | bytes] = []
        if self._control:
            output.append(bytes(self._control))
            self._control.clear()
            self._last_taken = self._h2.highest_outbound_stream_id
        if not self._held:
            self._answered = 0
            self._take_data(output)
        self._signalled = False
        self.signal()
        return output

    def _take_data(self, output: list[memoryview | bytes]) -> None:
        budget = OUTPUT_BYTES
        moved: dict[PlainStream, None] = {}
        blocked = 0
        while budget > 0 and blocked < len(self._turns) and not self._dead:
            stream = self._turns.popleft()
            size = self._make_frame(stream)
            if size is None:
                blocked += 1
            else:
                blocked = 0
                budget -= size
                moved[stream] = None
                output.append(self._h2.data_to_send())
            if not stream.upload_done:
                self._turns.append(stream)
        # Afterwards: the body's owner may react with calls into this Wire.
        for stream in moved:
            if stream.body is not None:
                stream.body.sent_to(stream.sent)
            if stream.upload_done and not stream.over:
                if stream.complete:
                    self._leave(stream)
                    self._owner.on_stream_closed()
                else:
                    stream.receiver.on_upload_done()

    def _make_frame(self, stream: PlainStream) -> int | None:
        """Let h2 write the stream's next frame; its content size, or None when nothing may be sent now."""
        body = stream.body
        assert body is not None
        if not stream.has_output():
            return None
        left = body.received - stream.sent
        if left == 0:
            self._end_upload(stream)
            return 0
        size = min(left, DATA_BYTES, self._h2.local_flow_control_window(stream.id))
        if size <= 0:
            return None
        content = body.peek(stream.sent, size)
        size = len(content)
        stream.sent += size
        answers = 2 * self.limits.frame_worth_bytes
        self._patience += answers if size < answers and stream.sent == body.received else size
        last = body.complete and stream.sent == body.received and not body.trailers
        self._h2.send_data(stream.id, content, end_stream=last)
        stream.upload_done = last
        return size

    def _end_upload(self, stream: PlainStream) -> None:
        trailers = stream.body.trailers if stream.body is not None else None
        if trailers:
            self._h2.send_headers(stream.id, field_tuples(trailers), end_stream=True)
        else:
            self._h2.end_stream(stream.id)
        stream.upload_done = True

    def signal(self) -> None:
        """Tell the owner, once, that there is output."""
        if not self._signalled and self._has_output():
            self._signalled = True
            self._owner.on_output()

    def _has_output(self) -> bool:
        if self._control:
            return True
        if self._held or self._dead:
            return False
        return any(
            stream.has_output()
            and (
                stream.body is None
                or stream.body.received == stream.sent
                or self._h2.local_flow_control_window(stream.id) > 0
            )
            for stream in self._turns
        )

    def _queue(self) -> None:
        self._control += self._h2.data_to_send()

    # --- streams

    def reset_stream(self, stream: PlainStream, code: int) -> None:
        """RST_STREAM; the receiver hears nothing more."""
        self._leave(stream)
        if not self._dead:
            self._remember_cut(stream)
            self._h2.reset_stream(stream.id, code)
            self._queue()
            self._forgive(stream)
        self._owner.on_stream_closed()
        self.signal()

    def give_credit(self, stream: PlainStream, size: int) -> None:
        """Content bytes back to the windows of the connection and, while it is open, the stream."""
        if not self._dead:
            self._h2.acknowledge_received_data(size, stream.id)
            self._queue()
            self.signal()

    def widen_stream(self, stream: PlainStream, size: int) -> None:
        """A larger window for the stream."""
        if not self._dead:
            self._h2.increment_flow_control_window(size, stream.id)
            self._queue()
            self.signal()

    def _remember_cut(self, stream: PlainStream) -> None:
        self._cut[stream.id] = None
        if len(self._cut) > CUT_STREAMS:
            del self._cut[next(iter(self._cut))]

    def _leave(self, stream: PlainStream) -> None:
        """Take the stream off the table (rule 6)."""
        stream.over = stream.upload_done = True
        del self._streams[stream.id]
        self.open_streams -= 1
        if stream in self._turns:
            self._turns.remove(stream)

    def _forgive(self, stream: PlainStream) -> None:
        """Give the connection what the receiver still owes, now that it will not (rule 4)."""
        if stream.owed:
            self._h2.acknowledge_received_data(stream.owed, stream.id)
            self._queue()
            stream.owed = 0

    def _fail_stream(self, stream: PlainStream, code: int | None, error: UpstreamError) -> None:
        """End the stream by our own RST_STREAM(code), or without one when the peer has closed it."""
        self._leave(stream)
        if code is not None:
            self._remember_cut(stream)
            self._h2.reset_stream(stream.id, code)
            self._queue()
        self._forgive(stream)
        if not stream.complete:
            stream.receiver.on_failed(error)
        self._owner.on_stream_closed()

    def _malformed(self, stream: PlainStream, detail: str) -> None:
        self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR, UpstreamError(MALFORMED_RESPONSE, detail))

    def _finish(self, stream: PlainStream) -> bool:
        """The peer's END_STREAM has arrived.

        True when that closes the stream, which is then off the table.
        """
        stream.complete = True
        if stream.upload_done:
            self._leave(stream)
            return True
        return False

    # --- frames

    def _receive_frame(self, frame: Frame) -> None:
        if not self.settled and (frame.type != splitter.SETTINGS or frame.flags & ACK):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS is not the first frame")  # section 3.4
        self._count_frame(len(frame.payload) if frame.type == splitter.DATA else 0)
        reader = self._frame_readers.get(frame.type)
        if reader is not None:  # unknown types are ignored (section 5.5)
            reader(frame)

    def _count_frame(self, size: int) -> None:
        """One more frame of the peer, with `size` bytes of a body (limits.max_idle_frames)."""
        worth = self.limits.frame_worth_bytes
        most = self.limits.max_idle_frames + self.limits.frames_a_stream * self.open_streams
        if size:
            size += self.limits.content_worth_bytes
        self._patience = min(self._patience + size, most * worth) - worth
        if self._patience < 0:
            self._patience += worth * self._owner.more_idle_frames()
            if self._patience < 0:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "frames that carry next to nothing", FLOOD)

    def _pass_on(self, data: bytes) -> list[Any]:
        """Give h2 a frame and queue what it answers."""
        try:
            events: list[Any] = self._h2.receive_data(data)
        except h2.exceptions.ProtocolError as error:
            self._h2.data_to_send()  # its own GOAWAY: ours is the same and there is one place for it
            raise ConnectionFault(int(error.error_code), str(error)) from error
        self._queue()
        return events

    def _find(self, frame: Frame) -> PlainStream | None:
        """The frame's stream; None when it is over. Idle streams are a fault (section 5.1)."""
        stream = self._streams.get(frame.stream_id)
        if stream is None and self._is_idle(frame.stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"frame of type {frame.type} on an idle stream")
        return stream

    def _is_idle(self, stream_id: int) -> bool:
        if stream_id % 2:
            return stream_id > self._h2.highest_outbound_stream_id
        return stream_id > self._promised

    def _credit_unseen(self, size: int) -> None:
        """Give the connection's window back bytes that h2 takes no account of any more.

        h2 would count them again, or answer with RST_STREAM; a WINDOW_UPDATE past it keeps both sides' sums
        right.
        """
        self._unseen += size
        if self._unseen >= UNSEEN_CREDIT_BYTES:
            self._control += build_frame(splitter.WINDOW_UPDATE, 0, 0, self._unseen.to_bytes(4, "big"))
            self._unseen = 0

    def _receive_data(self, frame: Frame) -> None:
        stream = self._find(frame)
        flow_size = len(frame.raw) - 9
        if stream is None or stream.complete:
            self._credit_unseen(flow_size)
            self._after_end(stream, frame)
            return
        end = bool(frame.flags & END_STREAM)
        stream.seen += len(frame.payload)
        detail = stream.wrong_content(end)
        if detail:
            self._credit_unseen(flow_size)
            self._malformed(stream, detail)
            return
        self._pass_on(frame.raw)
        if flow_size > len(frame.payload):
            self._h2.acknowledge_received_data(flow_size - len(frame.payload), stream.id)
            self._queue()
        over = self._finish(stream) if end else False
        if frame.payload:
            stream.owed += len(frame.payload)
            stream.receiver.on_data(frame.payload)
        # The receiver may have reset the stream while it took the bytes.
        if end and not stream.muted:
            stream.receiver.on_end(None)
        if over:
            self._owner.on_stream_closed()

    def _receive_headers(self, frame: Frame) -> None:
        fields = self._decoder.fields(
            frame.payload
        )  # of any stream: the table is the connection's (section 4.3)
        stream = self._find(frame)
        if stream is None or stream.complete:
            self._after_end(stream, frame)
            return
        # RFC 9113 section 6.5.2: as SETTINGS_MAX_HEADER_LIST_SIZE counts.
        if sum(len(name) + len(value) + 32 for name, value in fields) > self.limits.max_field_section_bytes:
            error = UpstreamError(
                RESPONSE_HEAD_TOO_LARGE, "a field section over SETTINGS_MAX_HEADER_LIST_SIZE"
            )
            self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR, error)  # as if malformed (section 10.5.1)
            return
        end = bool(frame.flags & END_STREAM)
        try:
            if stream.responded:
                self._receive_trailers(stream, fields, end)
            else:
                self._receive_head(stream, fields, end)
        except Malformed as malformed:
            self._malformed(stream, str(malformed))

    def _receive_head(self, stream: PlainStream, fields: Fields, end: bool) -> None:
        status, regular = read_head(fields)
        if status < 200:
            self._receive_interim(stream, status, regular, end)
            return
        stream.expected = content_length(status, regular, stream.head_request)
        if end and stream.expected:
            raise Malformed("content-length without content")
        flags = splitter.END_HEADERS | (END_STREAM if end else 0)
        self._pass_on(build_frame(splitter.HEADERS, flags, stream.id, _FINAL_BLOCK))
        stream.responded = True
        over = self._finish(stream) if end else False
        stream.receiver.on_response(status, regular, end)
        if over:
            self._owner.on_stream_closed()

    def _receive_interim(self, stream: PlainStream, status: int, regular: Fields, end: bool) -> None:
        if end:
            raise Malformed("END_STREAM on an interim response")  # section 8.1
        stream.begun = True
        self._pass_on(build_frame(splitter.HEADERS, splitter.END_HEADERS, stream.id, _INTERIM_BLOCK))
        stream.receiver.on_interim(status, regular)

    def _receive_trailers(self, stream: PlainStream, fields: Fields, end: bool) -> None:
        if not end:
            raise Malformed("a second field section without END_STREAM")
        trailers = read_trailers(fields)
        if stream.expected is not None and stream.seen != stream.expected:
            raise Malformed("less content than content-length")
        self._pass_on(
            build_frame(splitter.HEADERS, splitter.END_HEADERS | END_STREAM, stream.id, _TRAILER_BLOCK)
        )
        over = self._finish(stream)
        stream.receiver.on_end(trailers)
        if over:
            self._owner.on_stream_closed()

    def _after_end(self, stream: PlainStream | None, frame: Frame) -> None:
        """DATA or HEADERS where none may come any more: STREAM_CLOSED, of the stream (section 5.1).

        On a stream that we ended they were on their way, and are dropped.
        """
        if stream is not None:
            error = UpstreamError(PROTOCOL_ERROR, "a frame after END_STREAM")
            self._fail_stream(stream, ErrorCode.STREAM_CLOSED, error)
        elif frame.stream_id % 2 and frame.stream_id not in self._cut:
            code = ErrorCode.STREAM_CLOSED.to_bytes(4, "big")
            self._control += build_frame(splitter.RST_STREAM, 0, frame.stream_id, code)
            self._count_answer(13)

    def _receive_priority(self, frame: Frame) -> None:
        """Ignored but for its length (RFC 9113 sections 5.3.2 and 6.3)."""
        if len(frame.payload) == 5:
            return
        stream = self._streams.get(frame.stream_id)
        detail = f"PRIORITY of {len(frame.payload)} bytes"
        if stream is None:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, detail)
        self._fail_stream(stream, ErrorCode.FRAME_SIZE_ERROR, UpstreamError(PROTOCOL_ERROR, detail))

    def _receive_reset(self, frame: Frame) -> None:
        stream = self._find(frame)
        if stream is None:
            return
        self._pass_on(frame.raw)
        code = int.from_bytes(frame.payload, "big")
        if code == ErrorCode.REFUSED_STREAM and not stream.responded and not stream.begun:
            error = UpstreamError(STREAM_REFUSED, processed=Processed.REFUSED, code=code)
        else:
            error = UpstreamError(STREAM_RESET, code=code)
        self._fail_stream(stream, None, error)

    def _receive_settings(self, frame: Frame) -> None:
        if frame.flags & ACK:
            self._acknowledged = True
            self._pass_on(frame.raw)
            return
        for at in range(0, len(frame.payload), 6):
            setting = int.from_bytes(frame.payload[at : at + 2], "big")
            value = int.from_bytes(frame.payload[at + 2 : at + 6], "big")
            if setting == 1:
                # hyperframe keeps the last of several; the encoder must tell the smallest (RFC 7541 section
                # 4.2).
                self._h2.encoder.header_table_size = value
            if setting == 2 and value != 0:  # section 6.5.2
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH of a server")
        # h2 4.4 keeps closed streams until this is asked, and would change their windows, too.
        _ = self._h2.open_outbound_streams
        self._pass_on(frame.raw)
        self._count_answer(9)
        self.settled = True
        self.max_streams = min(self._h2.remote_settings.max_concurrent_streams, NO_LIMIT)
        self._owner.on_settings()

    def _receive_promise(self, frame: Frame) -> None:
        """PUSH_PROMISE: forbidden once the peer has acknowledged SETTINGS_ENABLE_PUSH=0 (section 6.6)."""
        if self._acknowledged:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE although push is off")
        self._decoder.fields(frame.payload)
        self._find(frame)
        if frame.promised_id % 2 or frame.promised_id <= self._promised:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE of a stream that cannot be promised"
            )
        self._promised = frame.promised_id
        answer = ErrorCode.REFUSED_STREAM.to_bytes(4, "big")
        self._control += build_frame(splitter.RST_STREAM, 0, frame.promised_id, answer)
        self._count_answer(13)

    def _receive_ping(self, frame: Frame) -> None:
        self._pass_on(frame.raw)
        if frame.flags & ACK:
            self._owner.on_ping_ack(frame.payload)
        else:
            self._count_answer(17)

    def _count_answer(self, size: int) -> None:
        self._answered += size
        if self._answered > self.limits.max_queued_control_bytes:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "answers that the peer does not read", FLOOD)

    def _receive_goaway(self, frame: Frame) -> None:
        last = int.from_bytes(frame.payload[:4], "big") & 0x7FFFFFFF
        code = int.from_bytes(frame.payload[4:8], "big")
        self._draining = True
        for stream in [stream for stream in self._streams.values() if stream.id > last]:
            if stream.over:
                continue  # ended by what an earlier one's failure set off
            # h2 must forget the stream; the peer ignores it already and needs no RST_STREAM (section 6.8).
            self._remember_cut(stream)
            self._h2.reset_stream(stream.id, ErrorCode.CANCEL)
            self._h2.data_to_send()
            if stream.responded or stream.begun:  # who has begun to answer has begun to process
                error = UpstreamError(
                    STREAM_RESET, "GOAWAY below a stream that was being answered", code=code
                )
            else:
                error = UpstreamError(GOAWAY_REFUSED, processed=Processed.REFUSED, code=code)
            self._fail_stream(stream, None, error)
        self._owner.on_goaway(last, code, frame.payload[8:])

    def _receive_window_update(self, frame: Frame) -> None:
        increment = int.from_bytes(frame.payload, "big") & 0x7FFFFFFF
        stream = self._find(frame) if frame.stream_id else None
        if frame.stream_id and stream is None:
            return
        if increment == 0:
            if stream is None:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
            error = UpstreamError(PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
            self._fail_stream(stream, ErrorCode.PROTOCOL_ERROR, error)
            return
        # Rebuilt, because hyperframe 6.1 takes the reserved bit for part of the increment.
        events = self._pass_on(
            build_frame(splitter.WINDOW_UPDATE, 0, frame.stream_id, increment.to_bytes(4, "big"))
        )
        if stream is not None and any(isinstance(event, h2.events.StreamReset) for event in events):
            # h2 has queued RST_STREAM(FLOW_CONTROL_ERROR) (section 6.9.1).
            self._remember_cut(stream)
            self._fail_stream(stream, None, UpstreamError(PROTOCOL_ERROR, "a window above 2^31-1"))


def _goaway(code: int) -> bytes:
    """GOAWAY; the last stream id is 0, because a client takes no streams."""
    return build_frame(splitter.GOAWAY, 0, 0, bytes(4) + code.to_bytes(4, "big"))
