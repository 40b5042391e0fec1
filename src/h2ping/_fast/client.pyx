# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The bytes of one client connection, both ways. The rules are told in its plain twin, client_py.py.

What is different here: the grammar is walked by table (heads.pyx) instead of by regular expressions, a head that
comes in one read is never copied into `held`, and where a body's next byte goes is asked without making a view.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.sequence cimport PySequence_DelSlice
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcpy

from h2ping._fast.arena cimport Body
from h2ping._fast.heads cimport IS_HEX, IS_TOKEN, IS_VALUE, skip
from h2ping._fast.segment cimport Slice

from h2ping.errors import BAD_REQUEST, BODY_TOO_LARGE, DownstreamError


cdef enum:
    READ_BYTES = 131072         # several cells in one read: a system call costs more than a copy within the cache
    HEAD_READ_BYTES = 4096
    PIPELINED_BYTES = 4096
    CHUNK_LINE_BYTES = 4096
    CHUNK_EXCESS_BYTES = 16384
    TRAILER_BYTES = 16384
    JOIN_BYTES = 4096
    FLUSH_BYTES = 65536

cdef uint8_t SCRATCH[READ_BYTES]
cdef object SCRATCH_VIEW = PyMemoryView_FromMemory(<char*>SCRATCH, READ_BYTES, PyBUF_WRITE)
cdef object HEAD_VIEW = PyMemoryView_FromMemory(<char*>SCRATCH, HEAD_READ_BYTES, PyBUF_WRITE)
cdef bytes CRLF = b"\r\n"


cdef inline const uint8_t* find_line_end(const uint8_t* at, const uint8_t* end) noexcept:
    """The next CRLF, or NULL."""
    while at < end:
        at = <const uint8_t*>memchr(at, 13, end - at)
        if at == NULL or at + 1 >= end:
            return NULL
        if at[1] == 10:
            return at
        at += 1
    return NULL


cdef inline const uint8_t* find_head_end(const uint8_t* at, const uint8_t* end) noexcept:
    """The byte after CRLF CRLF, or NULL."""
    while end - at >= 4:
        at = <const uint8_t*>memchr(at, 13, end - at - 3)
        if at == NULL:
            return NULL
        if at[1] == 10 and at[2] == 13 and at[3] == 10:
            return at + 4
        at += 1
    return NULL


cdef inline Py_ssize_t empty_lines(const uint8_t* at, Py_ssize_t size) noexcept:
    """Bytes of CRLF at the start (RFC 9112 section 2.2)."""
    cdef Py_ssize_t taken = 0
    while size - taken >= 2 and at[taken] == 13 and at[taken + 1] == 10:
        taken += 2
    return taken


cdef inline int drop_front(bytearray held, Py_ssize_t count) except -1:
    if count:
        PySequence_DelSlice(held, 0, count)     # moves the start of a bytearray, not its bytes
    return 0


cdef class ClientBytes:
    """Input and output of one client connection: the methods of an asyncio.BufferedProtocol."""

    def __init__(self, owner):
        self.owner = owner
        self.trailers = []
        self.out = []

    # --- the connection ---------------------------------------------------------------------------------------

    def connection_made(self, transport):
        """asyncio.BaseProtocol."""
        self.transport = transport
        self.owner.on_connected(transport)

    def connection_lost(self, exc):
        """asyncio.BaseProtocol."""
        self.transport = None
        self.mode = CLOSED
        self.held = None
        self.body = None
        owner = self.owner
        self.owner = None
        owner.on_lost()

    def eof_received(self):
        """asyncio.BufferedProtocol."""
        return self.owner.on_eof()

    def pause_writing(self):
        """asyncio.BaseProtocol."""
        self.owner.on_write_paused()

    def resume_writing(self):
        """asyncio.BaseProtocol."""
        self.owner.on_write_resumed()

    # --- in ---------------------------------------------------------------------------------------------------

    def get_buffer(self, Py_ssize_t sizehint):
        """Where the kernel writes next (asyncio.BufferedProtocol)."""
        cdef Py_ssize_t size
        if self.mode == HEAD or self.mode == WAIT:
            return HEAD_VIEW
        if self.mode == LENGTH and self.held is None and self.body is not None and self.body.room(&size) != NULL:
            # Where all the rest has its room, it is read at once and copied into its cells.
            self.in_scratch = self.body.kept and self.remaining > size
            if not self.in_scratch:
                return self.body.writable()
        return SCRATCH_VIEW

    def buffer_updated(self, Py_ssize_t size):
        """`size` bytes were written to what `get_buffer` gave."""
        cdef Py_ssize_t empty, room
        cdef const uint8_t* end
        cdef bytes raw
        if self.held is None:
            if self.mode == LENGTH and self.has_room():
                if self.in_scratch:
                    room = self.fill_body(SCRATCH, size)
                    if room < size:
                        self.held = PyByteArray_FromStringAndSize(<char*>SCRATCH + room, size - room)
                else:
                    self.body.took(size)
                    self.remaining -= size
                if self.body_moved() and self.held is not None:
                    self.use_held()
                self.regulate()
                return
            if self.mode == HEAD:
                empty = empty_lines(SCRATCH, size)
                if empty == size:
                    return
                end = find_head_end(SCRATCH + empty, SCRATCH + size)
                if end != NULL:
                    raw = PyBytes_FromStringAndSize(<char*>SCRATCH + empty, end - SCRATCH - empty)
                    if end != SCRATCH + size:
                        self.held = PyByteArray_FromStringAndSize(<char*>end, SCRATCH + size - end)
                    self.owner.on_head(raw)
                    if self.held is not None:
                        self.use_held()
                    self.regulate()
                    return
            self.held = PyByteArray_FromStringAndSize(<char*>SCRATCH, size)
        else:
            self.held += SCRATCH_VIEW[:size]
        self.use_held()
        self.regulate()

    def consume(self):
        """Use what is held, as far as the mode lets us."""
        self.use_held()
        self.regulate()

    cdef int use_held(self) except -1:
        while self.held is not None and PyByteArray_GET_SIZE(self.held) and self.take():
            pass
        if self.held is not None and not PyByteArray_GET_SIZE(self.held):
            self.held = None
        return 0

    cdef bint take(self) except -1:
        """Use some of `held`; False when that has to wait."""
        cdef Py_ssize_t size = PyByteArray_GET_SIZE(self.held)
        if self.mode == HEAD:
            return self.take_head()
        if self.mode == LENGTH or self.mode == CHUNKED:
            if self.body is None:       # would be a defect above; here it must not become a wild pointer
                raise RuntimeError("body bytes without a body")
            return self.take_length() if self.mode == LENGTH else self.take_chunk()
        if self.mode == WAIT:
            drop_front(self.held, empty_lines(<uint8_t*>PyByteArray_AS_STRING(self.held), size))
        elif self.mode == DISCARD:
            size = min(size, self.remaining)
            drop_front(self.held, size)
            self.remaining -= size
            if not self.remaining:
                self.owner.on_discarded()
            return True
        elif self.mode == SINK:
            self.remaining -= size
            self.held = None
            if self.remaining < 0:
                self.owner.on_sink_full()
        elif self.mode == CLOSED:
            self.held = None
        return False

    cdef bint has_room(self) except -1:
        cdef Py_ssize_t size
        return self.body is not None and self.body.room(&size) != NULL

    cdef bint take_head(self) except -1:
        cdef const uint8_t* start
        cdef const uint8_t* end
        cdef Py_ssize_t size, before
        cdef bytes raw
        if not self.scanned:
            drop_front(
                self.held,
                empty_lines(<uint8_t*>PyByteArray_AS_STRING(self.held), PyByteArray_GET_SIZE(self.held)),
            )
            size = PyByteArray_GET_SIZE(self.held)
            if size == 0 or (size == 1 and PyByteArray_AS_STRING(self.held)[0] == 13):
                return False
        start = <uint8_t*>PyByteArray_AS_STRING(self.held)
        size = PyByteArray_GET_SIZE(self.held)
        end = find_head_end(start + max(self.scanned - 3, 0), start + size)
        if end == NULL:
            before = self.scanned
            self.scanned = size
            self.owner.on_partial_head(self.held, max(before - 1, 0))
            return False
        raw = PyBytes_FromStringAndSize(<char*>start, end - start)
        drop_front(self.held, end - start)
        self.scanned = 0
        self.owner.on_head(raw)
        return True

    cdef bint take_length(self) except -1:
        drop_front(
            self.held,
            self.fill_body(<uint8_t*>PyByteArray_AS_STRING(self.held), PyByteArray_GET_SIZE(self.held)),
        )
        return self.body_moved()

    cdef Py_ssize_t fill_body(self, const uint8_t* source, Py_ssize_t size) except -1:
        """Copy in what belongs to the body and has room; how much that is."""
        cdef Py_ssize_t taken = 0, room = 0
        cdef uint8_t* target
        size = min(size, self.remaining)
        while taken < size:
            target = self.body.room(&room)
            if target == NULL:
                break
            room = min(room, size - taken)
            memcpy(target, source + taken, room)
            self.body.took(room)
            taken += room
        self.remaining -= taken
        return taken

    cdef bint body_moved(self) except -1:
        cdef Body body = self.body
        if not self.remaining:
            self.body_complete(None)
            return True
        self.owner.on_body()
        if self.mode == LENGTH and body is self.body and not self.has_room():
            return self.stall()
        return True

    cdef bint stall(self) except -1:
        self.stalled = True
        self.owner.on_body_stalled()
        return not self.stalled

    cdef int body_complete(self, list trailers) except -1:
        cdef Body body = self.body
        self.body = None
        self.mode = WAIT
        usable = self.owner.usable_trailers(trailers) if trailers else None
        body.trailers = usable
        body.finish()
        self.owner.on_body_end(usable)
        return 0

    # --- chunks (RFC 9112 section 7.1) ------------------------------------------------------------------------

    def start_chunks(self):
        """The body that comes is chunked."""
        self.left = CHUNK_SIZE
        self.excess = 0
        self.trailers = []
        self.trailer_bytes = 0

    cdef bint take_chunk(self) except -1:
        cdef const uint8_t* start
        cdef const uint8_t* end
        cdef const uint8_t* bad
        cdef Py_ssize_t size
        cdef bytes line
        if self.left > 0:
            return self.take_chunk_data()
        start = <uint8_t*>PyByteArray_AS_STRING(self.held)
        size = PyByteArray_GET_SIZE(self.held)
        if self.left == CHUNK_END:
            if size >= 2 and start[0] == 13 and start[1] == 10:
                drop_front(self.held, 2)
                self.left = CHUNK_SIZE
                return True
            if size == 1 and start[0] == 13:
                return False
            return self.bad_chunk("a chunk is longer than its size")
        end = find_line_end(start, start + size)
        if end == NULL:
            bad = <const uint8_t*>memchr(start, 13, size - 1) if size > 1 else NULL
            if bad != NULL or memchr(start, 10, size) != NULL:
                return self.bad_chunk("CR or LF alone in the chunk framing")
            if size > CHUNK_LINE_BYTES:
                return self.bad_chunk("chunk framing too long")
            if self.left == CHUNK_SIZE and skip(start, start + 1, IS_HEX) == start:
                return self.bad_chunk("malformed chunk size")
            return False
        line = PyBytes_FromStringAndSize(<char*>start, end - start)
        drop_front(self.held, end - start + 2)
        start = <const uint8_t*>PyBytes_AS_STRING(line)
        if self.left == CHUNK_SIZE:
            return self.take_chunk_size(start, PyBytes_GET_SIZE(line))
        return self.take_trailer(start, PyBytes_GET_SIZE(line))

    cdef bint take_chunk_data(self) except -1:
        cdef Body body = self.body
        cdef Py_ssize_t size, taken = 0, room = 0
        cdef uint8_t* target
        size = min(PyByteArray_GET_SIZE(self.held), self.left)
        while taken < size:
            target = body.room(&room)
            if target == NULL:
                break
            room = min(room, size - taken)
            memcpy(target, PyByteArray_AS_STRING(self.held) + taken, room)
            body.took(room)
            taken += room
        drop_front(self.held, taken)
        self.left -= taken
        if not self.left:
            self.left = CHUNK_END
        if taken:
            self.owner.on_body()
        if taken < size and self.mode == CHUNKED:
            return self.stall()
        return True

    cdef bint take_chunk_size(self, const uint8_t* line, Py_ssize_t size) except -1:
        cdef int64_t value = 0
        cdef Py_ssize_t digits = 0
        cdef uint8_t byte
        digits = skip(line, line + size, IS_HEX) - line
        if 1 <= digits <= 15:
            for byte in line[:digits]:
                byte |= 32
                value = value << 4 | (byte - 48 if byte < 64 else byte - 87)
        if not 1 <= digits <= 15 or (digits < size and line[digits] != 59):
            return self.bad_chunk("malformed chunk size")
        if skip(line + digits, line + size, IS_VALUE) != line + size:
            return self.bad_chunk("malformed chunk size")
        self.excess = max(self.excess + size - 14 - 2 * value, 0)
        if size > CHUNK_LINE_BYTES or self.excess > CHUNK_EXCESS_BYTES:
            return self.bad_chunk("too much chunk framing")
        if self.max_body and self.body.received + value > self.max_body:
            self.owner.on_bad_input(DownstreamError(BODY_TOO_LARGE, f"more than {self.max_body} bytes"))
            return False
        self.left = value if value else TRAILERS
        return True

    cdef bint take_trailer(self, const uint8_t* line, Py_ssize_t size) except -1:
        cdef const uint8_t* end = line + size
        cdef const uint8_t* colon
        cdef list trailers
        if size == 0:
            trailers = self.trailers
            self.trailers = []
            self.body_complete(trailers)
            return True
        self.trailer_bytes += size + 2
        if self.trailer_bytes > TRAILER_BYTES:
            return self.bad_chunk("trailers too long")
        colon = skip(line, end, IS_TOKEN)
        if colon == line or colon == end or colon[0] != 58 or skip(colon + 1, end, IS_VALUE) != end:
            return self.bad_chunk("malformed trailer field")
        self.trailers.append((line[:colon - line], (colon + 1)[:end - colon - 1]))
        return True

    cdef bint bad_chunk(self, str detail) except -1:
        self.owner.on_bad_input(DownstreamError(BAD_REQUEST, detail))
        return False

    def regulate(self):
        """Read from the socket or not, by what there is to do with the bytes."""
        cdef Py_ssize_t held = PyByteArray_GET_SIZE(self.held) if self.held is not None else 0
        cdef bint paused = False
        if self.mode == HOLD:
            # A body that is here already needs no reading, and a client that leaves is noticed.
            paused = not 0 < self.remaining <= held <= PIPELINED_BYTES
        elif self.mode == LENGTH or self.mode == CHUNKED:
            paused = self.stalled
        elif self.mode == WAIT:
            paused = held > PIPELINED_BYTES
        if paused != self.paused and self.transport is not None:
            self.paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # --- out --------------------------------------------------------------------------------------------------

    def send(self, data, Py_ssize_t size):
        """Write `data`, at the end of this turn of the loop at the latest."""
        self.put(data, size)

    cdef int put(self, object data, Py_ssize_t size) except -1:
        if self.mode == CLOSED:
            return 0
        if not self.out:
            self.owner.schedule_flush()
        self.out.append(data)
        self.out_bytes += size
        if self.out_bytes > FLUSH_BYTES:
            self.flush()
        return 0

    def send_data(self, data):
        """Body bytes of the response, framed."""
        cdef Py_buffer source
        cdef bytes chunk
        cdef char line[24]
        cdef char* target
        cdef Py_ssize_t size, head = 0, rest
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        size = source.len
        try:
            if size == 0 or self.framing == NONE:
                return
            if self.framing == CHUNK_FRAMED:
                rest = size
                while rest:
                    head += 1
                    rest >>= 4
                rest = size
                line[head] = 13
                line[head + 1] = 10
                head += 2
                target = line + head - 2
                while rest:
                    target -= 1
                    target[0] = b"0123456789abcdef"[rest & 15]
                    rest >>= 4
                if size <= JOIN_BYTES:
                    chunk = PyBytes_FromStringAndSize(NULL, head + size + 2)
                    target = PyBytes_AS_STRING(chunk)
                    memcpy(target, line, head)
                    memcpy(target + head, source.buf, size)
                    target[head + size] = 13
                    target[head + size + 1] = 10
        finally:
            PyBuffer_Release(&source)
        if self.framing != CHUNK_FRAMED:
            self.put(data, size)
        elif size <= JOIN_BYTES:
            self.put(chunk, head + size + 2)
        else:
            self.put(line[:head], head)
            self.put(data, size)
            self.put(CRLF, 2)

    def flush(self):
        """Write what was gathered."""
        cdef list out = self.out
        cdef Py_ssize_t size = self.out_bytes
        if not out:
            return
        self.out = []
        self.out_bytes = 0
        if self.transport is None:
            return
        if 1 < len(out) and size <= JOIN_BYTES:
            out = [b"".join(out)]
        self.lent = out
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)
        self.lent = None

    @property
    def lent_bytes(self):
        """Memory that the write in progress keeps if the socket does not take it: slices keep their segment."""
        cdef Py_ssize_t total = 0
        cdef Slice piece
        segments = set()
        for each in self.lent or ():
            if type(each) is Slice:
                piece = each
                if <size_t><void*>piece.segment not in segments:
                    segments.add(<size_t><void*>piece.segment)
                    total += piece.segment.size
            else:
                total += len(each)
        return total

    @property
    def pending_bytes(self):
        """Output that the kernel has not taken."""
        if self.transport is None:
            return self.out_bytes
        return self.out_bytes + self.transport.get_write_buffer_size()
