"""Types of instance.py for its compiled form."""

from h2ping.clock cimport Deadlines
from h2ping.memory cimport Memory
from h2ping.metrics cimport InstanceMetrics
from h2ping.upstream.pool cimport Pool

cdef class Instance:
    cdef readonly object settings
    cdef readonly object clock
    cdef readonly Memory memory
    cdef readonly InstanceMetrics metrics
    cdef readonly bytes authority
    cdef readonly Pool pool
    cdef readonly dict exchanges
    cdef readonly Deadlines first_byte
    cdef readonly Deadlines endings
    cdef readonly object next_ident
    cdef object _empty
