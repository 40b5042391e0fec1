# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""HPACK (RFC 7541): header blocks to and from lists of (name, value).

Theory of operation
-------------------
A table entry is the Python tuple itself, so an indexed field is decoded by handing out a tuple that exists already and
encoded by one dict look-up of the tuple the caller brought.

1. The encoder finds fields and names by hash, never by a scan. Each dynamic entry has a serial number; its index is
   its distance from the newest serial, so that insertion renumbers nothing.
2. A field is written as its class says: with indexing, without, or never indexed. A secret is never indexed, neither
   in the table nor by an index of a whole static entry.
3. The encoder never uses more than 4,096 octets of table, whatever the peer allows, and after a change of the peer's
   limit the next block begins with the smallest and then the final size (section 4.2).
4. An encoder that failed in the middle of a block starts over: the peer has not seen that block's insertions, so the
   next block empties both tables.
5. The decoder bounds every read. Whatever it cannot decode is an HpackError, which the caller answers with a
   connection error COMPRESSION_ERROR (RFC 9113 section 4.3).
6. A field section above the limits is read to its end without being kept, then reported as FieldSectionTooLarge: the
   table is still in step with the peer, and only that stream fails.

The codec does not know which fields are secret or volatile (it is told), which names are legal, and what HTTP means.
The `hpack` package is the source of the static table and the oracle in the tests. There is no plain twin: the plain
engine is h2, which brings that package along.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItemWithError
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from h2ping._fast cimport huffman

from hpack.table import HeaderTable

cdef enum:
    STATIC_COUNT = 61        # RFC 7541 appendix A
    ENTRY_OVERHEAD = 32      # section 4.1
    DEFAULT_TABLE = 4096     # RFC 9113 section 6.5.2; also the most our encoder uses
    CLASSES_KEPT = 512       # answers of classify kept; names come from clients, so there must be an end
    LONGEST_KEPT = 64        # and of names that are no longer than that


class HpackError(Exception):
    """The block cannot be decoded; the connection's tables are out of step for good (RFC 7541 section 5 to 6)."""


class FieldSectionTooLarge(Exception):
    """The block is above our limits; it was read to its end, and the connection can go on."""


# --- the static table, RFC 7541 appendix A; indexes in it are negative in the look-up dicts ----------------------

cdef list STATIC = [None, *((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE)]
cdef dict STATIC_FIELDS = {}
cdef dict STATIC_NAMES = {}

cdef int index_static_table() except -1:
    cdef int index
    for index in range(STATIC_COUNT, 0, -1):  # so that of several fields of one name the first stays
        STATIC_FIELDS[STATIC[index]] = -index
        STATIC_NAMES[STATIC[index][0]] = -index
    return 0


index_static_table()


# --- the dynamic table, RFC 7541 section 2.3.2 and 4 -----------------------------------------------------------

@cython.final
cdef class Table:

    def __cinit__(self):
        self.ring = [None]

    cdef int reserve(self, Py_ssize_t max_size) except -1:
        cdef Py_ssize_t room = len(self.ring)
        cdef int64_t serial
        if room * ENTRY_OVERHEAD >= max_size:
            return 0
        while room * ENTRY_OVERHEAD < max_size:
            room *= 2
        ring = [None] * room
        for serial in range(self.newest - self.count + 1, self.newest + 1):
            ring[serial & (room - 1)] = self.ring[serial & self.mask]
        self.ring = ring
        self.mask = room - 1
        return 0

    cdef int64_t add(self, tuple field, Py_ssize_t size) except -1:
        self.newest += 1
        self.ring[<Py_ssize_t>(self.newest & self.mask)] = field
        self.count += 1
        self.size += size
        return self.newest

    cdef tuple drop_oldest(self):
        cdef Py_ssize_t at = <Py_ssize_t>((self.newest - self.count + 1) & self.mask)
        cdef tuple field = <tuple>self.ring[at]
        self.ring[at] = None
        self.count -= 1
        self.size -= entry_size(field)
        return field


cdef inline Py_ssize_t entry_size(tuple field) except -1:
    return (
        PyBytes_GET_SIZE(<object>PyTuple_GET_ITEM(field, 0))
        + PyBytes_GET_SIZE(<object>PyTuple_GET_ITEM(field, 1))
        + ENTRY_OVERHEAD
    )


# --- encoding --------------------------------------------------------------------------------------------------

def index_all(bytes name):
    """The class of any field, unless the encoder is told better."""
    return 0


@cython.final
cdef class Encoder:
    """The sending half of one connection's HPACK state."""

    def __cinit__(self, classify=index_all):
        self.classify = classify
        self.classes = {}
        self.field_index = dict(STATIC_FIELDS)
        self.name_index = dict(STATIC_NAMES)
        self.table = Table()
        self.table.reserve(DEFAULT_TABLE)
        self.table.max_size = self.told = self.smallest = DEFAULT_TABLE

    def __dealloc__(self):
        free(self.out)

    def encode_block(self, fields):
        """One header block from an iterable of (name, value)."""
        self.encode(list(fields))
        return PyBytes_FromStringAndSize(<char*>self.out, <Py_ssize_t>self.out_len)

    @property
    def header_table_size(self):
        """The table's size in force; set it to what the peer's SETTINGS_HEADER_TABLE_SIZE allows."""
        return self.table.max_size

    @header_table_size.setter
    def header_table_size(self, size_t peer_limit):
        self.resize(peer_limit)

    @property
    def table_fields(self):
        """The dynamic table, newest first."""
        return table_fields(self.table)

    cdef int encode(self, list fields) except -1:
        self.out_len = 0
        try:
            self.announce_size()
            for field in fields:
                self.write_field(field)
        except BaseException:
            self.out_len = 0
            size = self.table.max_size
            self.set_size(0)  # rule 4
            self.table.max_size = size
            self.told = DEFAULT_TABLE + 1  # so that the smallest is announced even where the peer was told 0
            raise
        if len(self.classes) > CLASSES_KEPT:
            self.classes.clear()
        return 0

    cdef int resize(self, size_t peer_limit) except -1:
        return self.set_size(<Py_ssize_t>min(peer_limit, <size_t>DEFAULT_TABLE))

    cdef int set_size(self, Py_ssize_t size) except -1:
        """Let the table hold `size` octets, less or more than now."""
        self.table.max_size = size
        self.smallest = min(self.smallest, size)
        return self.make_room(0)

    cdef int make_room(self, Py_ssize_t size) except -1:
        """Evict until `size` more octets fit, forgetting what pointed at the evicted (section 4.4)."""
        cdef int64_t serial
        while self.table.count and self.table.size + size > self.table.max_size:
            serial = self.table.newest - self.table.count + 1
            field = self.table.drop_oldest()
            # A newer entry of the same field or name has taken the place over already.
            if self.field_index[field] == serial:
                del self.field_index[field]
            if self.name_index[field[0]] == serial:
                del self.name_index[field[0]]
        return 0

    cdef int announce_size(self) except -1:
        """Dynamic table size updates that are due: the smallest, then the final (section 4.2, 6.3)."""
        if self.smallest < self.told:
            self.write_integer(0x20, 5, <size_t>self.smallest)
            self.told = self.smallest
        if self.table.max_size != self.told:
            self.write_integer(0x20, 5, <size_t>self.table.max_size)
            self.told = self.table.max_size
        self.smallest = self.told
        return 0

    cdef int write_field(self, object field) except -1:
        """One representation of section 6.1 or 6.2."""
        cdef int field_class
        cdef int64_t serial
        cdef size_t known = 0       # index of the name; 0: in no table
        cdef bint is_static = False
        cdef PyObject* found        # borrowed: `make_room` may free it
        cdef Py_ssize_t size
        if not PyTuple_Check(field) or PyTuple_GET_SIZE(field) != 2:
            raise TypeError("a field is a (name, value) tuple")
        name = <object>PyTuple_GET_ITEM(field, 0)
        value = <object>PyTuple_GET_ITEM(field, 1)
        if not PyBytes_Check(name) or not PyBytes_Check(value):
            raise TypeError("names and values of fields are bytes")
        field_class = self.class_of(<bytes>name)
        if field_class == INDEX:
            found = PyDict_GetItemWithError(self.field_index, field)
            if found != NULL:
                return self.write_integer(0x80, 7, self.index_of(<object>found))
        size = PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(value) + ENTRY_OVERHEAD
        if field_class == INDEX and 2 * size > self.table.max_size:
            field_class = WITHOUT_INDEX  # it would push everything else out
        found = PyDict_GetItemWithError(self.name_index, name)
        if found != NULL:
            known = self.index_of(<object>found)
            is_static = known <= STATIC_COUNT
        if field_class == INDEX:
            self.write_integer(0x40, 6, known)
        else:
            self.write_integer(0x10 if field_class == NEVER_INDEX else 0, 4, known)
        if not known:
            self.write_string(<bytes>name)
        self.write_string(<bytes>value)
        if field_class == INDEX:
            self.make_room(size)
            serial = self.table.add(<tuple>field, size)
            self.field_index[field] = serial
            if not is_static:
                self.name_index[name] = serial
        return 0

    cdef inline size_t index_of(self, object place) except? 0:
        cdef int64_t serial = place
        return <size_t>(-serial if serial < 0 else STATIC_COUNT + 1 + self.table.newest - serial)

    cdef int class_of(self, bytes name) except -1:
        cdef PyObject* found = PyDict_GetItemWithError(self.classes, name)
        if found != NULL:
            return <object>found
        answer = self.classify(name)
        if PyBytes_GET_SIZE(name) <= LONGEST_KEPT:
            self.classes[name] = answer
        return answer

    cdef int ensure(self, size_t more) except -1:
        cdef size_t room
        cdef uint8_t* out
        if self.out_len + more <= self.out_room:
            return 0
        room = max(512, 2 * (self.out_len + more))
        out = <uint8_t*>realloc(self.out, room)
        if out == NULL:
            raise MemoryError
        self.out = out
        self.out_room = room
        return 0

    cdef int write_integer(self, uint8_t flags, int prefix, size_t value) except -1:
        """An integer behind `flags` in the first octet (section 5.1)."""
        cdef uint8_t most = <uint8_t>((1 << prefix) - 1)
        cdef uint8_t* at
        self.ensure(11)
        at = self.out + self.out_len
        if value < most:
            at[0] = flags | <uint8_t>value
            self.out_len += 1
            return 0
        at[0] = flags | most
        at += 1
        value -= most
        while value >= 0x80:
            at[0] = 0x80 | <uint8_t>(value & 0x7F)
            at += 1
            value >>= 7
        at[0] = <uint8_t>value
        self.out_len = <size_t>(at + 1 - self.out)
        return 0

    cdef int write_string(self, bytes string) except -1:
        """A string, in the Huffman code where that is shorter (section 5.2)."""
        cdef size_t length = <size_t>PyBytes_GET_SIZE(string)
        cdef const uint8_t* octets = <const uint8_t*>PyBytes_AS_STRING(string)
        cdef size_t coded = huffman.encoded_size(octets, length)
        if coded < length:
            self.write_integer(0x80, 7, coded)
            self.ensure(coded)
            huffman.encode(octets, length, self.out + self.out_len)
            self.out_len += coded
        else:
            self.write_integer(0, 7, length)
            self.ensure(length)
            memcpy(self.out + self.out_len, octets, length)
            self.out_len += length
        return 0


# --- decoding --------------------------------------------------------------------------------------------------

cdef inline uint64_t read_integer(const uint8_t** position, const uint8_t* end, int prefix) except? 0:
    """Section 5.1. Five octets after the prefix are enough for anything that can be right, and cannot overflow."""
    cdef const uint8_t* at = position[0]
    cdef uint64_t most = (1 << prefix) - 1
    cdef uint64_t value
    cdef int shift = 0
    cdef uint8_t octet
    if at >= end:
        raise HpackError("the block ends before an integer")
    value = at[0] & most
    at += 1
    if value == most:
        while True:
            if at >= end:
                raise HpackError("the block ends inside an integer")
            if shift > 28:
                raise HpackError("an integer is longer than five octets")
            octet = at[0]
            at += 1
            value += <uint64_t>(octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                break
    position[0] = at
    return value


@cython.final
cdef class Decoder:
    """The receiving half of one connection's HPACK state."""

    def __cinit__(self, size_t max_section_bytes=0, size_t max_fields=0):
        self.max_section_bytes = max_section_bytes
        self.max_fields = max_fields
        self.table = Table()
        self.table.max_size = DEFAULT_TABLE
        self.allow(DEFAULT_TABLE)

    def __dealloc__(self):
        free(self.scratch)

    def decode_block(self, bytes block not None):
        """The fields of one complete header block."""
        return self.decode(<const uint8_t*>PyBytes_AS_STRING(block), <size_t>PyBytes_GET_SIZE(block))

    @property
    def max_allowed_table_size(self):
        """What our acknowledged SETTINGS_HEADER_TABLE_SIZE lets the peer's encoder use."""
        return self.limit

    @max_allowed_table_size.setter
    def max_allowed_table_size(self, size_t limit):
        self.allow(limit)

    @property
    def max_header_list_size(self):
        """max_section_bytes, by the name h2 sets it."""
        return self.max_section_bytes

    @max_header_list_size.setter
    def max_header_list_size(self, size_t limit):
        self.max_section_bytes = limit

    @property
    def header_table_size(self):
        """The size the peer's encoder has chosen."""
        return self.table.max_size

    @property
    def table_fields(self):
        """The dynamic table, newest first."""
        return table_fields(self.table)

    cdef int allow(self, size_t limit) except -1:
        self.table.reserve(<Py_ssize_t>limit)
        self.limit = <Py_ssize_t>limit
        return 0

    cdef list decode(self, const uint8_t* octets, size_t length):
        cdef const uint8_t* position = octets
        cdef const uint8_t* end = octets + length
        cdef list fields = []
        cdef size_t section_bytes = 0, count = 0
        cdef uint64_t value
        cdef bint too_large = False
        cdef uint8_t first
        cdef tuple field
        cdef Py_ssize_t size
        while position < end and position[0] & 0xE0 == 0x20:  # section 6.3, at the start only (section 4.2)
            value = read_integer(&position, end, 5)
            if value > <uint64_t>self.limit:
                raise HpackError("a table size update above our limit")
            self.set_size(<Py_ssize_t>value)
        if self.table.max_size > self.limit:
            raise HpackError("no table size update after our limit was lowered")
        while position < end:
            first = position[0]
            if first & 0x80:  # section 6.1
                field = self.entry(read_integer(&position, end, 7))
                size = entry_size(field)
            elif first & 0xE0 == 0x20:
                raise HpackError("a table size update after the first field")
            else:  # section 6.2
                value = read_integer(&position, end, 6 if first & 0x40 else 4)
                name = self.read_string(&position, end) if value == 0 else self.entry(value)[0]
                field = (name, self.read_string(&position, end))
                size = entry_size(field)
                if first & 0x40:
                    self.insert(field, size)
            count += 1
            section_bytes += <size_t>size
            if too_large:
                continue
            if 0 < self.max_section_bytes < section_bytes or 0 < self.max_fields < count:
                too_large = True  # rule 6
                fields = []
            else:
                fields.append(field)
        if too_large:
            raise FieldSectionTooLarge(f"{count} fields, {section_bytes} octets as RFC 9113 section 6.5.2 counts them")
        return fields

    cdef tuple entry(self, uint64_t index):
        """A field by its index (section 2.3.3)."""
        cdef int64_t serial
        if 0 < index <= STATIC_COUNT:
            return <tuple>STATIC[<Py_ssize_t>index]
        if index == 0 or index - STATIC_COUNT > <uint64_t>self.table.count:
            raise HpackError("an index outside the tables")
        serial = self.table.newest + STATIC_COUNT + 1 - <int64_t>index
        return <tuple>self.table.ring[<Py_ssize_t>(serial & self.table.mask)]

    cdef bytes read_string(self, const uint8_t** position, const uint8_t* end):
        """Section 5.2."""
        cdef bint coded = position[0] < end and position[0][0] & 0x80
        cdef uint64_t length = read_integer(position, end, 7)
        cdef const uint8_t* octets = position[0]
        cdef Py_ssize_t decoded
        cdef uint8_t* scratch
        if length > <uint64_t>(end - octets):
            raise HpackError("the block ends inside a string")
        position[0] = octets + length
        if not coded:
            return PyBytes_FromStringAndSize(<const char*>octets, <Py_ssize_t>length)
        if self.scratch_room < 2 * length:
            scratch = <uint8_t*>realloc(self.scratch, 4 * length)
            if scratch == NULL:
                raise MemoryError
            self.scratch = scratch
            self.scratch_room = 4 * length
        decoded = huffman.decode(octets, length, self.scratch)
        if decoded < 0:
            raise HpackError("not a string in the Huffman code")
        return PyBytes_FromStringAndSize(<const char*>self.scratch, decoded)

    cdef int insert(self, tuple field, Py_ssize_t size) except -1:
        """A field larger than the table empties it and is not an error (section 4.4)."""
        while self.table.count and self.table.size + size > self.table.max_size:
            self.table.drop_oldest()
        if size <= self.table.max_size:
            self.table.add(field, size)
        return 0

    cdef int set_size(self, Py_ssize_t size) except -1:
        self.table.max_size = size
        while self.table.size > size:
            self.table.drop_oldest()
        return 0


cdef list table_fields(Table table):
    cdef int64_t serial
    return [table.ring[serial & table.mask] for serial in range(table.newest, table.newest - table.count, -1)]
