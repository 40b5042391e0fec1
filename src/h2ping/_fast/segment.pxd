"""Receive memory that other compiled modules hand on without copying. Theory of operation: segment.pyx."""

from libc.stdint cimport uint8_t

cdef enum:
    SEGMENT_BYTES = 131072      # the least
    LEAST_ROOM_BYTES = 32768


cdef class Segment:
    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t fill        # bytes below it were received; a view of the segment is what is above
    cdef Py_ssize_t slices      # slices that live

    cdef object room(self)      # memoryview of the free rest, to write to
    cdef Slice cut(self, const uint8_t* start, Py_ssize_t size)


cdef class Slice:
    cdef Segment segment
    cdef const uint8_t* start
    cdef readonly Py_ssize_t size


cdef Segment new_segment(Py_ssize_t least)
