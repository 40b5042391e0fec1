"""Field blocks of the plain engine: the `hpack` package, made safe for a connection that lives long.

1. The peer may offer a larger table than the default; we do not take it, because memory is counted per connection.
2. A size that is set again before the next block does not make the encoder forget the change it has to announce
   (hpack 4.2 forgets; RFC 7541 section 4.2).
3. A block is always decoded to its end, whatever comes of the stream: the table is the connection's
   (RFC 9113 section 4.3). hpack's own limit stops inside a block and leaves it out of step for all streams.

This module does not know streams, and what a field means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import hpack

from h2ping.headers import is_sensitive
from h2ping.upstream.splitter import ConnectionFault, ErrorCode

if TYPE_CHECKING:
    from h2ping.upstream.wire import Fields

TABLE_BYTES = 4096
"""What our encoder uses of the peer's table."""
NO_LIMIT_BYTES = 1 << 62


class BlockEncoder(hpack.Encoder):
    """hpack's encoder with a table that the peer may shrink and not blow up (rules 1 and 2)."""

    @property
    def header_table_size(self) -> int:
        return self.header_table.maxsize

    @header_table_size.setter
    def header_table_size(self, value: int) -> None:
        value = min(value, TABLE_BYTES)
        if value != self.header_table.maxsize:
            hpack.Encoder.header_table_size.__set__(self, value)  # type: ignore[attr-defined]


def field_tuples(fields: Fields) -> list[hpack.HeaderTuple]:
    """Fields as the encoder takes them: secrets are never indexed (RFC 7541 section 7.1.3)."""
    return [
        (hpack.NeverIndexedHeaderTuple if is_sensitive(name) else hpack.HeaderTuple)(name, value)
        for name, value in fields
    ]


class BlockDecoder:
    """The peer's blocks, decoded to their end (rule 3)."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(NO_LIMIT_BYTES)

    def fields(self, block: bytes) -> Fields:
        """The fields of a whole block; raises ConnectionFault."""
        try:
            return [(bytes(name), bytes(value)) for name, value in self._decoder.decode(block, raw=True)]
        except (hpack.HPACKError, IndexError, ValueError) as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"HPACK: {type(error).__name__}") from None
