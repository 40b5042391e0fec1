"""Checks of field sections for the compiled engine. Theory of operation: fields.pyx."""

from libc.stdint cimport int64_t


cdef struct Head:
    int status
    int64_t length          # content bytes that must follow; -1: not announced
    const char* fault       # why the section is malformed; NULL: it is not


cdef Head read_head(list fields, bint head_request) except *
cdef const char* read_trailers(list fields) except? NULL
cdef bint is_head_request(list fields) except -1
