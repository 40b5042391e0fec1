# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The Huffman code of HPACK strings (RFC 7541 section 5.2 and appendix B).

Theory of operation
-------------------
1. The code is canonical: left-aligned, codes grow with their length and, within one length, with their rank. So the
   length of the next code follows from comparing the next bits with the end of each length, and no tree is needed.
2. Codes of up to ten bits, which are all that usual fields contain, are decoded by one look-up instead.
3. Input ends in less than an octet of ones, the beginning of EOS. More padding, other padding and EOS itself are
   errors.

The tables are made at import from those of the `hpack` package.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

cdef enum:
    SYMBOLS = 257  # 256 octets and EOS
    EOS = 256
    LONGEST = 30   # bits of the longest codes, EOS among them
    PEEK = 10      # bits looked up at once

cdef uint32_t[SYMBOLS] code_bits
cdef uint8_t[SYMBOLS] code_length
cdef uint16_t[1 << PEEK] peeked        # length << 9 | symbol; 0: the code is longer
cdef uint16_t[SYMBOLS] by_rank         # symbols in the order of their codes
cdef uint64_t[LONGEST + 1] first_code  # of each length, left-aligned in 64 bits
cdef uint64_t[LONGEST + 1] code_end    # one past the last of each length, likewise; not set for the longest
cdef uint16_t[LONGEST + 1] first_rank  # of each length, in by_rank


cdef int make_tables() except -1:
    cdef int symbol, length, rank
    cdef uint32_t bits, peek
    for symbol in range(SYMBOLS):
        code_bits[symbol] = REQUEST_CODES[symbol]
        code_length[symbol] = REQUEST_CODES_LENGTH[symbol]
    order = sorted(range(SYMBOLS), key=lambda symbol: (REQUEST_CODES_LENGTH[symbol], REQUEST_CODES[symbol]))
    for rank, symbol in enumerate(order):
        length = code_length[symbol]
        bits = code_bits[symbol]
        by_rank[rank] = symbol
        if rank == 0 or length > code_length[by_rank[rank - 1]]:
            first_code[length] = <uint64_t>bits << (64 - length)
            first_rank[length] = rank
        if length < LONGEST:
            code_end[length] = <uint64_t>(bits + 1) << (64 - length)
        if length <= PEEK:
            for peek in range(bits << (PEEK - length), (bits + 1) << (PEEK - length)):
                peeked[peek] = length << 9 | symbol
    return 0


make_tables()


cdef size_t encoded_size(const uint8_t* octets, size_t length) noexcept:
    cdef size_t bits = 0, at
    for at in range(length):
        bits += code_length[octets[at]]
    return (bits + 7) >> 3


cdef void encode(const uint8_t* octets, size_t length, uint8_t* out) noexcept:
    cdef uint64_t bits = 0
    cdef int held = 0, size
    cdef size_t at
    for at in range(length):
        size = code_length[octets[at]]
        bits = bits << size | code_bits[octets[at]]
        held += size
        if held >= 32:
            held -= 32
            out[0] = <uint8_t>(bits >> (held + 24))
            out[1] = <uint8_t>(bits >> (held + 16))
            out[2] = <uint8_t>(bits >> (held + 8))
            out[3] = <uint8_t>(bits >> held)
            out += 4
    while held >= 8:
        held -= 8
        out[0] = <uint8_t>(bits >> held)
        out += 1
    if held:
        out[0] = <uint8_t>(bits << (8 - held) | (0xFF >> held))


cdef Py_ssize_t decode(const uint8_t* octets, size_t length, uint8_t* out) noexcept:
    """How many octets were written; -1 when the input is not the code of anything."""
    cdef const uint8_t* end = octets + length
    cdef uint8_t* start = out
    cdef uint64_t window = 0   # the next bits, left-aligned, zeros after them
    cdef uint64_t padded       # the same, ones after them
    cdef uint32_t entry
    cdef int held = 0, size
    while True:
        while held <= 56 and octets < end:
            window |= <uint64_t>octets[0] << (56 - held)
            held += 8
            octets += 1
        if held == 0:
            return out - start
        padded = window if held == 64 else window | ~<uint64_t>0 >> held
        entry = peeked[padded >> (64 - PEEK)]
        if entry:
            size = entry >> 9
        else:
            size = PEEK + 1
            while size < LONGEST and padded >= code_end[size]:
                size += 1
            entry = by_rank[first_rank[size] + ((padded - first_code[size]) >> (64 - size))]
        if size > held:  # what is left has to be padding
            return out - start if held < 8 and padded == ~<uint64_t>0 else -1
        if entry & 0x1FF == EOS:
            return -1
        out[0] = <uint8_t>entry
        out += 1
        window <<= size
        held -= size


def encode_string(bytes string not None):
    """The code of `string`."""
    out = bytearray(encoded_size(string, <size_t>len(string)))
    encode(string, <size_t>len(string), out)
    return bytes(out)


def decode_string(bytes code not None):
    """The string of `code`, or None when it is malformed."""
    out = bytearray(2 * len(code))
    length = decode(code, <size_t>len(code), out)
    return None if length < 0 else bytes(out[:length])
