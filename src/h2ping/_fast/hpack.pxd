# What other compiled modules may use of the HPACK codec; hpack.pyx says how it works.

from libc.stdint cimport int64_t, uint8_t, uint64_t


cpdef enum FieldClass:
    """What `classify` answers for a field name: how a literal of that name is written (RFC 7541 section 6.2)."""
    INDEX = 0           # with incremental indexing: the next field like it costs one byte
    WITHOUT_INDEX = 1   # another value each time: not worth a place in the table
    NEVER_INDEX = 2     # a secret: never in a table, here or at any later hop (section 7.1.3)


cdef class Table:
    """The dynamic table (RFC 7541 section 2.3.2): fields by serial number, oldest out first."""
    cdef:
        list ring            # (name, value) tuples; serial s lives at s & mask
        Py_ssize_t mask      # len(ring) - 1, a power of two less one
        int64_t newest       # serial of the newest entry; serials start at 1 and never repeat
        Py_ssize_t count     # entries; the live serials are newest - count + 1 .. newest
        Py_ssize_t size      # as RFC 7541 section 4.1 counts: octets plus 32 an entry
        Py_ssize_t max_size  # never exceeded by size

    cdef int reserve(self, Py_ssize_t max_size) except -1   # room for what max_size may hold; before raising it
    cdef int64_t add(self, tuple field, Py_ssize_t size) except -1   # the caller has made room; answers the serial
    cdef tuple drop_oldest(self)


cdef class Encoder:
    cdef:
        # --- the result of the last encode() --------------------------------------------------------------------
        uint8_t* out         # the header block; valid until the next encode()
        size_t out_len
        size_t out_room
        # --- the table and how to find things in it -------------------------------------------------------------
        Table table
        dict field_index     # (name, value) -> serial, or minus the index in the static table
        dict name_index      # name -> the same; a name of the static table keeps its static index
        # --- sizes, RFC 7541 section 4.2 ------------------------------------------------------------------------
        Py_ssize_t told      # the size the peer's decoder was last told
        Py_ssize_t smallest  # the smallest size in force since then
        # --- how fields are to be written -----------------------------------------------------------------------
        object classify      # name -> FieldClass
        dict classes         # its answers so far

    # One header block from a list of (name, value) tuples of bytes, into out/out_len. The peer must be sent every
    # block that was encoded, in order. After an exception there is nothing to send and the encoder is still good.
    cdef int encode(self, list fields) except -1
    cdef int resize(self, size_t peer_limit) except -1      # SETTINGS_HEADER_TABLE_SIZE arrived

    cdef int announce_size(self) except -1
    cdef int write_field(self, object field) except -1
    cdef int write_integer(self, uint8_t flags, int prefix, size_t value) except -1
    cdef int write_string(self, bytes string) except -1
    cdef int ensure(self, size_t more) except -1
    cdef int class_of(self, bytes name) except -1
    cdef size_t index_of(self, object place) except? 0
    cdef int make_room(self, Py_ssize_t size) except -1
    cdef int set_size(self, Py_ssize_t size) except -1


cdef class Decoder:
    cdef:
        Table table
        Py_ssize_t limit                # what our SETTINGS_HEADER_TABLE_SIZE allows the peer
        uint8_t* scratch                # Huffman strings are decoded here before they become bytes
        size_t scratch_room
        public size_t max_section_bytes  # names, values and 32 a field (RFC 9113 section 6.5.2); 0: no limit
        public size_t max_fields         # 0: no limit

    # The (name, value) tuples of one complete header block. Raises HpackError (the connection is lost) or
    # FieldSectionTooLarge (only the stream is: the table is in step and the next block decodes).
    cdef list decode(self, const uint8_t* octets, size_t length)
    cdef int allow(self, size_t limit) except -1            # our SETTINGS_HEADER_TABLE_SIZE was acknowledged

    cdef tuple entry(self, uint64_t index)
    cdef bytes read_string(self, const uint8_t** position, const uint8_t* end)
    cdef int insert(self, tuple field, Py_ssize_t size) except -1
    cdef int set_size(self, Py_ssize_t size) except -1
