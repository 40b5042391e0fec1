"""Types of context.py for its compiled form."""

from h2ping.clock cimport Deadlines

cdef class ClientContext:
    cdef readonly object settings
    cdef public object exchanges
    cdef public Deadlines head_deadlines
    cdef public Deadlines idle_deadlines
    cdef public Deadlines linger_deadlines
    cdef readonly object clients
    cdef readonly object on_refused
    cdef public object door
    cdef public bint draining
    cdef readonly str program
    cdef readonly bytes prefix
    cdef readonly bint half_close_waits
    cdef public object loop
    cdef list dirty

    cpdef call_soon(self, callback)
    cpdef mark_dirty(self, octets)
