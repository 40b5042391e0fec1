"""Types of metrics.py for its compiled form."""

cdef class Histogram:
    cdef readonly double total
    cdef object _bounds
    cdef list _counts

    cpdef observe(self, double value)


cdef class InstanceMetrics:
    cdef readonly str name
    cdef readonly dict requests
    cdef readonly dict failures
    cdef readonly dict resends
    cdef readonly dict connections_lost
    cdef readonly Histogram durations
    cdef readonly Histogram round_trips

    cpdef finished(self, status, cause, double elapsed)
    cpdef retried(self, cause)
    cpdef connection_lost(self, cause)
    cpdef round_trip(self, double seconds)
