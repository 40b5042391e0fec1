"""The compiled engine's objects, for other compiled modules. Theory of operation: mux.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from h2ping._fast.hpack cimport Decoder, Encoder
from h2ping._fast.segment cimport Segment


cdef struct Frame:
    uint32_t size           # payload bytes
    uint8_t kind
    uint8_t flags
    uint32_t stream_id


cdef class MuxStream:
    cdef readonly uint32_t id
    cdef readonly bint upload_done
    # --- how far it is
    cdef bint over                  # closed in both directions, out of the table
    cdef bint muted                 # `reset` was called: nothing more to the receiver
    cdef bint begun                 # an interim response arrived
    cdef bint responded             # the final head arrived
    cdef bint complete              # the peer's END_STREAM arrived
    cdef bint head_request
    cdef bint waiting               # in the list of streams that may send
    cdef bint moved                 # sent something in the take_output that runs
    cdef uint8_t state              # of its state machine (Mux.moves)
    # --- sizes
    cdef int64_t expected           # content bytes announced; -1: not
    cdef int64_t seen               # content bytes arrived
    cdef int64_t unconsumed         # content bytes the receiver has not credited
    cdef int64_t owed               # content bytes credited and not yet given to the peer's window
    cdef int64_t window             # what the peer may send while nothing is credited
    cdef int64_t receive_window     # what the peer may still send
    cdef int64_t send_window        # what we may still send; negative after SETTINGS shrank it
    cdef readonly int64_t sent      # body bytes made into frames
    # --- whom it talks to
    cdef Mux mux
    cdef object receiver
    cdef object body
    cdef MuxStream next_waiting

    cdef int64_t available(self) except -1          # body bytes not sent
    cdef bint at_end(self) except -1                # the body is complete and all of it was sent


cdef class Mux:
    cdef readonly object limits
    cdef readonly int64_t max_streams
    cdef readonly int64_t open_streams
    cdef readonly bint settled
    cdef readonly int64_t copied_blocks             # blocks that were copied because a view of them was out
    cdef object owner
    cdef dict streams
    cdef uint32_t next_id
    cdef dict cut                   # ids of streams that we ended, the last ones: frames for them are on their way
    cdef uint32_t untaken_id        # HEADERS of the streams below it were handed out
    cdef bint draining              # GOAWAY went one way or the other
    cdef bint dead                  # connection error, or abandoned
    # --- the state machines of h2
    cdef bytes rules                # wire.StreamRules.moves, ...
    cdef const uint8_t* moves       # ... where its bytes are
    cdef object h2
    cdef object machines
    # --- in: bytes
    cdef Segment segment
    cdef uint8_t header[9]
    cdef int header_fill
    cdef Frame frame                # the one that is being received
    cdef bint in_frame
    cdef bint pad_pending           # DATA: the pad length has not come yet
    cdef uint32_t content_left      # DATA: content bytes to come
    cdef uint32_t payload_left      # bytes to come, padding included
    cdef MuxStream data_stream      # DATA: whom it is for; None: nobody
    cdef bint data_closed           # DATA: its last piece closed the stream
    cdef uint8_t* payload           # where a payload is put together that came in pieces
    cdef uint32_t payload_fill
    cdef uint8_t* block             # HEADERS and CONTINUATION payloads, joined
    cdef size_t block_fill
    cdef size_t block_room
    cdef uint32_t block_stream      # whose field block is open; 0: none
    cdef bint block_ends_stream
    cdef uint8_t block_kind         # HEADERS or PUSH_PROMISE
    cdef uint32_t block_promises    # PUSH_PROMISE: of which stream
    cdef uint32_t promised          # highest stream id the peer has promised
    cdef bint acknowledged          # the peer has our SETTINGS, so it knows that it may not push
    cdef int64_t continuations
    cdef Decoder decoder
    cdef int64_t patience           # what is left of limits.max_idle_frames, in bytes
    cdef int64_t answered           # bytes of answers since our output was last taken
    # --- in: windows
    cdef int64_t receive_window
    cdef int64_t owed
    cdef int64_t stream_window_bytes
    cdef int64_t connection_window_bytes
    cdef int64_t frame_worth        # of limits.max_idle_frames, in bytes: what a frame takes,
    cdef int64_t content_worth      # what DATA brings beside its bytes,
    cdef int64_t stream_worth       # what a request brings and adds to the most,
    cdef int64_t most_patience      # the most without any
    cdef int64_t max_queued_control_bytes
    cdef int64_t max_continuations
    cdef int64_t max_field_block_bytes
    # --- out
    cdef Encoder encoder
    cdef uint8_t* control           # frames that wait, and small DATA frames
    cdef size_t control_fill
    cdef size_t control_room
    cdef int64_t send_window
    cdef int64_t initial_send_window
    cdef MuxStream first_waiting
    cdef MuxStream last_waiting
    cdef list ending                # streams whose bytes are sent and whose END_STREAM is not
    cdef int64_t stale              # streams that ended in one of the two
    cdef bint held
    cdef bint signalled

    # --- in
    cdef int feed(self, const uint8_t* at, Py_ssize_t size) except -1
    cdef int begin_frame(self) except -1
    cdef int begin_data(self, uint32_t padding) except -1
    cdef int receive_content(self, const uint8_t* at, uint32_t size, bint is_frame_here) except -1
    cdef int end_data(self) except -1
    cdef int receive_frame(self, const uint8_t* payload) except -1
    cdef int receive_headers(self, const uint8_t* payload) except -1
    cdef int receive_continuation(self, const uint8_t* payload) except -1
    cdef int keep_fragment(self, const uint8_t* fragment, size_t size) except -1
    cdef int receive_promise(self, const uint8_t* block, size_t size) except -1
    cdef int receive_block(self, const uint8_t* block, size_t size) except -1
    cdef int receive_head(self, MuxStream stream, list fields, bint end) except -1
    cdef int receive_trailers(self, MuxStream stream, list fields, bint end) except -1
    cdef int receive_priority(self) except -1
    cdef int receive_reset(self, const uint8_t* payload) except -1
    cdef int receive_settings(self, const uint8_t* payload) except -1
    cdef int apply_settings(self) except -1
    cdef int receive_ping(self, const uint8_t* payload) except -1
    cdef int receive_goaway(self, const uint8_t* payload) except -1
    cdef int receive_window_update(self, const uint8_t* payload) except -1
    cdef int tell_h2(self, const uint8_t* payload) except -1
    cdef int count_frame(self, int64_t size) except -1
    cdef int count_answer(self, int64_t size) except -1
    cdef MuxStream find(self)
    cdef int answer_closed(self) except -1
    # --- streams
    cdef int move(self, MuxStream stream, int step) except -1
    cdef int leave(self, MuxStream stream) except -1
    cdef bint finish(self, MuxStream stream) except -1
    cdef int fail_stream(self, MuxStream stream, int64_t code, object error) except -1
    cdef int malformed(self, MuxStream stream, str detail) except -1
    cdef int forgive(self, MuxStream stream) except -1
    cdef int credit_connection(self, int64_t size) except -1
    cdef int credit_stream(self, MuxStream stream, int64_t size) except -1
    cdef int reset_stream(self, MuxStream stream, uint32_t code) except -1
    cdef int queue_reset(self, MuxStream stream, uint32_t code) except -1
    cdef int remember_cut(self, MuxStream stream) except -1
    # --- out
    cdef uint8_t* reserve(self, size_t size) except NULL
    cdef int queue_bytes(self, bytes data) except -1
    cdef int queue_frame4(self, uint8_t kind, uint32_t stream_id, uint32_t value) except -1
    cdef int queue_goaway(self, uint32_t code) except -1
    cdef int break_off(self, uint32_t code) except -1
    cdef int queue_fields(self, list fields, uint32_t stream_id, bint end) except -1
    cdef int wait(self, MuxStream stream) except -1
    cdef int consider(self, MuxStream stream) except -1
    cdef int sweep(self) except -1
    cdef int seal(self, list output) except -1
    cdef int take_data(self, list output, list moved) except -1
    cdef MuxStream next_waiting(self)
    cdef bint is_last(self, object body, int64_t offset) except -1
    cdef int64_t send_block(self, MuxStream stream, list output) except -1
    cdef int end_upload(self, MuxStream stream) except -1
    cdef int after_taking(self, MuxStream stream) except -1
    cdef bint has_output(self) noexcept
    cdef bint takes_streams(self) noexcept
    cdef int signal(self) except -1
