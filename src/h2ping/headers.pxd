"""Types of headers.py for its compiled form."""

cdef object _NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSE

cdef object _accepts_problem(bytes value)
cdef object _check_host(list hosts, bint is_11)
cdef bint _is_chunked(list codings, list lengths, bint is_11) except -1
cdef object _content_length(list lengths)
cdef bytes _origin_form(bytes method, bytes target, bytes prefix)
cdef object _status_line(status)
cdef object _written(bytes first, list fields, bytes last)
cpdef list h2_fields(request, bytes authority)
cpdef read_request(bytes method, bytes target, str version, list fields, list read, bytes upstream_prefix)
cpdef response_head(status, list fields, request, bint end, bint close)
