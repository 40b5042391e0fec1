# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Memory of request bodies: frame-sized cells in one mapping, replayable, under one hard limit.

Theory of operation
-------------------
1. One anonymous mapping is cut into blocks of 16,384 bytes. A block is laid out `[9 bytes][16,375 bytes]`: the
   room of a DATA frame header and its payload. One block leaves as one frame, in one TLS record, by writing nine
   bytes; a second attempt only writes them again.
2. A cell is a whole block, or one of 15, 7 or 3 slots of a block (1,092, 2,340, 5,461 bytes, nine of them header
   as well). All cells of a body are whole blocks, except the last one of a body of known size: that is the smallest
   that fits. A body of one cell whose size is known only at its end moves to the smallest then.
3. `open` reserves, it does not touch: cells are taken as bytes arrive. What is reserved counts as `used`, and `open`
   refuses what would pass the limit, so a body that was opened never waits for memory.
4. A body that is kept holds all its cells until `release` or `drop_copy`. One that is not kept holds a window: cells
   below `sent` are freed at once, and their room is the body's again.
5. A view is counted at its cell. A cell that is given up while a view is out is an orphan: it stays as it is, and
   counts as used, until the last view goes. Nothing is written to a cell's header room while a view is out.
6. Free blocks are taken last in, first out, so that few pages stay warm. `trim` gives the coldest ones' pages back
   to the system, in slices: one call over a gigabyte stops the process for a third of a second. How many of them
   nobody needed for a while `least_spare` says: the least that was free at once since `watch`.

What this module does not know: frames, who reads and writes the bodies, when to send again.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove

from h2ping._fast.arena_py import STREAM_WINDOW_BYTES


cdef extern from *:
    """
    #include <sys/mman.h>
    #ifndef MAP_NORESERVE
    #define MAP_NORESERVE 0
    #endif
    #ifdef __APPLE__
    #define ARENA_GIVE_BACK MADV_FREE      /* MADV_DONTNEED keeps the pages there */
    #else
    #define ARENA_GIVE_BACK MADV_DONTNEED
    #endif
    #ifdef H2PING_DEBUG
    #define ARENA_UNLIMITED ((long long)2 << 30)    /* sanitizers touch all of the books, one entry for each 16 KiB */
    #else
    #define ARENA_UNLIMITED ((long long)64 << 30)
    #endif
    static void *arena_map(size_t size) {
        void *start = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return start == MAP_FAILED ? 0 : start;
    }
    static void arena_unmap(void *start, size_t size) { munmap(start, size); }
    static int arena_give_back(void *start, size_t size) { return madvise(start, size, ARENA_GIVE_BACK); }
    #ifdef __GLIBC__
    #include <malloc.h>
    static void arena_trim_heap(void) { malloc_trim(0); }
    #else
    static void arena_trim_heap(void) { }
    #endif
    static int arena_lowest_bit(unsigned mask) { return __builtin_ctz(mask); }
    """
    int64_t ARENA_UNLIMITED     # address space of an arena without a limit; nothing of it is touched
    void* arena_map(size_t size)
    void arena_unmap(void* start, size_t size)
    int arena_give_back(void* start, size_t size)
    int arena_lowest_bit(unsigned int mask) noexcept
    void arena_trim_heap() noexcept


def trim_heap():
    """Ask the C library (glibc) to give what it keeps free back to the system."""
    arena_trim_heap()


cdef int64_t WINDOW = STREAM_WINDOW_BYTES
cdef int64_t LEAST_BYTES = 64 << 20
cdef int64_t SLACK_BYTES = 256 << 20        # orphans are over and above the limit

cdef int* SLOTS = [1, 15, 7, 3]             # slots of a block, by kind
cdef int* CELL_BYTES = [BLOCK, 1092, 2340, 5461]


cdef inline int smallest_kind(int64_t payload) noexcept:
    """The smallest cell for so many bytes."""
    if payload + HEADER <= 1092:
        return 1
    if payload + HEADER <= 2340:
        return 2
    if payload + HEADER <= 5461:
        return 3
    return 0


cdef inline int64_t bytes_for(int64_t payload) noexcept:
    """Bytes of the cells of a body of known size that is held whole."""
    cdef int64_t rest = payload % PAYLOAD
    return payload // PAYLOAD * BLOCK + (CELL_BYTES[smallest_kind(rest)] if rest else 0)


cdef inline int64_t window_bytes() noexcept:
    return (WINDOW + PAYLOAD - 1) // PAYLOAD * BLOCK


cdef inline int64_t reservation(int64_t size, bint kept) noexcept:
    if size < 0 or (size > WINDOW and not kept):
        return window_bytes()
    return bytes_for(size)


cdef inline int kind_bits(uint32_t cell) noexcept:
    return cell >> 4 & 3


@cython.final
@cython.no_gc
cdef class CellView:
    """Exporter of some bytes of one cell; the cell counts it for as long as it lives."""

    cdef Arena arena
    cdef uint8_t* start
    cdef Py_ssize_t size
    cdef uint32_t cell
    cdef bint readonly

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.start, self.size, self.readonly, flags)

    def __dealloc__(self):
        if self.arena is not None:
            self.arena.view_gone(self.cell)


@cython.final
cdef class Arena:
    """All request bodies of the process. `limit_bytes` 0: no limit, but still counted."""

    def __cinit__(self, int64_t limit_bytes):
        if limit_bytes < 0:
            raise ValueError("limit_bytes is negative")
        # Slots of 1,092 bytes may each end up alone in a block, so a limit is worth up to 15 times its address space.
        cdef int64_t most = <int64_t>BLOCK << 26            # a handle has 26 bits for the block
        cdef int64_t wanted = min(limit_bytes, most) * MAX_SLOTS + SLACK_BYTES if limit_bytes else ARENA_UNLIMITED
        cdef int64_t least = limit_bytes if limit_bytes else LEAST_BYTES
        wanted = min(wanted, most)
        least = min(least, wanted)
        while True:
            self.base = <uint8_t*>arena_map(wanted)
            if self.base != NULL or wanted <= least:
                break
            wanted = max(wanted // 2, least)                # a limit on address space (ulimit -v)
        if self.base == NULL:
            raise MemoryError(f"cannot map {least} bytes for request bodies")
        self.block_count = <uint32_t>(wanted // BLOCK)
        self.blocks = <Block*>calloc(self.block_count, sizeof(Block))
        if self.blocks == NULL:
            raise MemoryError("no memory for the arena's books")
        self.limit = limit_bytes
        self.warm_head = self.warm_tail = self.cold_head = NO_BLOCK
        self.partial[0] = self.partial[1] = self.partial[2] = self.partial[3] = NO_BLOCK

    def __dealloc__(self):
        if self.base != NULL:
            arena_unmap(self.base, <size_t>self.block_count * BLOCK)
        free(self.blocks)

    def open(self, size, bint kept):
        """A body of `size` bytes (None: not known), its cells reserved; None when it does not fit now."""
        cdef int64_t known = -1 if size is None else size
        if size is not None and known < 0:
            raise ValueError("size is negative")
        cdef int64_t need = reservation(known, kept)
        if self.used + need > self.ceiling():
            return None
        cdef Body body = Body.__new__(Body)
        body.arena = self
        body.size = known
        body.kept = kept
        body.window_only = known < 0 or (known > WINDOW and not kept)
        body.reserved = need
        self.used += need
        self.live += 1
        return body

    def could_fit(self, size, bint kept):
        """Whether such a body fits while nothing else is there."""
        return reservation(-1 if size is None else size, kept) <= self.ceiling()

    def charge(self, int64_t size):
        """Count bytes that are held elsewhere; may pass the limit."""
        self.used += size

    def refund(self, int64_t size):
        """Take back a charge."""
        self.used -= size

    def trim(self, int64_t max_bytes):
        """Give the pages of at most `max_bytes` of free blocks back to the system, coldest first; how many it was."""
        cdef int64_t given = 0
        cdef uint32_t low, high, number
        while self.warm_tail != NO_BLOCK and given + BLOCK <= max_bytes:
            low = high = self.chill_coldest()
            given += BLOCK
            # Neighbours that follow each other in the list go in one call.
            while self.warm_tail != NO_BLOCK and given + BLOCK <= max_bytes:
                number = self.warm_tail
                if number == high + 1:
                    high = number
                elif low and number == low - 1:
                    low = number
                else:
                    break
                self.chill_coldest()
                given += BLOCK
            arena_give_back(self.base + <size_t>low * BLOCK, <size_t>(high - low + 1) * BLOCK)
        self.resident -= given
        self.spare -= given
        self.least_spare = max(self.least_spare - given, 0)
        return given

    def watch(self):
        """`least_spare` counts from now on."""
        self.least_spare = self.spare

    cdef inline int64_t ceiling(self) noexcept:
        return self.limit if self.limit else <int64_t>self.block_count * BLOCK

    cdef uint32_t chill_coldest(self) noexcept:
        """Move the last warm block to the cold list."""
        cdef uint32_t number = self.warm_tail
        self.unlink(number, &self.warm_head, &self.warm_tail)
        self.blocks[number].touched = False
        self.push(number, &self.cold_head, NULL)
        return number

    # --- cells ----------------------------------------------------------------------------------------------------
    cdef uint8_t* cell_start(self, uint32_t cell) noexcept:
        return self.base + <size_t>(cell >> 6) * BLOCK + <size_t>(cell & 15) * CELL_BYTES[kind_bits(cell)]

    cdef int view_count(self, uint32_t cell) noexcept:
        return self.blocks[cell >> 6].views[cell & 15]

    cdef object view(self, uint32_t cell, uint8_t* start, Py_ssize_t size, bint readonly):
        cdef Block* block = &self.blocks[cell >> 6]
        cdef CellView exporter
        if block.views[cell & 15] == 255:
            raise BufferError("255 views of one cell")
        exporter = CellView.__new__(CellView)
        exporter.start = start
        exporter.size = size
        exporter.cell = cell
        exporter.readonly = readonly
        exporter.arena = self
        block.views[cell & 15] += 1
        self.views += 1
        return PyMemoryView_FromObject(exporter)

    cdef void view_gone(self, uint32_t cell) noexcept:
        cdef Block* block = &self.blocks[cell >> 6]
        cdef uint16_t bit = <uint16_t>(1 << (cell & 15))
        self.views -= 1
        block.views[cell & 15] -= 1
        if block.orphans & bit and block.views[cell & 15] == 0:
            block.orphans &= ~bit
            self.used -= CELL_BYTES[kind_bits(cell)]
            self.free_cell(cell)

    cdef uint32_t take_cell(self, int kind) noexcept:
        cdef uint32_t number
        cdef Block* block
        cdef int slot
        if kind == 0:
            number = self.take_block()
            if number == NO_BLOCK:
                return NO_CELL
            self.blocks[number].kind = 0
            return number << 6
        number = self.partial[kind]
        if number == NO_BLOCK:
            number = self.take_block()
            if number == NO_BLOCK:
                return NO_CELL
            self.blocks[number].kind = kind
            self.blocks[number].free_slots = <uint16_t>((1 << SLOTS[kind]) - 1)
            self.push(number, &self.partial[kind], NULL)
        block = &self.blocks[number]
        slot = arena_lowest_bit(block.free_slots)
        block.free_slots &= block.free_slots - 1
        if block.free_slots == 0:
            self.unlink(number, &self.partial[kind], NULL)
        return number << 6 | <uint32_t>kind << 4 | <uint32_t>slot

    cdef void give_cell(self, uint32_t cell) noexcept:
        cdef Block* block = &self.blocks[cell >> 6]
        if block.views[cell & 15]:
            block.orphans |= <uint16_t>(1 << (cell & 15))
            self.used += CELL_BYTES[kind_bits(cell)]
        else:
            self.free_cell(cell)

    cdef void free_cell(self, uint32_t cell) noexcept:
        cdef uint32_t number = cell >> 6
        cdef Block* block = &self.blocks[number]
        cdef int kind = block.kind
        if kind == 0:
            self.free_block(number)
            return
        if block.free_slots == 0:
            self.push(number, &self.partial[kind], NULL)
        block.free_slots |= <uint16_t>(1 << (cell & 15))
        if block.free_slots == (1 << SLOTS[kind]) - 1:
            self.unlink(number, &self.partial[kind], NULL)
            self.free_block(number)

    # --- blocks ---------------------------------------------------------------------------------------------------
    cdef uint32_t take_block(self) noexcept:
        cdef uint32_t number
        if self.warm_head != NO_BLOCK:
            number = self.warm_head
            self.unlink(number, &self.warm_head, &self.warm_tail)
            self.spare -= BLOCK
            if self.spare < self.least_spare:
                self.least_spare = self.spare
            return number
        if self.cold_head != NO_BLOCK:
            number = self.cold_head
            self.unlink(number, &self.cold_head, NULL)
        elif self.high < self.block_count:
            number = self.high
            self.high += 1
        else:
            return NO_BLOCK
        self.blocks[number].touched = True
        self.resident += BLOCK
        return number

    cdef void free_block(self, uint32_t number) noexcept:
        self.push(number, &self.warm_head, &self.warm_tail)
        self.spare += BLOCK

    cdef void push(self, uint32_t number, uint32_t* head, uint32_t* tail) noexcept:
        cdef Block* block = &self.blocks[number]
        block.previous = NO_BLOCK
        block.next = head[0]
        if head[0] != NO_BLOCK:
            self.blocks[head[0]].previous = number
        elif tail != NULL:
            tail[0] = number
        head[0] = number

    cdef void unlink(self, uint32_t number, uint32_t* head, uint32_t* tail) noexcept:
        cdef Block* block = &self.blocks[number]
        if block.previous != NO_BLOCK:
            self.blocks[block.previous].next = block.next
        else:
            head[0] = block.next
        if block.next != NO_BLOCK:
            self.blocks[block.next].previous = block.previous
        elif tail != NULL:
            tail[0] = block.previous


@cython.final
@cython.no_gc_clear     # what __dealloc__ gives back, it gives to the arena, which must still be there
cdef class Body:
    """One request body. Offsets count from its first byte, also where the first cells are gone."""

    def __dealloc__(self):
        self.let_go()
        if self.cells != &self.only_cell:
            free(self.cells)

    # --- in: from the client's socket -----------------------------------------------------------------------------
    def writable(self):
        """Room for the next bytes, to the end of one cell; None while there is none."""
        cdef Py_ssize_t size = 0
        cdef uint8_t* start = self.room(&size)
        if start == NULL:
            return None
        return self.arena.view(self.cells[self.count - 1], start, size, False)

    def commit(self, Py_ssize_t size):
        """`size` bytes were written to what `writable` gave."""
        self.took(size)

    def append(self, data):
        """Copy in as much as there is room for; returns how much that was."""
        cdef Py_buffer source
        cdef Py_ssize_t taken = 0, size = 0
        cdef uint8_t* target
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            while taken < source.len:
                target = self.room(&size)
                if target == NULL:
                    break
                size = min(size, source.len - taken)
                memcpy(target, <const uint8_t*>source.buf + taken, size)
                self.took(size)
                taken += size
        finally:
            PyBuffer_Release(&source)
        return taken

    def finish(self):
        """No more bytes come; what was reserved for them goes back."""
        if self.released or self.complete:
            return
        self.complete = True
        if not self.kept:
            self.drop_below(self.sent)
        if self.size < 0 and self.count == 1 and self.first == 0 and self.sent == 0:
            self.shrink_only_cell()
        self.set_reserved(self.held)

    def grow(self):
        """One more cell for a kept body of unknown size, if the arena has it."""
        if self.released or self.complete or self.arena.used + BLOCK > self.arena.ceiling():
            return False
        self.set_reserved(self.reserved + BLOCK)
        return True

    # --- out: to the upstream -------------------------------------------------------------------------------------
    def peek(self, int64_t offset, Py_ssize_t size):
        """At most `size` received bytes from `offset` on, to the end of one cell."""
        cdef Py_ssize_t there = 0
        cdef uint8_t* start = self.span(offset, &there)
        if there == 0 or size <= 0:
            return memoryview(b"")
        return self.arena.view(self.cells[offset // PAYLOAD - self.first], start, min(there, size), True)

    def sent_to(self, int64_t offset):
        """Bytes below `offset` were handed out. A body that is not kept frees their cells."""
        self.handed_out(offset)

    def drop_copy(self):
        """Give up the second attempt: everything sent is freed now, the rest as it is sent."""
        if self.released or not self.kept:
            return
        self.kept = False
        self.drop_below(self.sent)
        if self.complete:
            self.set_reserved(self.held)
        elif self.size < 0 or self.size - self.first * PAYLOAD > WINDOW:
            self.window_only = True
            self.set_reserved(max(self.held, min(self.reserved, window_bytes())))
        else:
            self.set_reserved(bytes_for(self.size - self.first * PAYLOAD))

    def release(self):
        """Free everything. Views that are out stay valid; their cells are freed with them."""
        self.let_go()
        self.on_room = None

    cdef void let_go(self) noexcept:
        cdef uint32_t i
        if self.released or self.arena is None:
            return
        self.released = True
        self.set_reserved(0)
        for i in range(self.count):
            self.arena.give_cell(self.cells[i])
        self.first += self.count
        self.count = 0
        self.held = 0
        self.arena.live -= 1

    # --- for compiled callers -------------------------------------------------------------------------------------
    cdef uint8_t* room(self, Py_ssize_t* size) except? NULL:
        cdef int64_t number = self.received // PAYLOAD, inside = self.received % PAYLOAD, end
        cdef uint32_t cell
        cdef int kind
        size[0] = 0
        if self.released or self.complete or (self.size >= 0 and self.received >= self.size):
            return NULL
        if number >= self.first + self.count:
            kind = self.kind_of(number)
            if self.held + CELL_BYTES[kind] > self.reserved:
                return NULL
            cell = self.arena.take_cell(kind)
            if cell == NO_CELL:
                return NULL
            self.append_cell(cell)
            self.held += CELL_BYTES[kind]
        cell = self.cells[self.count - 1]
        end = CELL_BYTES[kind_bits(cell)] - HEADER
        if self.size >= 0:
            end = min(end, self.size - number * PAYLOAD)
        size[0] = end - inside
        return self.arena.cell_start(cell) + HEADER + inside

    cdef int took(self, Py_ssize_t size) except -1:
        cdef int64_t number = self.received // PAYLOAD, inside = self.received % PAYLOAD, end
        if size == 0:
            return 0
        if size < 0 or self.released or self.complete or number >= self.first + self.count:
            raise ValueError("no room was handed out for these bytes")
        end = CELL_BYTES[kind_bits(self.cells[number - self.first])] - HEADER
        if self.size >= 0:
            end = min(end, self.size - number * PAYLOAD)
        if size > end - inside:
            raise ValueError("more bytes than there was room for")
        self.received += size
        return 0

    cdef uint8_t* span(self, int64_t offset, Py_ssize_t* size) except? NULL:
        cdef int64_t number = offset // PAYLOAD
        size[0] = 0
        if self.released or offset < 0 or number < self.first:
            raise ValueError("these bytes are gone")
        if offset >= self.received:
            return NULL
        size[0] = min((number + 1) * PAYLOAD, self.received) - offset
        return self.arena.cell_start(self.cells[number - self.first]) + HEADER + offset % PAYLOAD

    cdef bint can_stamp(self, int64_t offset) noexcept:
        return (
            offset % PAYLOAD == 0 and self.arena.view_count(self.cells[offset // PAYLOAD - self.first]) == 0
        )

    cdef object framed(self, int64_t offset, Py_ssize_t size):
        cdef uint32_t cell = self.cells[offset // PAYLOAD - self.first]
        return self.arena.view(cell, self.arena.cell_start(cell), size + HEADER, True)

    cdef int handed_out(self, int64_t offset) except -1:
        cdef bint stalled
        if offset > self.received:
            raise ValueError("sent more than was received")
        if offset <= self.sent:
            return 0
        self.sent = offset
        if self.kept or self.released:
            return 0
        stalled = not self.has_room()
        self.drop_below(offset)
        if stalled and self.on_room is not None and self.has_room():
            self.on_room()
        return 0

    # --- inside ---------------------------------------------------------------------------------------------------
    cdef int kind_of(self, int64_t number) noexcept:
        """Size class of the body's cell of that number."""
        if self.size < 0 or self.size >= (number + 1) * PAYLOAD:
            return 0
        return smallest_kind(self.size - number * PAYLOAD)

    cdef bint has_room(self) noexcept:
        cdef int64_t number = self.received // PAYLOAD
        if self.released or self.complete or (self.size >= 0 and self.received >= self.size):
            return False
        return number < self.first + self.count or self.held + CELL_BYTES[self.kind_of(number)] <= self.reserved

    cdef int append_cell(self, uint32_t cell) except -1:
        cdef uint32_t* larger
        cdef uint32_t room_for
        if self.cells == NULL:
            self.cells = &self.only_cell
            self.room_for = 1
        if self.count == self.room_for:
            room_for = 18 if self.room_for == 1 else self.room_for * 2
            larger = <uint32_t*>malloc(room_for * sizeof(uint32_t))
            if larger == NULL:
                self.arena.give_cell(cell)
                raise MemoryError
            memcpy(larger, self.cells, self.count * sizeof(uint32_t))
            if self.cells != &self.only_cell:
                free(self.cells)
            self.cells = larger
            self.room_for = room_for
        self.cells[self.count] = cell
        self.count += 1
        return 0

    cdef void shrink_only_cell(self) noexcept:
        """A small body whose size was not known before moves to the cell it would have had."""
        cdef int kind = smallest_kind(self.received)
        cdef uint32_t old = self.cells[0], cell
        if kind == 0 or self.arena.view_count(old):
            return
        cell = self.arena.take_cell(kind)
        if cell == NO_CELL:
            return
        memcpy(self.arena.cell_start(cell) + HEADER, self.arena.cell_start(old) + HEADER, self.received)
        self.cells[0] = cell
        self.held = CELL_BYTES[kind]
        self.arena.give_cell(old)

    cdef void drop_below(self, int64_t offset) noexcept:
        """Free the cells that end at or below `offset`; all of them when the body was sent to its end."""
        cdef uint32_t i, gone = 0
        cdef bint whole = self.complete and offset == self.received
        while gone < self.count and (whole or (self.first + gone + 1) * PAYLOAD <= offset):
            gone += 1
        if gone == 0:
            return
        for i in range(gone):
            self.held -= CELL_BYTES[kind_bits(self.cells[i])]
            self.arena.give_cell(self.cells[i])
        self.count -= gone
        self.first += gone
        memmove(self.cells, self.cells + gone, self.count * sizeof(uint32_t))
        if self.complete:
            self.set_reserved(self.held)
        elif not self.window_only:
            # A body of known size below a window: no cell of these comes again.
            self.set_reserved(bytes_for(max(self.size - self.first * PAYLOAD, 0)))
        else:
            # What a kept copy had above the window goes back as it is sent.
            self.set_reserved(max(self.held, min(self.reserved, window_bytes())))

    cdef void set_reserved(self, int64_t size) noexcept:
        self.arena.used += size - self.reserved
        self.reserved = size
