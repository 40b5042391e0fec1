"""Types of pool.py for its compiled form."""

cimport cython

from h2ping.clock cimport Deadlines

cdef class Slots:
    cdef list _slots
    cdef Py_ssize_t _least

    cpdef place(self, connection, Py_ssize_t load)
    cpdef least(self)


cdef class _Term


cdef class Pool:
    cdef readonly object cadence
    cdef readonly dict connections
    cdef readonly Py_ssize_t dialled
    cdef readonly Py_ssize_t dials_failed
    cdef readonly object limits
    cdef object _settings
    cdef object _context
    cdef object _clock
    cdef object _on_round_trip
    cdef object _on_connection_lost
    cdef object _on_burst_over
    cdef Slots _slots
    cdef Py_ssize_t _usable
    cdef Py_ssize_t _peer_limit
    cdef Py_ssize_t _peer_max
    cdef dict _waiting
    cdef bint _assigning
    cdef Deadlines _deadlines
    cdef Deadlines _idle
    cdef object _surplus_timer
    cdef Py_ssize_t _least_idle
    cdef Py_ssize_t _ended
    cdef object _tidy_timer
    cdef readonly set _dials
    cdef double _delay
    cdef object _delay_timer
    cdef object _dial_error
    cdef object _reach
    cdef Py_ssize_t _burst
    cdef bint _unreachable
    cdef object _closed

    cpdef acquire(self, waiter)
    cpdef cancel(self, waiter)
    cpdef on_load(self, connection)

    @cython.locals(term=_Term, usable=cython.bint, limit=cython.Py_ssize_t)
    cdef object _place(self, connection)

    cdef object _no_longer_idle(self, connection)
    cdef object _watch_idle(self)
    cdef Py_ssize_t _most_idle(self) except -1

    cdef bint _has_hope(self) except -1
    cdef bint _may_grow(self) except -1
    cdef object _find(self)
    cdef bint _is_refused(self) except -1
    cdef bint _is_final(self, error) except -1
    cdef object _assign(self)
    cdef object _dial_missing(self)


cdef class _Term:
    cdef readonly Py_ssize_t requests
    cdef public Py_ssize_t replace_at
    cdef public object timer
    cdef public bint usable


cdef class _Wait:
    cdef readonly double since
    cdef public Py_ssize_t failures
