"""The `hpack` package behind the interface of `h2ping._fast.hpack`, so that tests run over both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hpack
from hpack.exceptions import HPACKError, OversizedHeaderListError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Field = tuple[bytes, bytes]


class HpackError(Exception):
    pass


class FieldSectionTooLarge(Exception):
    pass


class Encoder:
    def __init__(self, classify: Callable[[bytes], int] = lambda name: 0) -> None:
        self._classify = classify
        self._encoder = hpack.Encoder()

    def encode_block(self, fields: Iterable[Field]) -> bytes:
        # The package knows two classes only: with indexing and never indexed.
        return self._encoder.encode([(name, value, self._classify(name) == 2) for name, value in fields])

    @property
    def header_table_size(self) -> int:
        return self._encoder.header_table_size

    @header_table_size.setter
    def header_table_size(self, size: int) -> None:
        self._encoder.header_table_size = size

    @property
    def table_fields(self) -> list[Field]:
        return [(name, value) for name, value in self._encoder.header_table.dynamic_entries]


class Decoder:
    def __init__(self, max_section_bytes: int = 0, max_fields: int = 0) -> None:
        self._decoder = hpack.Decoder(max_section_bytes or 1 << 40)
        self._max_fields = max_fields

    def decode_block(self, block: bytes) -> list[Field]:
        try:
            fields = [(field[0], field[1]) for field in self._decoder.decode(block, raw=True)]
        except OversizedHeaderListError as error:
            raise FieldSectionTooLarge(str(error)) from error
        except HPACKError as error:
            raise HpackError(str(error)) from error
        if 0 < self._max_fields < len(fields):
            raise FieldSectionTooLarge(f"{len(fields)} fields")
        return fields

    @property
    def max_allowed_table_size(self) -> int:
        return self._decoder.max_allowed_table_size

    @max_allowed_table_size.setter
    def max_allowed_table_size(self, size: int) -> None:
        self._decoder.max_allowed_table_size = size

    @property
    def header_table_size(self) -> int:
        return self._decoder.header_table_size

    @property
    def table_fields(self) -> list[Field]:
        return [(name, value) for name, value in self._decoder.header_table.dynamic_entries]
