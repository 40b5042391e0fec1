# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Receive buffers that are shared by reference: what the socket wrote is what the next socket is given.

Theory of operation
-------------------
1. A segment is filled from its start. `cut` makes a slice: a read-only buffer that keeps its segment alive.
2. Received bytes are never written to again while a slice of the segment lives: its owner goes on behind them
   (`room`) until less than 32 KiB are left, then takes another segment.
3. Memory of segments that are gone waits for the next ones in a short list, last in first out, so that the pages
   that the sockets write to are warm and few.

4. A segment is larger than SEGMENT_BYTES where more is known to be waiting in the transport: what a read leaves there
   is lost when the peer closes right behind it (uvloop and asyncio throw it away at EOF).

128 KiB are eight full TLS records in one read. With 64, 128 and 256 KiB a download costs 47, 45 and 40 us of CPU per
64 KiB, TLS included; the larger a segment, the more a slice that somebody holds on to keeps with it.

This module does not know what the bytes are.
"""

cimport cython
from cpython.buffer cimport Py_buffer, PyBuffer_FillInfo
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

cdef enum:
    SPARE_SEGMENTS = 16

cdef uint8_t* spare[SPARE_SEGMENTS]
cdef int spare_count = 0
cdef Py_ssize_t segments = 0


def living():
    """How many segments there are: the garbage collector does not know them."""
    return segments


cdef Segment new_segment(Py_ssize_t least):
    """One with room for `least` bytes or more."""
    return Segment.__new__(Segment, max(least, <Py_ssize_t>SEGMENT_BYTES))


@cython.final
@cython.no_gc
cdef class Segment:
    """Memory that a socket writes to."""

    def __cinit__(self, Py_ssize_t size):
        global spare_count, segments
        self.size = size
        if size == SEGMENT_BYTES and spare_count:
            spare_count -= 1
            self.data = spare[spare_count]
        else:
            self.data = <uint8_t*>malloc(size)
            if self.data == NULL:
                raise MemoryError
        segments += 1

    def __dealloc__(self):
        global spare_count, segments
        if self.data == NULL:
            return
        segments -= 1
        if self.size == SEGMENT_BYTES and spare_count < SPARE_SEGMENTS:
            spare[spare_count] = self.data
            spare_count += 1
        else:
            free(self.data)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.data + self.fill, self.size - self.fill, False, flags)

    cdef object room(self):
        if self.slices == 0:
            self.fill = 0
        return PyMemoryView_FromObject(self)

    cdef Slice cut(self, const uint8_t* start, Py_ssize_t size):
        cdef Slice piece = Slice.__new__(Slice)
        piece.segment = self
        piece.start = start
        piece.size = size
        self.slices += 1
        return piece


@cython.final
@cython.no_gc
cdef class Slice:
    """Some received bytes, read-only; whatever takes a buffer takes it."""

    def __len__(self):
        return self.size

    def __bytes__(self):
        return bytes(PyMemoryView_FromObject(self))

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void*>self.start, self.size, True, flags)

    def __dealloc__(self):
        if self.segment is not None:
            self.segment.slices -= 1
