from libc.stdint cimport uint8_t

cdef size_t encoded_size(const uint8_t* octets, size_t length) noexcept
cdef void encode(const uint8_t* octets, size_t length, uint8_t* out) noexcept     # writes encoded_size() octets
cdef Py_ssize_t decode(const uint8_t* octets, size_t length, uint8_t* out) noexcept  # out holds 2 * length octets
