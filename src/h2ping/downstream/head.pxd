"""Types of head.py for its compiled form."""

cdef bint _let_llhttp_read(bytes raw, bytes method, sink) except -1
