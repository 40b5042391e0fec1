# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Field sections of responses, checked. The rules are those of `h2ping.upstream.response`, to the letter.

Theory of operation
-------------------
1. A section is a list of (name, value) tuples of bytes as HPACK gave it. It is looked at, never changed.
2. The first rule that is broken is named by a constant text; no field's value is ever part of it.
3. Only names of the lengths of interest are compared, so a common field costs one pass over its bytes.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp

cdef uint8_t[256] IN_NAME       # token characters without upper-case letters (RFC 9110 section 5.6.2)


cdef int fill_table() except -1:
    for octet in b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz":
        IN_NAME[octet] = 1
    return 0


fill_table()


cdef inline bint is_edge_space(char octet) noexcept:
    return octet == c" " or octet == c"\t"


cdef bint is_connection_specific(const char* name, Py_ssize_t size) noexcept:
    """RFC 9113 section 8.2.2."""
    if size == 2:
        return memcmp(name, b"te", 2) == 0
    if size == 7:
        return memcmp(name, b"upgrade", 7) == 0
    if size == 10:
        return memcmp(name, b"connection", 10) == 0 or memcmp(name, b"keep-alive", 10) == 0
    if size == 16:
        return memcmp(name, b"proxy-connection", 16) == 0
    if size == 17:
        return memcmp(name, b"transfer-encoding", 17) == 0
    return False


cdef const char* fault_of(bytes name_bytes, bytes value_bytes) noexcept:
    """Why the field is malformed (RFC 9113 section 8.2.1)."""
    cdef const char* name = PyBytes_AS_STRING(name_bytes)
    cdef const char* value = PyBytes_AS_STRING(value_bytes)
    cdef Py_ssize_t name_size = PyBytes_GET_SIZE(name_bytes), size = PyBytes_GET_SIZE(value_bytes), i
    if name_size == 0:
        return b"field name is not a lower-case token"
    for i in range(name_size):
        if not IN_NAME[<uint8_t>name[i]]:
            return b"field name is not a lower-case token"
    if is_connection_specific(name, name_size):
        return b"connection-specific field"
    if size:
        # memchr looks at many bytes at once; three passes are less than one of our own.
        if memchr(value, c"\r", size) != NULL or memchr(value, c"\n", size) != NULL or memchr(value, 0, size) != NULL:
            return b"CR, LF or NUL in a field value"
        if is_edge_space(value[0]) or is_edge_space(value[size - 1]):
            return b"space around a field value"
    return NULL


cdef int64_t number_of(bytes digits) noexcept:
    """1 to 18 digits, which fit 63 bits, as a number, else -1."""
    cdef const char* at = PyBytes_AS_STRING(digits)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(digits), i
    cdef int64_t number = 0
    if size == 0 or size > 18:
        return -1
    for i in range(size):
        if not c"0" <= at[i] <= c"9":
            return -1
        number = number * 10 + (at[i] - c"0")
    return number


cdef Head read_head(list fields, bint head_request) except *:
    """Status and announced length of a response head (RFC 9113 sections 8.1.1, 8.2 and 8.3.2)."""
    cdef Head head
    cdef bytes name, value
    cdef const char* digits
    cdef Py_ssize_t i
    head.status = 0
    head.length = -1
    head.fault = NULL
    if not fields or (<tuple>fields[0])[0] != b":status":
        head.fault = b":status does not come first"
        return head
    value = <bytes>(<tuple>fields[0])[1]
    digits = PyBytes_AS_STRING(value)
    if PyBytes_GET_SIZE(value) != 3 or not (
        c"1" <= digits[0] <= c"9" and c"0" <= digits[1] <= c"9" and c"0" <= digits[2] <= c"9"
    ):
        head.fault = b":status is not three digits"
        return head
    head.status = (digits[0] - c"0") * 100 + (digits[1] - c"0") * 10 + (digits[2] - c"0")
    if head.status == 101:
        head.fault = b"101 Switching Protocols"     # RFC 9113 section 8.6
        return head
    for i in range(1, len(fields)):
        name = <bytes>(<tuple>fields[i])[0]
        value = <bytes>(<tuple>fields[i])[1]
        if PyBytes_GET_SIZE(name) and PyBytes_AS_STRING(name)[0] == c":":
            head.fault = b"a pseudo-field other than one :status in front"
            return head
        head.fault = fault_of(name, value)
        if head.fault != NULL:
            return head
        if (
            head.status >= 200
            and PyBytes_GET_SIZE(name) == 14
            and memcmp(PyBytes_AS_STRING(name), b"content-length", 14) == 0
        ):
            if head.length >= 0:
                head.fault = b"more than one content-length"
                return head
            head.length = number_of(value)
            if head.length < 0:
                head.fault = b"content-length is not a number of at most 18 digits"
                return head
    if head_request or head.status == 204 or head.status == 304:
        head.length = 0     # no content, whatever content-length says (RFC 9110 section 6.4.1)
    return head


cdef const char* read_trailers(list fields) except? NULL:
    """Why trailers are malformed (RFC 9113 section 8.1), or NULL."""
    cdef const char* fault
    cdef bytes name
    for field in fields:
        name = <bytes>(<tuple>field)[0]
        if PyBytes_GET_SIZE(name) and PyBytes_AS_STRING(name)[0] == c":":
            return b"a pseudo-field among trailers"
        fault = fault_of(name, <bytes>(<tuple>field)[1])
        if fault != NULL:
            return fault
    return NULL


cdef bint is_head_request(list fields) except -1:
    """Whether the request of these fields is HEAD."""
    for field in fields:
        if (<tuple?>field)[0] == b":method":       # they come from outside the compiled code
            return (<tuple>field)[1] == b"HEAD"
    return False
