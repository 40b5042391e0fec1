# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""HTTP/1.1 heads to fields and back, byte by byte. `h2ping.headers` is the plain twin and says what it means.

Theory of operation
-------------------
1. A head is walked once by a table of flags (RFC 9110 sections 5.5 and 5.6.2, RFC 9112 section 3): it is well formed
   or it is not. Why not, the plain twin finds words for.
2. A well-formed head needs no second parser: its lines end at CRLF, its names at the first colon.
3. Lower-case names are kept, so that a name that comes again costs one look-up. The store is bounded, in names and in
   their length: a client cannot fill the memory with names of its own making.
4. Lines that are written are checked again for CR, LF and NUL while they are copied.

No field has a meaning here.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcpy

cdef enum:
    KNOWN_NAMES = 1024
    LONGEST_KNOWN = 64

cdef uint8_t[256] KIND
cdef dict LOWER = {}


cdef int fill_table() except -1:
    cdef int byte
    for byte in range(256):
        KIND[byte] = 0
        if byte == 9 or (byte >= 32 and byte != 127):
            KIND[byte] |= IS_VALUE
        if 33 <= byte <= 126:
            KIND[byte] |= IS_TARGET
    for byte in b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
        KIND[byte] |= IS_TOKEN
    for byte in b"0123456789abcdefABCDEF":
        KIND[byte] |= IS_HEX
    return 0


fill_table()


cdef const uint8_t* skip(const uint8_t* at, const uint8_t* end, int kind) noexcept:
    while at < end and KIND[at[0]] & kind:
        at += 1
    return at


cdef bint well_formed(const uint8_t* at, const uint8_t* end) noexcept:
    cdef const uint8_t* start = at
    at = skip(at, end, IS_TOKEN)
    if at == start or at >= end or at[0] != c" ":
        return False
    start = at + 1
    at = skip(start, end, IS_TARGET)
    if at == start or end - at < 13:        # " HTTP/1.x" CRLF CRLF
        return False
    if at[0] != c" " or at[1] != c"H" or at[2] != c"T" or at[3] != c"T" or at[4] != c"P" or at[5] != c"/":
        return False
    if at[6] != c"1" or at[7] != c"." or (at[8] != c"0" and at[8] != c"1") or at[9] != 13 or at[10] != 10:
        return False
    at += 11
    while end - at > 2:
        start = at
        at = skip(at, end, IS_TOKEN)
        if at == start or at >= end or at[0] != c":":
            return False
        at = skip(at + 1, end, IS_VALUE)
        if end - at < 4 or at[0] != 13 or at[1] != 10:
            return False
        at += 2
    return end - at == 2 and at[0] == 13 and at[1] == 10


def is_well_formed(bytes raw not None):
    """Whether `headers.check_head` lets this whole head pass."""
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(raw)
    return well_formed(start, start + PyBytes_GET_SIZE(raw))


cdef bytes lowered(const uint8_t* name, Py_ssize_t size):
    cdef bytes raw = PyBytes_FromStringAndSize(<const char*>name, size)
    if size > LONGEST_KNOWN:
        return raw.lower()
    cdef PyObject* known = PyDict_GetItemWithError(LOWER, raw)
    cdef bytes lower
    if known != NULL:
        return <bytes>known
    lower = raw.lower()
    if len(LOWER) < KNOWN_NAMES:
        LOWER[raw] = lower
    return lower


def split_head(bytes raw not None, dict sort not None):
    """Method, target, version and fields, names in lower case; None if the head is not well formed.

    Of the fields there are two lists: those whose name `sort` does not know or maps to True, and those it knows.
    """
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(raw)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(raw)
    cdef const uint8_t* start
    cdef const uint8_t* last
    cdef bytes method, target, name
    cdef tuple field
    cdef list fields = [], known = []
    cdef PyObject* passes
    if not well_formed(at, end):
        return None
    start = at
    at = skip(at, end, IS_TOKEN)
    method = start[:at - start]
    start = at + 1
    at = skip(start, end, IS_TARGET)
    target = start[:at - start]
    version = "1.1" if at[8] == c"1" else "1.0"
    at += 11
    while end - at > 2:
        start = at
        at = skip(at, end, IS_TOKEN)
        name = lowered(start, at - start)
        start = at + 1
        at = skip(start, end, IS_VALUE)
        last = at
        while start < last and (start[0] == c" " or start[0] == c"\t"):
            start += 1
        while last > start and (last[-1] == c" " or last[-1] == c"\t"):
            last -= 1
        field = (name, <bytes>PyBytes_FromStringAndSize(<const char*>start, last - start))
        passes = PyDict_GetItemWithError(sort, name)
        if passes == NULL or <object>passes is True:
            fields.append(field)
        if passes != NULL:
            known.append(field)
        at += 2
    return method, target, version, fields, known


cdef inline bint breaks_line(bytes text) noexcept:
    cdef const char* start = PyBytes_AS_STRING(text)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
    return size and (
        memchr(start, 10, size) != NULL or memchr(start, 13, size) != NULL or memchr(start, 0, size) != NULL
    )


def field_lines(bytes first not None, list fields not None, bytes last not None):
    """`first`, a line for each field, `last`; None if a field would break its line."""
    cdef Py_ssize_t size = PyBytes_GET_SIZE(first) + PyBytes_GET_SIZE(last)
    cdef bytes name, value, head
    cdef char* at
    for name, value in fields:
        if breaks_line(name) or breaks_line(value):
            return None
        size += PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + 4
    head = PyBytes_FromStringAndSize(NULL, size)
    at = PyBytes_AS_STRING(head)
    memcpy(at, PyBytes_AS_STRING(first), PyBytes_GET_SIZE(first))
    at += PyBytes_GET_SIZE(first)
    for name, value in fields:
        memcpy(at, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        at += PyBytes_GET_SIZE(name)
        at[0] = c":"
        at[1] = c" "
        at += 2
        memcpy(at, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
        at += PyBytes_GET_SIZE(value)
        at[0] = 13
        at[1] = 10
        at += 2
    memcpy(at, PyBytes_AS_STRING(last), PyBytes_GET_SIZE(last))
    return head
