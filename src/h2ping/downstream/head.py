"""The head of a request, from its bytes to a `Request`: strictly, and never against what llhttp makes of it.

Two ways, one for each twin of a client's bytes. Both check the head to the byte before anybody splits it
(`headers.check_head`), and in both llhttp has its say: what another parser would read as another request is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httptools

from h2ping import headers
from h2ping.errors import BAD_REQUEST, DownstreamError

if TYPE_CHECKING:
    from h2ping.headers import Fields, Request

# Any token is a method (RFC 9110 section 9.1), but llhttp refuses those it does not know; these it does.
_PARSED_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"})
_NOTHING = object()
"""For llhttp's verdict alone: without callbacks a head costs it about a microsecond."""


class _Fields:
    """Callbacks of httptools for one head."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


def _let_llhttp_read(raw: bytes, method: bytes, sink: object) -> bool:
    """Feed a whole head to httptools. False when llhttp refuses it."""
    if method not in _PARSED_METHODS:
        raw = b"POST" + raw[len(method) :]
    try:
        httptools.HttpRequestParser(sink).feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # an offer that is not taken up (RFC 9110 section 7.8); the head was read to its end
    except httptools.HttpParserError:
        return False
    return True


def read_by_llhttp(raw: bytes, upstream_prefix: bytes) -> Request:
    """The request in a whole head, which llhttp splits. Raises DownstreamError."""
    headers.check_head(raw)
    method, target, version = raw[: raw.index(b"\r\n")].split(b" ")
    sink = _Fields()
    if not _let_llhttp_read(raw, method, sink):
        # What is ambiguous about it is told by a better name than the parser's.
        headers.parse_request(*headers.split_head(raw), upstream_prefix)
        raise DownstreamError(BAD_REQUEST, "malformed head")
    return headers.parse_request(method, target, version[5:].decode(), sink.fields, upstream_prefix)


def read_by_table(raw: bytes, upstream_prefix: bytes) -> Request:
    """The same with the compiled scan, which splits as it checks."""
    assert headers.compiled is not None
    split: tuple[bytes, bytes, str, Fields, Fields] | None = headers.compiled.split_head(
        raw, headers.READ_HERE
    )
    if split is None:
        headers.check_head(raw)  # knows the right words
        raise DownstreamError(BAD_REQUEST, "malformed head")
    method, target, version, fields, read = split
    # Read first: what is ambiguous about a head is told by a better name than the parser's.
    request = headers.read_request(method, target, version, fields, read, upstream_prefix)
    if not _let_llhttp_read(raw, method, _NOTHING):
        raise DownstreamError(BAD_REQUEST, "malformed head")
    return request
