"""Types of clock.py for its compiled form."""

cdef class Deadlines:
    cdef readonly double timeout
    cdef object _clock
    cdef object _on_expire
    cdef object _timer
    cdef bint _late
    cdef dict _due

    cpdef add(self, key)
    cpdef discard(self, key)
    cpdef close(self)
