"""Types of exchange.py for its compiled form."""

from libc.stdint cimport int64_t

cdef class Exchange:
    cdef readonly object request
    cdef readonly object ident
    cdef readonly double started
    cdef readonly object phase
    cdef readonly Py_ssize_t attempts
    cdef readonly object status
    cdef readonly object upstream_status
    cdef readonly int64_t stream_id
    cdef readonly int64_t bytes_in
    cdef readonly int64_t bytes_out
    cdef object _instance
    cdef readonly object _client
    cdef object _body
    cdef object _packed
    cdef object _unpacking
    cdef object _stream
    cdef object _connection
    cdef double _sent_at
    cdef Py_ssize_t _interims
    cdef object _again_timer
    cdef bint _given_up
    cdef readonly int64_t _uncredited
    cdef readonly int64_t _held
    cdef int64_t _announced
    cdef int64_t _uploaded
    cdef int64_t _window
    cdef bint _left
    cdef Py_ssize_t _lost_attempts
    cdef object _last_error

    cpdef on_end(self, trailers)
    cdef object _release_body(self)
    cdef object _release_window(self)
    cdef object _release_packed(self)
    cdef object _leave_stream(self, code=*)
    cdef object _give_credit(self)
    cdef object _answer(self, error)
    cdef object _finish(self, error)
