"""What other compiled modules may know of the arena. Theory of operation: arena.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

cdef enum:
    BLOCK = 16384           # one block = one HTTP/2 frame = one TLS record (RFC 8446 section 5.1: at most 2**14)
    HEADER = 9              # RFC 9113 section 4.1
    PAYLOAD = 16375         # BLOCK - HEADER
    MAX_SLOTS = 15
    NO_CELL = 0xFFFFFFFF
    NO_BLOCK = 0xFFFFFFFF


cdef struct Block:
    uint32_t next           # neighbours in the one list the block is in (free, or partly used of its class)
    uint32_t previous
    uint16_t free_slots     # bit set: the slot is free
    uint16_t orphans        # bit set: the slot was given up while a view of it was out
    uint8_t kind            # size class; 0 is the whole block
    bint touched            # its pages may be resident
    uint8_t views[MAX_SLOTS]


cdef class Arena:
    cdef readonly int64_t limit
    cdef readonly int64_t used          # reserved by bodies + held by orphans + charged
    cdef readonly int64_t resident      # bytes of touched blocks
    cdef readonly int64_t spare         # those of them that are free ...
    cdef readonly int64_t least_spare   # ... and the least that this was since `watch`
    cdef readonly int64_t live          # bodies not released
    cdef readonly int64_t views         # views that are out
    # --- memory
    cdef uint8_t* base
    cdef Block* blocks
    cdef uint32_t block_count
    cdef uint32_t high                  # blocks below it were used at least once
    # --- lists of blocks
    cdef uint32_t warm_head             # free, pages resident; taken here, last in first out ...
    cdef uint32_t warm_tail             # ... and trimmed here
    cdef uint32_t cold_head             # free, pages given back
    cdef uint32_t partial[4]            # per class: carved blocks with a free slot

    # --- cells: handle = block << 6 | kind << 4 | slot
    cdef uint8_t* cell_start(self, uint32_t cell) noexcept
    cdef uint32_t take_cell(self, int kind) noexcept            # NO_CELL: the mapping is full
    cdef void give_cell(self, uint32_t cell) noexcept           # frees it, or orphans it while a view is out
    cdef int view_count(self, uint32_t cell) noexcept
    cdef object view(self, uint32_t cell, uint8_t* start, Py_ssize_t size, bint readonly)
    # --- inside
    cdef void view_gone(self, uint32_t cell) noexcept
    cdef void free_cell(self, uint32_t cell) noexcept
    cdef uint32_t take_block(self) noexcept
    cdef void free_block(self, uint32_t number) noexcept
    cdef uint32_t chill_coldest(self) noexcept
    cdef int64_t ceiling(self) noexcept
    cdef void unlink(self, uint32_t number, uint32_t* head, uint32_t* tail) noexcept
    cdef void push(self, uint32_t number, uint32_t* head, uint32_t* tail) noexcept


cdef class Body:
    cdef readonly bint kept
    cdef readonly bint complete
    cdef bint released
    cdef bint window_only               # reserved a window, not all of the body
    cdef readonly int64_t received
    cdef readonly int64_t sent
    cdef readonly int64_t reserved      # of the arena's `used`
    cdef public object on_room
    cdef public object trailers         # fields after the body, set before `finish`
    cdef Arena arena
    cdef int64_t size                   # -1: not known
    cdef int64_t held                   # bytes of cells in hand; never above `reserved`
    cdef int64_t first                  # number of the first cell in hand
    cdef uint32_t count                 # cells in hand
    cdef uint32_t room_for              # handles that `cells` has room for
    cdef uint32_t* cells
    cdef uint32_t only_cell             # `cells` of a body of one cell

    # --- in
    cdef uint8_t* room(self, Py_ssize_t* size) except? NULL     # where the next bytes go; NULL: no room
    cdef int took(self, Py_ssize_t size) except -1
    # --- out
    cdef uint8_t* span(self, int64_t offset, Py_ssize_t* size) except? NULL
    # ^ contiguous received bytes from `offset` on; size 0 when there are none yet
    cdef bint can_stamp(self, int64_t offset) noexcept          # nine bytes before `offset` are a frame header's room
    cdef object framed(self, int64_t offset, Py_ssize_t size)   # view of the nine stamped bytes and the payload
    cdef int handed_out(self, int64_t offset) except -1
    # --- inside
    cdef int kind_of(self, int64_t number) noexcept
    cdef int append_cell(self, uint32_t cell) except -1
    cdef void drop_below(self, int64_t offset) noexcept
    cdef bint has_room(self) noexcept
    cdef void set_reserved(self, int64_t size) noexcept
    cdef void let_go(self) noexcept
    cdef void shrink_only_cell(self) noexcept
