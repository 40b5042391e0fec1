"""What other compiled modules may know of the grammar of HTTP/1.1. Theory of operation: heads.pyx."""

from libc.stdint cimport uint8_t

cdef enum Kind:
    IS_TOKEN = 1        # RFC 9110 section 5.6.2
    IS_VALUE = 2        # field-vchar, SP, HTAB: RFC 9110 section 5.5
    IS_TARGET = 4       # visible ASCII
    IS_HEX = 8

# The first byte from `at` on that is not of `kind` (or `end`).
cdef const uint8_t* skip(const uint8_t* at, const uint8_t* end, int kind) noexcept
cdef bint well_formed(const uint8_t* at, const uint8_t* end) noexcept   # headers.check_head lets it pass
