"""Types of keepalive.py for its compiled form."""

cdef class Cadence:
    cdef readonly object schedule
    cdef double _longest


cdef class KeepAlive:
    cdef readonly double last_received
    cdef readonly Py_ssize_t streams
    cdef readonly bint late
    cdef Cadence _cadence
    cdef bint _pinged
    cdef double _due
    cdef double _expected
    cdef double _interval

    cpdef on_received(self, double now)
    cpdef bint on_streams(self, Py_ssize_t count, double now) except -1
    cdef object _before_ping(self, double now, schedule)
    cdef double _ask_again(self, double now, double at) except? -1
