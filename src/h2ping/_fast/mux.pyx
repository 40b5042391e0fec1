# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled engine: one HTTP/2 connection, client side (the interface is `h2ping.upstream.wire`).

Theory of operation
-------------------
1. h2 owns the protocol's state: SETTINGS and PING go through its connection, and every stream moves as its stream
   machine does, by a table that was made from it (`wire.StreamRules`). This file owns bytes: frames, field blocks,
   windows, the order of output.
2. h2 never sees GOAWAY in either direction, because its machine closes on any: draining is done here (RFC 9113
   section 6.8). It never sees WINDOW_UPDATE, DATA or field blocks either; their books are kept here.
3. The work for a request does not depend on how many streams are open: streams that may send stand in one list, and
   only SETTINGS and GOAWAY look at all of them.
4. Output is made in `take_output`: first what waits (`control`: control frames and HEADERS in the order they were
   made), then DATA, one block per stream in turn, as the windows allow. Nothing that was made is taken back: a reset
   stops what is not made yet.
5. A block leaves from its arena cell, its frame header stamped in front. It is copied instead where a small frame
   shares a TLS record with others, where a window ended inside a block, and where a view of the cell is still out.
6. DATA from the peer goes to the receiver as it arrives, by reference while the receiver keeps up. What arrives for
   streams that are over, and padding, is the connection's credit at once; the rest when the receiver gives it, or
   when its stream is gone.
7. A fault of the connection queues GOAWAY and raises; a fault of a stream resets that stream only. A stream leaves
   the table before anybody hears of its end, so that they may open another.
8. The receiver and the owner may call back into this object from any call they get.

This module does not know: PING schedule, re-sends, the pool, field names.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from h2ping._fast.arena cimport Body
from h2ping._fast.fields cimport Head, is_head_request, read_head, read_trailers
from h2ping._fast.hpack cimport Decoder, Encoder
from h2ping._fast.segment cimport LEAST_ROOM_BYTES, Segment, new_segment

from h2ping._fast.hpack import FieldSectionTooLarge, HpackError
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

cdef enum:                          # RFC 9113 section 6
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9

cdef enum:
    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    HAS_PRIORITY = 0x20

cdef enum:                          # RFC 9113 section 7
    CODE_PROTOCOL_ERROR = 0x1
    CODE_FLOW_CONTROL_ERROR = 0x3
    CODE_STREAM_CLOSED = 0x5
    CODE_FRAME_SIZE_ERROR = 0x6
    CODE_REFUSED_STREAM = 0x7
    CODE_COMPRESSION_ERROR = 0x9
    CODE_ENHANCE_YOUR_CALM = 0xB
    NO_CODE = -1                    # no RST_STREAM: the peer has closed the stream already

cdef enum:                          # what moves a stream's state machine: the columns of Mux.moves
    SENT_HEADERS = 0
    SENT_END = 1
    SENT_RESET = 2
    RECEIVED_HEADERS = 3
    RECEIVED_INTERIM = 4
    RECEIVED_END = 5
    RECEIVED_RESET = 6
    STEPS = 7
    REFUSED = 255

cdef enum:
    FRAME_HEADER = 9
    MAX_FRAME = 16384               # SETTINGS_MAX_FRAME_SIZE that we grant, and the most DATA we put into a frame
    DATA_BYTES = 16375              # with its header a DATA frame fills one TLS record
    JOINED_BYTES = 4096             # smaller DATA frames are copied, to share a TLS record
    COPIED_BYTES = 2048             # smaller pieces of DATA are copied, not to hold a whole segment
    DEFAULT_WINDOW = 65535          # RFC 9113 section 6.9.2

cdef enum:
    OUTPUT = 65536
    CONTROL_ROOM = 2048
    CUT_STREAMS = 1000              # a peer needs no longer than that many streams to hear of a reset
    STALE_STREAMS = 1000
    MOST_CONTROL_ROOM = 65536       # a buffer that a burst blew up is not kept
    STREAM_SHARE = 4                # credit is collected to a quarter of a stream's window (of a small one to a half:
    SMALL_SHARE = 65536             # a short answer costs no frame),
    CONNECTION_SHARE = 4            # and of the connection's; when less than that is left of the connection's,
    SHORT_SHARE = 16                # to a sixteenth of it, so that unread streams do not stall the others

cdef int64_t MAX_WINDOW = 0x7FFFFFFF
cdef int64_t LAST_STREAM_ID = 0x7FFFFFFF
cdef int64_t NO_LIMIT = 0x7FFFFFFF

_NAMES = {
    SENT_HEADERS: "SEND_HEADERS",
    SENT_END: "SEND_END_STREAM",
    SENT_RESET: "SEND_RST_STREAM",
    RECEIVED_HEADERS: "RECV_HEADERS",
    RECEIVED_INTERIM: "RECV_INFORMATIONAL_HEADERS",
    RECEIVED_END: "RECV_END_STREAM",
    RECEIVED_RESET: "RECV_RST_STREAM",
}
STREAM_STEPS = tuple([_NAMES[step] for step in range(STEPS)])
REFUSED_STEP = REFUSED
"""What `wire.StreamRules` makes the table of: h2's names of the steps, column by column."""

OUTPUT_BYTES = OUTPUT
"""DATA that one `take_output` hands out: small enough that a PING queued behind it is soon sent."""


cdef inline uint32_t number_at(const uint8_t* data, uint32_t size, uint32_t at) noexcept:
    """Four bytes of a payload of `size` as a number; 0 where they are not all there."""
    if size < 4 or at > size - 4:
        return 0
    return (
        (<uint32_t>data[at] << 24) | (<uint32_t>data[at + 1] << 16) | (<uint32_t>data[at + 2] << 8) | data[at + 3]
    )


cdef inline uint32_t octet_at(const uint8_t* data, uint32_t size, uint32_t at) noexcept:
    return data[at] if at < size else 0


cdef inline void put_number(uint8_t* at, uint32_t value) noexcept:
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value


cdef inline void put_header(uint8_t* at, uint32_t size, uint8_t kind, uint8_t flags, uint32_t stream_id) noexcept:
    at[0] = <uint8_t>(size >> 16)
    at[1] = <uint8_t>(size >> 8)
    at[2] = <uint8_t>size
    at[3] = kind
    at[4] = flags
    put_number(at + 5, stream_id)


class _ConnectionFault(Exception):
    """The peer broke the connection's rules (RFC 9113 section 5.4.1): (code, detail, cause)."""


cdef object connection_fault(int code, str detail, object cause=PROTOCOL_ERROR):
    return _ConnectionFault(code, detail, cause)


@cython.final
@cython.no_gc_clear     # __dealloc__ needs the connection that the stream was on
cdef class MuxStream:
    """One request and its response (`h2ping.upstream.wire.WireStream`)."""

    def body_ready(self):
        """See WireStream."""
        if not self.over and not self.upload_done:
            self.mux.consider(self)
            self.mux.signal()

    def credit(self, int64_t size):
        """See WireStream."""
        size = min(size, self.unconsumed)
        if size > 0:
            self.unconsumed -= size
            self.mux.credit_stream(self, size)
            self.mux.signal()

    def widen(self, uint32_t size):
        """See WireStream."""
        if not self.over and not self.complete and not self.mux.dead:
            self.window += size
            self.receive_window += size
            self.mux.queue_frame4(WINDOW_UPDATE, self.id, size)
            self.mux.signal()

    def reset(self, uint32_t code):
        """See WireStream."""
        self.muted = True
        if self.over:
            self.mux.forgive(self)
        else:
            self.mux.reset_stream(self, code)
        self.mux.signal()

    def __dealloc__(self):
        # A receiver that went away without taking what it was given must not keep the connection's window.
        if self.mux is not None:
            self.mux.owed += self.unconsumed

    cdef int64_t available(self) except -1:
        if type(self.body) is Body:
            return (<Body>self.body).received - self.sent
        return <int64_t>self.body.received - self.sent

    cdef bint at_end(self) except -1:
        if type(self.body) is Body:
            return (<Body>self.body).complete and (<Body>self.body).received == self.sent
        return self.body.complete and self.body.received == self.sent


@cython.final
cdef class Mux:
    """One connection (`h2ping.upstream.wire.Wire`).

    `machines` is h2's part, built in `h2ping.upstream.wire`; `classify` tells HPACK how to write a field of a name.
    """

    def __cinit__(self, owner, limits, machines, classify):
        self.owner = owner
        self.limits = limits
        self.machines = machines
        self.h2 = machines.connection
        self.rules = machines.stream_rules.moves
        self.moves = <const uint8_t*>PyBytes_AS_STRING(self.rules)
        self.streams = {}
        self.ending = []
        self.cut = {}
        self.next_id = self.untaken_id = 1
        self.max_streams = NO_LIMIT
        self.stream_window_bytes = limits.stream_window_bytes
        self.connection_window_bytes = max(<int64_t>limits.connection_window_bytes, DEFAULT_WINDOW)
        self.frame_worth = limits.frame_worth_bytes
        self.content_worth = limits.content_worth_bytes
        self.stream_worth = limits.frames_a_stream * limits.frame_worth_bytes
        self.most_patience = self.patience = limits.max_idle_frames * limits.frame_worth_bytes
        self.max_queued_control_bytes = limits.max_queued_control_bytes
        self.max_continuations = limits.max_continuations
        self.max_field_block_bytes = limits.max_field_block_bytes
        self.receive_window = self.connection_window_bytes
        self.send_window = DEFAULT_WINDOW
        self.initial_send_window = DEFAULT_WINDOW
        self.encoder = Encoder(classify)
        self.decoder = Decoder(limits.max_field_section_bytes)

    def __dealloc__(self):
        free(self.payload)
        free(self.block)
        free(self.control)

    # --- the owner's calls -----------------------------------------------------------------------------------------
    @property
    def can_open(self):
        """See Wire."""
        return self.takes_streams()

    cdef inline bint takes_streams(self) noexcept:
        return self.settled and not self.draining and not self.dead and self.next_id <= LAST_STREAM_ID

    def start(self):
        """See Wire."""
        self.h2.initiate_connection()
        self.queue_bytes(self.h2.data_to_send())
        if self.connection_window_bytes > DEFAULT_WINDOW:
            self.queue_frame4(WINDOW_UPDATE, 0, <uint32_t>(self.connection_window_bytes - DEFAULT_WINDOW))
        self.signal()

    def receive_buffer(self, Py_ssize_t least=0):
        """See Wire."""
        cdef Segment segment = self.segment
        least = max(least, <Py_ssize_t>LEAST_ROOM_BYTES)
        if segment is None or segment.size - (segment.fill if segment.slices else 0) < least:
            self.segment = segment = new_segment(least)
        return segment.room()

    def received(self, Py_ssize_t size):
        """See Wire."""
        cdef Segment segment = self.segment
        cdef const uint8_t* start
        if self.dead or size == 0:
            return
        if segment is None or size < 0 or size > segment.size - segment.fill:
            raise ValueError("more bytes than receive_buffer() had room for")
        start = segment.data + segment.fill
        segment.fill += size
        try:
            self.feed(start, size)
        except _ConnectionFault as fault:
            code, detail, cause = fault.args
            self.break_off(code)
            raise UpstreamError(cause, detail, code=code) from None
        except self.machines.protocol_error as error:
            self.break_off(error.error_code)
            raise UpstreamError(PROTOCOL_ERROR, str(error), code=int(error.error_code)) from None
        except BaseException:
            self.dead = True    # a defect of ours; the place in the bytes is lost
            raise
        finally:
            # Idle connections hold no segment.
            if segment is self.segment and segment.slices == 0:
                self.segment = None
            self.signal()

    def receive(self, data):
        """See Wire."""
        cdef Py_buffer source
        cdef Py_buffer room
        cdef Py_ssize_t at = 0, size
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            while at < source.len:
                target = self.receive_buffer()
                PyObject_GetBuffer(target, &room, PyBUF_SIMPLE)
                size = min(room.len, source.len - at)
                memcpy(room.buf, <const uint8_t*>source.buf + at, size)
                PyBuffer_Release(&room)
                at += size
                self.received(size)
        finally:
            PyBuffer_Release(&source)

    def open(self, list fields not None, body, receiver):
        """See Wire."""
        cdef MuxStream stream
        if not self.takes_streams():
            raise AssertionError("open() on a Wire that takes no streams")
        machines = self.machines
        stream = MuxStream.__new__(MuxStream)
        stream.id = self.next_id
        stream.head_request = is_head_request(fields)
        stream.expected = -1
        stream.window = stream.receive_window = self.stream_window_bytes
        stream.send_window = self.initial_send_window
        stream.receiver = receiver
        stream.body = body
        stream.upload_done = body is None
        self.queue_fields(fields, stream.id, body is None)
        if self.next_id == 1:
            # From here on h2's connection is in one state, whatever requests, responses and resets come.
            self.h2.state_machine.process_input(machines.connection_send_headers)
        self.move(stream, SENT_HEADERS)
        if body is None:
            self.move(stream, SENT_END)
        stream.mux = self
        self.next_id += 2
        self.streams[stream.id] = stream
        self.open_streams += 1
        self.patience += self.stream_worth
        if body is not None:
            self.consider(stream)
        self.signal()
        return stream

    def ping(self, bytes payload not None):
        """See Wire."""
        if not self.dead:
            self.h2.ping(payload)
            self.queue_bytes(self.h2.data_to_send())
            self.signal()

    def goaway(self, uint32_t code):
        """See Wire."""
        if not self.dead:
            self.draining = True
            self.queue_goaway(code)
            self.signal()

    def abandon(self, error):
        """See Wire."""
        cdef MuxStream stream
        cdef object defect = None
        self.dead = True
        if self.data_stream is not None and not self.data_stream.complete:
            self.data_stream = None     # but one that was complete still gets its on_end
        for item in list(self.streams.values()):
            stream = <MuxStream>item
            if stream.over:
                continue    # closed by what the failure of an earlier one set off
            receiver = stream.receiver
            self.leave(stream)
            stream.unconsumed = 0
            try:
                if not stream.complete:
                    if stream.id >= self.untaken_id:
                        receiver.on_failed(UpstreamError(error.cause, error.detail, processed=Processed.NEVER_SENT))
                    else:
                        receiver.on_failed(error)
                self.owner.on_stream_closed()
            except Exception as raised:     # a receiver's own; every other one must hear all the same
                if defect is None:
                    defect = raised
        while self.first_waiting is not None:   # by hand: the end of a long chain would recurse
            stream = self.first_waiting
            self.first_waiting = stream.next_waiting
            stream.next_waiting = None
            stream.waiting = False
        self.last_waiting = None
        self.ending.clear()
        if defect is not None:
            raise defect

    # --- in: frames ------------------------------------------------------------------------------------------------
    cdef int feed(self, const uint8_t* at, Py_ssize_t size) except -1:
        cdef const uint8_t* end = at + size
        cdef const uint8_t* payload
        cdef uint32_t step
        while not self.dead:
            if not self.in_frame:
                step = <uint32_t>min(<Py_ssize_t>(FRAME_HEADER - self.header_fill), end - at)
                memcpy(&self.header[self.header_fill], at, step)
                self.header_fill += step
                at += step
                if self.header_fill < FRAME_HEADER:
                    return 0
                self.header_fill = 0
                self.begin_frame()
                self.in_frame = True
                if self.frame.kind == DATA and not self.pad_pending:
                    self.begin_data(0)
            if self.frame.kind == DATA:
                if self.pad_pending and at < end:
                    self.pad_pending = False
                    self.payload_left -= 1
                    at += 1
                    self.begin_data((at - 1)[0])
                step = <uint32_t>min(<Py_ssize_t>self.content_left, end - at)
                if step:
                    self.content_left -= step
                    self.payload_left -= step
                    payload = at
                    at += step
                    self.receive_content(payload, step, self.payload_left <= end - at)
                step = <uint32_t>min(<Py_ssize_t>(self.payload_left - self.content_left), end - at)
                if self.content_left == 0 and not self.pad_pending:
                    self.payload_left -= step
                    at += step
                if self.payload_left:
                    return 0
                self.in_frame = False
                self.end_data()
            else:
                step = <uint32_t>min(<Py_ssize_t>self.payload_left, end - at)
                self.payload_left -= step
                if self.payload_fill == 0 and self.payload_left == 0:
                    payload = at
                else:
                    if self.payload == NULL:
                        self.payload = <uint8_t*>malloc(MAX_FRAME)
                        if self.payload == NULL:
                            raise MemoryError
                    memcpy(self.payload + self.payload_fill, at, step)
                    self.payload_fill += step
                    payload = self.payload
                at += step
                if self.payload_left:
                    return 0
                self.in_frame = False
                self.payload_fill = 0
                self.receive_frame(payload)
            if at == end:
                return 0
        return 0

    cdef int begin_frame(self) except -1:
        """What can be refused by the nine bytes of the header alone (RFC 9113 sections 4.1 and 4.2)."""
        cdef uint8_t* header = self.header
        cdef uint32_t size = (<uint32_t>header[0] << 16) | (<uint32_t>header[1] << 8) | header[2]
        cdef uint8_t kind = header[3], flags = header[4]
        cdef uint32_t stream_id = number_at(header, FRAME_HEADER, 5) & 0x7FFFFFFF
        if size > MAX_FRAME:
            raise connection_fault(
                CODE_FRAME_SIZE_ERROR,
                "an answer in HTTP/1" if header[:5] == b"HTTP/" else f"frame of {size} bytes",
            )
        if self.block_stream and (kind != CONTINUATION or stream_id != self.block_stream):
            raise connection_fault(CODE_PROTOCOL_ERROR, "another frame inside a field block")
        if kind == CONTINUATION and not self.block_stream:
            raise connection_fault(CODE_PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        if stream_id:
            if kind == SETTINGS or kind == PING or kind == GOAWAY:
                raise connection_fault(CODE_PROTOCOL_ERROR, f"frame of type {kind} on stream {stream_id}")
        elif kind == DATA or kind == HEADERS or kind == PRIORITY or kind == RST_STREAM or kind == PUSH_PROMISE:
            raise connection_fault(CODE_PROTOCOL_ERROR, f"frame of type {kind} on stream 0")
        if (
            ((kind == RST_STREAM or kind == WINDOW_UPDATE) and size != 4)
            or (kind == PING and size != 8)
            or (kind == SETTINGS and (size % 6 or (flags & ACK and size)))
            or (kind == GOAWAY and size < 8)
            or (kind == DATA and flags & PADDED and size == 0)
        ):
            raise connection_fault(CODE_FRAME_SIZE_ERROR, f"frame of type {kind} with {size} bytes")
        if not self.settled and (kind != SETTINGS or flags & ACK):
            raise connection_fault(CODE_PROTOCOL_ERROR, "SETTINGS is not the first frame")   # section 3.4
        self.frame.size = size
        self.frame.kind = kind
        self.frame.flags = flags
        self.frame.stream_id = stream_id
        self.payload_left = size
        self.pad_pending = kind == DATA and flags & PADDED
        self.content_left = 0
        return 0

    cdef int count_frame(self, int64_t size) except -1:
        """One more frame of the peer, with `size` bytes of a body (limits.max_idle_frames)."""
        cdef int64_t most = self.most_patience + self.stream_worth * self.open_streams
        if size:
            size += self.content_worth
        self.patience = min(self.patience + size, most) - self.frame_worth
        if self.patience < 0:
            self.patience += self.frame_worth * <int64_t>self.owner.more_idle_frames()
            if self.patience < 0:
                raise connection_fault(CODE_ENHANCE_YOUR_CALM, "frames that carry next to nothing", FLOOD)
        return 0

    cdef int count_answer(self, int64_t size) except -1:
        self.answered += size
        if self.answered > self.max_queued_control_bytes:
            raise connection_fault(CODE_ENHANCE_YOUR_CALM, "answers that the peer does not read", FLOOD)
        return 0

    cdef MuxStream find(self):
        """The frame's stream; None when it is over. Idle streams are a fault (RFC 9113 section 5.1)."""
        cdef object stream = self.streams.get(self.frame.stream_id)
        cdef uint32_t stream_id = self.frame.stream_id
        if stream is None and (stream_id >= self.next_id if stream_id % 2 else stream_id > self.promised):
            raise connection_fault(CODE_PROTOCOL_ERROR, f"frame of type {self.frame.kind} on an idle stream")
        return <MuxStream>stream

    cdef int answer_closed(self) except -1:
        """DATA or HEADERS on a stream that is over (RFC 9113 section 5.1).

        On one that we ended they were on their way, and are dropped. The peer that ended it itself is told.
        """
        if self.frame.stream_id % 2 == 0 or self.frame.stream_id in self.cut:
            return 0
        self.queue_frame4(RST_STREAM, self.frame.stream_id, CODE_STREAM_CLOSED)
        return self.count_answer(FRAME_HEADER + 4)

    # --- in: DATA (RFC 9113 section 6.1) -----------------------------------------------------------------------------
    cdef int begin_data(self, uint32_t padding) except -1:
        """All is known of a DATA frame but its content."""
        cdef MuxStream stream
        cdef uint32_t size = self.frame.size
        cdef bint end = self.frame.flags & END_STREAM
        self.data_stream = None
        if padding > self.payload_left:
            raise connection_fault(CODE_PROTOCOL_ERROR, "more padding than payload")
        self.content_left = self.payload_left - padding
        self.count_frame(self.content_left)
        stream = self.find()
        if size > self.receive_window:
            raise connection_fault(CODE_FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self.receive_window -= size
        if stream is None:
            self.credit_connection(size)
            return self.answer_closed()
        if stream.complete:
            self.credit_connection(size)
            error = UpstreamError(PROTOCOL_ERROR, "a frame after END_STREAM")
            return self.fail_stream(stream, CODE_STREAM_CLOSED, error)
        stream.seen += self.content_left
        detail = None
        if not stream.responded:
            detail = "DATA before HEADERS"
        elif stream.expected >= 0:
            if stream.seen > stream.expected:
                detail = "more content than content-length"
            elif end and stream.seen != stream.expected:
                detail = "less content than content-length"
        if detail is not None:
            self.credit_connection(size)
            return self.malformed(stream, detail)
        if size > stream.receive_window:
            raise connection_fault(CODE_FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        stream.receive_window -= size
        if size != self.content_left:
            self.credit_stream(stream, size - self.content_left)
        stream.unconsumed += self.content_left      # given back in one sum if the stream goes before the bytes do
        self.data_stream = stream
        return 0

    cdef int receive_content(self, const uint8_t* at, uint32_t size, bint is_frame_here) except -1:
        cdef MuxStream stream = self.data_stream
        if stream is None or stream.over:
            return 0
        receiver = stream.receiver
        if is_frame_here and self.frame.flags & END_STREAM:
            # The last bytes: a receiver that reacts to them finds the stream closed, as the peer sees it. Not while
            # padding is to come: without it the frame is not whole, and the connection may be lost before.
            self.data_closed = self.finish(stream)
        # A receiver that has not credited what it got is held up by its client: what it holds from now on is a copy,
        # or one slow client in sixteen would pin sixteen times what it holds.
        if size < COPIED_BYTES or stream.unconsumed > <int64_t>self.content_left + size:
            receiver.on_data(PyBytes_FromStringAndSize(<const char*>at, size))
        else:
            receiver.on_data(self.segment.cut(at, size))
        return 0

    cdef int end_data(self) except -1:
        cdef MuxStream stream = self.data_stream
        cdef bint closed = self.data_closed
        self.data_stream = None
        self.data_closed = False
        if stream is None or not self.frame.flags & END_STREAM:
            return 0
        if not stream.complete:
            if stream.over:     # its receiver reset it while it took the bytes
                return 0
            closed = self.finish(stream)
        receiver = stream.receiver
        if not stream.muted:
            receiver.on_end(None)
        if closed:
            stream.receiver = None
            self.owner.on_stream_closed()
        return 0

    # --- in: field blocks (RFC 9113 sections 6.2, 6.6 and 6.10) --------------------------------------------------
    cdef int receive_frame(self, const uint8_t* payload) except -1:
        """A whole frame that is not DATA."""
        cdef uint8_t kind = self.frame.kind
        if kind == CONTINUATION:    # has limits of its own
            return self.receive_continuation(payload)
        self.count_frame(0)
        if kind == HEADERS or kind == PUSH_PROMISE:
            return self.receive_headers(payload)
        if kind == WINDOW_UPDATE:
            return self.receive_window_update(payload)
        if kind == PING:
            return self.receive_ping(payload)
        if kind == SETTINGS:
            return self.receive_settings(payload)
        if kind == RST_STREAM:
            return self.receive_reset(payload)
        if kind == GOAWAY:
            return self.receive_goaway(payload)
        if kind == PRIORITY:
            return self.receive_priority()
        return 0                    # unknown types are ignored (RFC 9113 section 5.5)

    cdef int receive_headers(self, const uint8_t* payload) except -1:
        """HEADERS or PUSH_PROMISE."""
        cdef uint32_t size = self.frame.size, start = 0, padding = 0
        cdef uint8_t flags = self.frame.flags
        if flags & PADDED:
            if size == 0:
                raise connection_fault(CODE_FRAME_SIZE_ERROR, "no room for the pad length")
            padding = octet_at(payload, size, 0)
            start = 1
        if self.frame.kind == PUSH_PROMISE:
            self.block_promises = number_at(payload, size, start) & 0x7FFFFFFF
            start += 4
        elif flags & HAS_PRIORITY:
            start += 5              # ignored (RFC 9113 section 5.3.2)
        if start > size:
            raise connection_fault(CODE_FRAME_SIZE_ERROR, f"frame of type {self.frame.kind} is too short")
        if padding > size - start:
            raise connection_fault(CODE_PROTOCOL_ERROR, "more padding than payload")
        size -= start + padding
        self.block_kind = self.frame.kind
        self.block_ends_stream = flags & END_STREAM
        if flags & END_HEADERS:
            return self.receive_block(payload + start, size)
        self.block_stream = self.frame.stream_id
        self.block_fill = 0
        self.continuations = 0
        return self.keep_fragment(payload + start, size)

    cdef int receive_continuation(self, const uint8_t* payload) except -1:
        self.continuations += 1
        self.keep_fragment(payload, self.frame.size)
        # Without a bound the peer makes us hold, or merely count, for ever.
        if (
            self.continuations > self.max_continuations
            or <int64_t>self.block_fill > self.max_field_block_bytes
        ):
            raise connection_fault(CODE_ENHANCE_YOUR_CALM, "a field block without end", FLOOD)
        if not self.frame.flags & END_HEADERS:
            return 0
        self.block_stream = 0
        self.receive_block(self.block, self.block_fill)
        if self.block_stream == 0:
            free(self.block)        # rarely needed, so not kept
            self.block = NULL
            self.block_room = 0
        return 0

    cdef int keep_fragment(self, const uint8_t* fragment, size_t size) except -1:
        cdef size_t room
        cdef uint8_t* larger
        if self.block == NULL or self.block_fill + size > self.block_room:
            room = max(2 * self.block_room, self.block_fill + size, <size_t>MAX_FRAME)
            larger = <uint8_t*>realloc(self.block, room)
            if larger == NULL:
                raise MemoryError
            self.block = larger
            self.block_room = room
        memcpy(self.block + self.block_fill, fragment, size)
        self.block_fill += size
        return 0

    cdef int receive_block(self, const uint8_t* block, size_t size) except -1:
        cdef MuxStream stream
        cdef bint end = self.block_ends_stream
        cdef list fields = None
        if self.block_kind == PUSH_PROMISE:
            return self.receive_promise(block, size)
        try:    # of any stream, also one that is over: the table is the connection's (RFC 9113 section 4.3)
            fields = self.decoder.decode(block, size)
        except FieldSectionTooLarge:
            pass
        except HpackError as error:
            raise connection_fault(CODE_COMPRESSION_ERROR, f"HPACK: {error}") from None
        stream = self.find()
        if stream is None:
            return self.answer_closed()
        if stream.complete:
            error = UpstreamError(PROTOCOL_ERROR, "a frame after END_STREAM")
            return self.fail_stream(stream, CODE_STREAM_CLOSED, error)
        if fields is None:
            error = UpstreamError(RESPONSE_HEAD_TOO_LARGE, "a field section over SETTINGS_MAX_HEADER_LIST_SIZE")
            return self.fail_stream(stream, CODE_PROTOCOL_ERROR, error)     # as if malformed (section 10.5.1)
        if stream.responded:
            return self.receive_trailers(stream, fields, end)
        return self.receive_head(stream, fields, end)

    cdef int receive_promise(self, const uint8_t* block, size_t size) except -1:
        """PUSH_PROMISE: forbidden once the peer has acknowledged SETTINGS_ENABLE_PUSH=0 (RFC 9113 section 6.6)."""
        if self.acknowledged:
            raise connection_fault(CODE_PROTOCOL_ERROR, "PUSH_PROMISE although push is off")
        try:
            self.decoder.decode(block, size)
        except FieldSectionTooLarge:
            pass
        except HpackError as error:
            raise connection_fault(CODE_COMPRESSION_ERROR, f"HPACK: {error}") from None
        self.find()
        if self.block_promises % 2 or self.block_promises <= self.promised:
            raise connection_fault(CODE_PROTOCOL_ERROR, "PUSH_PROMISE of a stream that cannot be promised")
        self.promised = self.block_promises
        self.queue_frame4(RST_STREAM, self.promised, CODE_REFUSED_STREAM)
        return self.count_answer(FRAME_HEADER + 4)

    cdef int receive_head(self, MuxStream stream, list fields, bint end) except -1:
        cdef Head head = read_head(fields, stream.head_request)
        cdef bint closed
        receiver = stream.receiver
        if head.fault != NULL:
            return self.malformed(stream, head.fault.decode())
        if head.status < 200:
            if end:
                return self.malformed(stream, "END_STREAM on an interim response")     # RFC 9113 section 8.1
            stream.begun = True
            self.move(stream, RECEIVED_INTERIM)
            receiver.on_interim(head.status, fields[1:])
            return 0
        if end and head.length > 0:
            return self.malformed(stream, "content-length without content")
        self.move(stream, RECEIVED_HEADERS)
        stream.expected = head.length
        stream.responded = True
        closed = self.finish(stream) if end else False
        receiver.on_response(head.status, fields[1:], end)
        if closed:
            stream.receiver = None
            self.owner.on_stream_closed()
        return 0

    cdef int receive_trailers(self, MuxStream stream, list fields, bint end) except -1:
        cdef const char* fault
        cdef bint closed
        receiver = stream.receiver
        if not end:
            return self.malformed(stream, "a second field section without END_STREAM")
        fault = read_trailers(fields)
        if fault != NULL:
            return self.malformed(stream, fault.decode())
        if stream.expected >= 0 and stream.seen != stream.expected:
            return self.malformed(stream, "less content than content-length")
        self.move(stream, RECEIVED_HEADERS)
        closed = self.finish(stream)
        receiver.on_end(fields)
        if closed:
            stream.receiver = None
            self.owner.on_stream_closed()
        return 0

    # --- in: the other frames ----------------------------------------------------------------------------------------
    cdef int tell_h2(self, const uint8_t* payload) except -1:
        """Give h2 the frame; its answer is in `data_to_send`."""
        cdef bytes whole = PyBytes_FromStringAndSize(NULL, FRAME_HEADER + self.frame.size)
        cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(whole)
        put_header(at, self.frame.size, self.frame.kind, self.frame.flags, self.frame.stream_id)
        memcpy(at + FRAME_HEADER, payload, self.frame.size)
        self.h2.receive_data(whole)
        return 0

    cdef int receive_priority(self) except -1:
        """Ignored but for its length (RFC 9113 sections 5.3.2 and 6.3)."""
        cdef str detail
        if self.frame.size == 5:
            return 0
        detail = f"PRIORITY of {self.frame.size} bytes"
        stream = self.streams.get(self.frame.stream_id)
        if stream is None:
            raise connection_fault(CODE_FRAME_SIZE_ERROR, detail)
        return self.fail_stream(<MuxStream>stream, CODE_FRAME_SIZE_ERROR, UpstreamError(PROTOCOL_ERROR, detail))

    cdef int receive_reset(self, const uint8_t* payload) except -1:
        cdef MuxStream stream = self.find()
        cdef uint32_t code = number_at(payload, self.frame.size, 0)
        if stream is None:
            return 0
        self.move(stream, RECEIVED_RESET)
        if code == CODE_REFUSED_STREAM and not stream.responded and not stream.begun:
            error = UpstreamError(STREAM_REFUSED, processed=Processed.REFUSED, code=code)   # RFC 9113 section 8.7
        else:
            error = UpstreamError(STREAM_RESET, code=code)
        return self.fail_stream(stream, NO_CODE, error)

    cdef int receive_settings(self, const uint8_t* payload) except -1:
        cdef uint32_t size = self.frame.size, at, setting
        if self.frame.flags & ACK:
            self.acknowledged = True
            return self.tell_h2(payload)
        for at in range(0, size, 6):
            setting = (octet_at(payload, size, at) << 8) | octet_at(payload, size, at + 1)
            if setting == 2 and number_at(payload, size, at + 2) != 0:
                # RFC 9113 section 6.5.2
                raise connection_fault(CODE_PROTOCOL_ERROR, "SETTINGS_ENABLE_PUSH of a server")
        self.tell_h2(payload)
        # In the frame's order: the encoder must announce the smallest size of several (RFC 7541 section 4.2).
        for at in range(0, size, 6):
            setting = (octet_at(payload, size, at) << 8) | octet_at(payload, size, at + 1)
            if setting == 1:
                self.encoder.resize(number_at(payload, size, at + 2))
        self.apply_settings()
        self.queue_bytes(self.h2.data_to_send())
        self.count_answer(FRAME_HEADER)
        self.settled = True
        self.owner.on_settings()
        return 0

    cdef int apply_settings(self) except -1:
        """SETTINGS_MAX_FRAME_SIZE changes nothing: our frames never pass the least that it can be."""
        cdef int64_t window, change
        cdef MuxStream stream
        remote = self.h2.remote_settings
        self.max_streams = min(<int64_t>remote.max_concurrent_streams, NO_LIMIT)
        window = remote.initial_window_size
        change = window - self.initial_send_window
        if change == 0:
            return 0
        self.initial_send_window = window
        for item in self.streams.values():
            stream = <MuxStream>item
            stream.send_window += change        # may well be negative now (RFC 9113 section 6.9.2)
            if stream.send_window > MAX_WINDOW:
                raise connection_fault(CODE_FLOW_CONTROL_ERROR, "SETTINGS take a window above 2^31-1")
            self.consider(stream)
        return 0

    cdef int receive_ping(self, const uint8_t* payload) except -1:
        self.tell_h2(payload)
        self.queue_bytes(self.h2.data_to_send())
        if self.frame.flags & ACK:
            self.owner.on_ping_ack(PyBytes_FromStringAndSize(<const char*>payload, 8))
        else:
            self.count_answer(FRAME_HEADER + 8)
        return 0

    cdef int receive_goaway(self, const uint8_t* payload) except -1:
        """Streams above the last id were not and will not be processed; the others go on (RFC 9113 section 6.8)."""
        cdef uint32_t size = self.frame.size
        cdef uint32_t last = number_at(payload, size, 0) & 0x7FFFFFFF, code = number_at(payload, size, 4)
        cdef bytes debug = PyBytes_FromStringAndSize(<const char*>payload + 8, size - 8)
        cdef MuxStream stream
        self.draining = True
        for item in list(self.streams.values()):
            stream = <MuxStream>item
            if stream.id <= last or stream.over:    # over: by what the failure of an earlier one set off
                continue
            self.remember_cut(stream)       # a peer that answers it all the same is not told off
            if stream.responded or stream.begun:     # who has begun to answer has begun to process
                error = UpstreamError(STREAM_RESET, "GOAWAY below a stream that was being answered", code=code)
            else:
                error = UpstreamError(GOAWAY_REFUSED, processed=Processed.REFUSED, code=code)
            self.fail_stream(stream, NO_CODE, error)
        self.owner.on_goaway(last, code, debug)
        return 0

    cdef int receive_window_update(self, const uint8_t* payload) except -1:
        cdef uint32_t increment = number_at(payload, self.frame.size, 0) & 0x7FFFFFFF
        cdef MuxStream stream
        if self.frame.stream_id == 0:
            if increment == 0:
                raise connection_fault(CODE_PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
            self.send_window += increment
            if self.send_window > MAX_WINDOW:
                raise connection_fault(CODE_FLOW_CONTROL_ERROR, "the connection's window is above 2^31-1")
            return 0
        stream = self.find()
        if stream is None:
            return 0
        if increment == 0:
            error = UpstreamError(PROTOCOL_ERROR, "WINDOW_UPDATE of zero")
            return self.fail_stream(stream, CODE_PROTOCOL_ERROR, error)
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            error = UpstreamError(PROTOCOL_ERROR, "a window above 2^31-1")
            return self.fail_stream(stream, CODE_FLOW_CONTROL_ERROR, error)
        return self.consider(stream)

    # --- streams -----------------------------------------------------------------------------------------------------
    cdef int move(self, MuxStream stream, int step) except -1:
        """One step of the stream's state machine, as h2 has it; raises h2's ProtocolError where h2 does."""
        cdef uint8_t state = self.moves[stream.state * STEPS + step]
        if state == REFUSED:
            self.machines.stream_rules.refuse(stream.state, step, stream.id)
        stream.state = state
        return 0

    cdef int leave(self, MuxStream stream) except -1:
        """Take the stream off the table (rule 7)."""
        stream.over = stream.upload_done = True
        stream.body = None
        del self.streams[stream.id]
        self.open_streams -= 1
        if stream.waiting:
            self.stale += 1
            if self.stale > STALE_STREAMS:
                self.sweep()
        return 0

    cdef bint finish(self, MuxStream stream) except -1:
        """The peer's END_STREAM arrived. True when that closes the stream, which is then off the table."""
        self.move(stream, RECEIVED_END)
        stream.complete = True
        if stream.upload_done:
            self.leave(stream)
            return True
        return False

    cdef int fail_stream(self, MuxStream stream, int64_t code, object error) except -1:
        """End the stream by our RST_STREAM(code), or without one when the peer has done with it."""
        receiver = stream.receiver
        stream.receiver = None
        if code != NO_CODE:
            self.queue_reset(stream, <uint32_t>code)
        self.leave(stream)
        self.forgive(stream)
        if not stream.complete:
            receiver.on_failed(error)
        self.owner.on_stream_closed()
        return 0

    cdef int malformed(self, MuxStream stream, str detail) except -1:
        return self.fail_stream(stream, CODE_PROTOCOL_ERROR, UpstreamError(MALFORMED_RESPONSE, detail))

    cdef int reset_stream(self, MuxStream stream, uint32_t code) except -1:
        stream.receiver = None
        if not self.dead:
            self.queue_reset(stream, code)
        self.leave(stream)
        self.forgive(stream)
        self.owner.on_stream_closed()
        return 0

    cdef int queue_reset(self, MuxStream stream, uint32_t code) except -1:
        self.remember_cut(stream)
        self.move(stream, SENT_RESET)
        return self.queue_frame4(RST_STREAM, stream.id, code)

    cdef int remember_cut(self, MuxStream stream) except -1:
        self.cut[stream.id] = None
        if len(self.cut) > CUT_STREAMS:
            del self.cut[next(iter(self.cut))]
        return 0

    # --- windows of what we receive (RFC 9113 section 6.9) -----------------------------------------------------------
    cdef int forgive(self, MuxStream stream) except -1:
        """Give the connection what the receiver still owes, now that it will not."""
        cdef int64_t size = stream.unconsumed
        stream.unconsumed = 0
        return self.credit_connection(size)

    cdef int credit_connection(self, int64_t size) except -1:
        self.owed += size
        cdef int64_t share = self.connection_window_bytes // CONNECTION_SHARE
        if self.receive_window < share:
            share //= SHORT_SHARE
        if self.owed >= share and self.owed > 0 and not self.dead:
            self.queue_frame4(WINDOW_UPDATE, 0, <uint32_t>self.owed)
            self.receive_window += self.owed
            self.owed = 0
        return 0

    cdef int credit_stream(self, MuxStream stream, int64_t size) except -1:
        if not stream.complete and not stream.over and not self.dead:
            stream.owed += size
            if stream.owed >= max(stream.window // STREAM_SHARE, min(stream.window // 2, <int64_t>SMALL_SHARE)):
                self.queue_frame4(WINDOW_UPDATE, stream.id, <uint32_t>stream.owed)
                stream.receive_window += stream.owed
                stream.owed = 0
        return self.credit_connection(size)

    # --- out: frames that wait -------------------------------------------------------------------------------------
    cdef uint8_t* reserve(self, size_t size) except NULL:
        """Room for `size` more bytes of waiting frames, which the caller fills."""
        cdef size_t room
        cdef uint8_t* larger
        if self.control_fill + size > self.control_room:
            room = max(2 * self.control_room, self.control_fill + size, <size_t>CONTROL_ROOM)
            larger = <uint8_t*>realloc(self.control, room)
            if larger == NULL:
                raise MemoryError
            self.control = larger
            self.control_room = room
        self.control_fill += size
        return self.control + self.control_fill - size

    cdef int queue_bytes(self, bytes data) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if size:
            memcpy(self.reserve(size), PyBytes_AS_STRING(data), size)
        return 0

    cdef int queue_frame4(self, uint8_t kind, uint32_t stream_id, uint32_t value) except -1:
        cdef uint8_t* at = self.reserve(FRAME_HEADER + 4)
        put_header(at, 4, kind, 0, stream_id)
        put_number(at + FRAME_HEADER, value)
        return 0

    cdef int queue_goaway(self, uint32_t code) except -1:
        """The last stream id is 0: a client takes no streams."""
        cdef uint8_t* at = self.reserve(FRAME_HEADER + 8)
        put_header(at, 8, GOAWAY, 0, 0)
        put_number(at + FRAME_HEADER, 0)
        put_number(at + FRAME_HEADER + 4, code)
        return 0

    cdef int break_off(self, uint32_t code) except -1:
        self.dead = True
        self.data_stream = None
        return self.queue_goaway(code)

    cdef int queue_fields(self, list fields, uint32_t stream_id, bint end) except -1:
        """HEADERS, and CONTINUATION where the block is larger than a frame (RFC 9113 section 6.10)."""
        cdef size_t left, size
        cdef const uint8_t* block
        cdef uint8_t* at
        cdef uint8_t kind = HEADERS, flags = END_STREAM if end else 0
        self.encoder.encode(fields)
        block = self.encoder.out
        left = self.encoder.out_len
        while True:
            size = min(left, <size_t>MAX_FRAME)
            left -= size
            if left == 0:
                flags |= END_HEADERS
            at = self.reserve(FRAME_HEADER + size)
            put_header(at, <uint32_t>size, kind, flags, stream_id)
            memcpy(at + FRAME_HEADER, block, size)
            block += size
            if left == 0:
                return 0
            kind = CONTINUATION
            flags = 0

    # --- out: DATA ---------------------------------------------------------------------------------------------------
    cdef int wait(self, MuxStream stream) except -1:
        """Put the stream at the end of those that may send."""
        if stream.waiting:
            return 0
        stream.waiting = True
        if self.last_waiting is None:
            self.first_waiting = stream
        else:
            self.last_waiting.next_waiting = stream
        self.last_waiting = stream
        return 0

    cdef MuxStream next_waiting(self):
        cdef MuxStream stream = self.first_waiting
        self.first_waiting = stream.next_waiting
        if self.first_waiting is None:
            self.last_waiting = None
        stream.next_waiting = None
        stream.waiting = False
        return stream

    cdef int consider(self, MuxStream stream) except -1:
        """Let the stream wait for its turn if it has something to send that its own window allows."""
        if stream.over or stream.upload_done or stream.waiting:
            return 0
        if stream.available() > 0:
            if stream.send_window > 0:
                self.wait(stream)
        elif stream.at_end():       # an END_STREAM of its own takes no window
            stream.waiting = True
            self.ending.append(stream)
        return 0

    cdef int sweep(self) except -1:
        """Forget those that are over: a peer that opens no window would have them stand in line for ever."""
        cdef MuxStream stream = self.first_waiting, following
        cdef list ending = self.ending
        self.first_waiting = self.last_waiting = None
        self.ending = []
        self.stale = 0
        while stream is not None:
            following = stream.next_waiting
            stream.next_waiting = None
            stream.waiting = False
            if not stream.over:
                self.wait(stream)
            stream = following
        for item in ending:
            stream = <MuxStream>item
            if stream.over:
                stream.waiting = False
            else:
                self.ending.append(stream)
        return 0

    def hold_data(self, bint held):
        """See Wire."""
        self.held = held
        if not held:
            self.answered = 0
            self.signal()

    def take_output(self):
        """See Wire."""
        cdef list output = [], moved = []
        if not self.held:
            self.answered = 0
            if not self.dead:
                self.take_data(output, moved)
        self.seal(output)
        self.untaken_id = self.next_id
        for stream in moved:
            self.after_taking(<MuxStream>stream)
        self.signalled = False
        self.signal()
        return output

    cdef bint has_output(self) noexcept:
        if self.control_fill:
            return True
        if self.held or self.dead:
            return False
        return len(self.ending) > 0 or (self.first_waiting is not None and self.send_window > 0)

    cdef int signal(self) except -1:
        """Tell the owner, once, that there is output."""
        if not self.signalled and self.has_output():
            self.signalled = True
            self.owner.on_output()
        return 0

    cdef int seal(self, list output) except -1:
        """What waits goes out as one piece."""
        if self.control_fill:
            output.append(PyBytes_FromStringAndSize(<char*>self.control, self.control_fill))
            self.control_fill = 0
            if self.control_room > MOST_CONTROL_ROOM:
                free(self.control)
                self.control = NULL
                self.control_room = 0
        return 0

    cdef int take_data(self, list output, list moved) except -1:
        cdef MuxStream stream
        cdef int64_t budget = OUTPUT
        cdef list ending = self.ending
        if ending:
            self.ending = []
            for item in ending:
                stream = <MuxStream>item
                stream.waiting = False
                if not stream.over:
                    self.end_upload(stream)
                    moved.append(stream)
        while budget > 0 and self.send_window > 0 and self.first_waiting is not None:
            stream = self.next_waiting()
            if stream.over or stream.send_window <= 0 or stream.available() <= 0:
                continue            # reset, or SETTINGS took its window, since it began to wait
            budget -= self.send_block(stream, output)
            if not stream.moved:
                stream.moved = True
                moved.append(stream)
            if stream.upload_done:
                continue
            if stream.available() > 0:
                if stream.send_window > 0:
                    self.wait(stream)
            elif stream.at_end():   # trailers follow
                self.end_upload(stream)
        return 0

    cdef int64_t send_block(self, MuxStream stream, list output) except -1:
        """One DATA frame of a stream that has bytes and a window; how many bytes."""
        cdef int64_t limit = min(stream.send_window, self.send_window)
        cdef bint in_arena = type(stream.body) is Body
        cdef const uint8_t* content
        cdef Py_ssize_t size = 0
        cdef uint8_t* at
        cdef uint8_t flags
        cdef Py_buffer lent
        body = stream.body
        if in_arena:
            content = (<Body>body).span(stream.sent, &size)
        else:
            PyObject_GetBuffer(body.peek(stream.sent, DATA_BYTES), &lent, PyBUF_SIMPLE)
            content = <const uint8_t*>lent.buf
            size = lent.len
        try:
            size = min(<int64_t>size, limit)
            flags = END_STREAM if self.is_last(body, stream.sent + size) else 0
            if size > JOINED_BYTES:
                self.seal(output)
            if in_arena and size > JOINED_BYTES and (<Body>body).can_stamp(stream.sent):
                put_header(<uint8_t*>content - FRAME_HEADER, <uint32_t>size, DATA, flags, stream.id)
                output.append((<Body>body).framed(stream.sent, size))
            else:
                at = self.reserve(FRAME_HEADER + size)
                put_header(at, <uint32_t>size, DATA, flags, stream.id)
                memcpy(at + FRAME_HEADER, content, size)
                if size > JOINED_BYTES:
                    self.copied_blocks += 1
                    self.seal(output)
        finally:
            if not in_arena:
                PyBuffer_Release(&lent)
        stream.sent += size
        stream.send_window -= size
        self.send_window -= size
        if size < 2 * self.frame_worth and stream.available() == 0:
            self.patience += 2 * self.frame_worth
        else:
            self.patience += size
        if flags:
            self.move(stream, SENT_END)
            stream.upload_done = True
        return size

    cdef bint is_last(self, object body, int64_t offset) except -1:
        """Whether the frame that ends at `offset` carries END_STREAM."""
        if type(body) is Body:
            return (<Body>body).complete and (<Body>body).received == offset and not (<Body>body).trailers
        return body.complete and body.received == offset and not body.trailers

    cdef int end_upload(self, MuxStream stream) except -1:
        """END_STREAM in a frame of its own: trailers, or DATA without content."""
        trailers = stream.body.trailers
        if trailers:
            self.queue_fields(list(trailers), stream.id, True)
            self.move(stream, SENT_HEADERS)
        else:
            put_header(self.reserve(FRAME_HEADER), 0, DATA, END_STREAM, stream.id)
        self.move(stream, SENT_END)
        stream.upload_done = True
        return 0

    cdef int after_taking(self, MuxStream stream) except -1:
        """Tell the body and the receiver what was handed out; both may call back into this object."""
        stream.moved = False
        body = stream.body
        if type(body) is Body:
            (<Body>body).handed_out(stream.sent)
        elif body is not None:
            body.sent_to(stream.sent)
        if not stream.upload_done or stream.over:
            return 0
        if stream.complete:
            self.leave(stream)
            stream.receiver = None
            self.owner.on_stream_closed()
        else:
            stream.receiver.on_upload_done()
        return 0
