"""Types of memory.py for its compiled form."""

from libc.stdint cimport int64_t

from h2ping.clock cimport Deadlines

cdef class Memory:
    cdef readonly object arena
    cdef readonly object packer
    cdef readonly int64_t given_up
    cdef readonly int64_t packed
    cdef readonly int64_t limit
    cdef readonly int64_t unread
    cdef readonly int64_t cut_off
    cdef dict _readers
    cdef object _clock
    cdef bint _keep
    cdef dict _sent_whole
    cdef dict _waiting
    cdef dict _packable
    cdef object _packing
    cdef bint _packer_busy
    cdef dict _coming
    cdef int64_t _coming_bytes
    cdef double _moved_at
    cdef double _impatient_until
    cdef object _patience_timer
    cdef dict _again
    cdef object _lent_to
    cdef int64_t _aside
    cdef Deadlines _deadlines
    cdef object _trim_timer
    cdef bint _serving
    cdef int64_t _said
    cdef int64_t _said_cut_off
    cdef object _say_timer

    cpdef hold(self, reader, int64_t size)
    cpdef let_go(self, reader, int64_t size)
    cpdef admit_again(self, claimant, size)
    cpdef on_sent_whole(self, claimant, body=*)
    cpdef on_again(self, claimant)
    cpdef on_released(self, claimant)
    cdef bint _could_fit(self, size, bint kept) except -1
    cdef object _open(self, size, bint kept)
    cdef bint _give_up_one(self) except -1
    cdef bint _is_patient(self) except -1
    cdef object _hand_over(self, claimant, body, size, bint kept)
    cdef object _arrived(self, claimant)
    cdef object _give_up_oldest(self)
    cdef object _forget(self, claimant)
    cdef object _take_back(self, claimant)
    cdef object _pack_oldest(self)
    cdef object _open_again(self, claimant, size)
    cdef object _serve(self)
    cdef object _relieve(self)
    cdef object _say_later(self)
    cdef object _trim_later(self)
