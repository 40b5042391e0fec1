"""What other compiled modules may know of a client connection's bytes. Theory of operation: client.pyx."""

from libc.stdint cimport int64_t, uint8_t

from h2ping._fast.arena cimport Body

cdef enum Mode:             # what the next byte is
    HEAD = 0
    HOLD = 1                # of a body that has no memory yet
    LENGTH = 2              # of a body of known length
    CHUNKED = 3
    WAIT = 4                # of a pipelined request, while a response is owed
    DISCARD = 5             # of a body that nobody wants
    SINK = 6                # of anything: as good as closed
    CLOSED = 7

cdef enum Framed:           # how a response body is framed; the numbers of headers.Framing
    NONE = 0
    LENGTH_FRAMED = 1
    CHUNK_FRAMED = 2
    UNTIL_CLOSE = 3

cdef enum Left:             # instead of a number of bytes of this chunk
    CHUNK_END = -1          # its CRLF comes
    CHUNK_SIZE = -2         # a chunk-size line comes
    TRAILERS = -3


cdef class ClientBytes:
    cdef readonly object owner          # who decides; None once the connection is lost
    cdef public object transport
    cdef public int mode
    # --- in
    cdef public bytearray held          # what came and is not used yet; None when there is nothing
    cdef public Body body               # where the body goes, while it comes
    cdef public int64_t remaining       # LENGTH, DISCARD: bytes to come; SINK: bytes that are still borne
    cdef public int64_t max_body
    cdef public bint stalled            # the body has no room
    cdef bint in_scratch                # LENGTH: body bytes are read into the shared buffer, not into a cell
    cdef readonly bint paused           # the transport does not read
    cdef Py_ssize_t scanned             # bytes of `held` without the end of a head
    cdef int64_t left                   # CHUNKED: bytes of this chunk to come, or one of Left
    cdef int64_t excess                 # chunk framing beyond what is reasonable
    cdef list trailers
    cdef Py_ssize_t trailer_bytes
    # --- out
    cdef public int framing
    cdef list out                       # gathered in this turn of the loop
    cdef Py_ssize_t out_bytes
    cdef list lent                      # what is being written just now

    cdef int use_held(self) except -1
    cdef bint take(self) except -1
    cdef bint has_room(self) except -1
    cdef bint take_head(self) except -1
    cdef bint take_length(self) except -1
    cdef Py_ssize_t fill_body(self, const uint8_t* source, Py_ssize_t size) except -1
    cdef bint take_chunk(self) except -1
    cdef bint take_chunk_data(self) except -1
    cdef bint take_chunk_size(self, const uint8_t* line, Py_ssize_t size) except -1
    cdef bint take_trailer(self, const uint8_t* line, Py_ssize_t size) except -1
    cdef bint body_moved(self) except -1
    cdef bint stall(self) except -1
    cdef int body_complete(self, list trailers) except -1
    cdef bint bad_chunk(self, str detail) except -1
    cdef int put(self, object data, Py_ssize_t size) except -1
