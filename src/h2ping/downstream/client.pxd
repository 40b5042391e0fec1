"""Types of client.py for its compiled form. `octets` is an object: a test may give it the plain twin."""

from h2ping.downstream.context cimport ClientContext

cdef class Client:
    cdef readonly ClientContext context
    cdef readonly object octets
    cdef readonly object request
    cdef public object exchange
    cdef public object owed
    cdef public object progress
    cdef public object lingering
    cdef public bint closing
    cdef readonly bint head_sent
    cdef public bint head_timed
    cdef public bint eof
    cdef readonly bint write_paused
    cdef bint _continue_sent

    cpdef watch_progress(self)
    cpdef abort(self)
    cpdef on_bad_input(self, error, head=*)
    cdef bint _has_work(self) except -1
    cdef bint _holds_a_head(self) except -1
    cdef object _check_for_more(self)
    cdef object _progress(self)
    cdef object _read(self, bytes raw)
    cdef bint _will_close(self) except -1
    cdef bint _is_last(self) except -1
    cdef bint _can_go_on(self) except -1
    cdef bytes _announced(self, bytes head, bytes lowered)
    cdef object _finish_response(self)
    cdef object _await_request(self)
