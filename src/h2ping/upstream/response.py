"""What a response may look like: pure checks of field sections and body length.

Theory of operation
-------------------
1. A response that breaks HTTP semantics is *malformed* (RFC 9113 section 8.1.1): a stream error of type
   PROTOCOL_ERROR. Nothing of it is repaired and nothing is forwarded; other streams go on.
2. Both engines follow the rules of this file. The plain one calls it; the compiled one is held to it by the
   tests in tests/wire.

This module knows neither frames nor streams.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from h2ping.upstream.wire import Fields


class Malformed(Exception):
    """The response is malformed; the text says how, and holds no field value."""


# RFC 9110 section 5.1 allows a token only, RFC 9113 section 8.2.1 no upper-case letter in it.
_is_name = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
# RFC 9113 section 8.2.1: the three octets that could end a line or a string further down the path.
_has_forbidden = re.compile(rb"[\r\n\0]").search
_is_status = re.compile(rb"[1-9][0-9][0-9]").fullmatch
_is_length = re.compile(rb"[0-9]{1,18}").fullmatch
"""More digits may not fit 64 signed bits (RFC 9110 section 8.6: anticipate large numbers)."""

_EDGE_SPACE = (0x20, 0x09)

CONNECTION_SPECIFIC = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te")
)
"""Fields that mean something on an HTTP/1.1 connection only (RFC 9113 section 8.2.2)."""


def _check_field(name: bytes, value: bytes) -> None:
    if not _is_name(name):
        raise Malformed("field name is not a lower-case token")
    if name in CONNECTION_SPECIFIC:
        raise Malformed(f"connection-specific field {name.decode()}")
    if value:
        if _has_forbidden(value):
            raise Malformed(f"CR, LF or NUL in the value of {name.decode()}")
        if value[0] in _EDGE_SPACE or value[-1] in _EDGE_SPACE:
            raise Malformed(f"space around the value of {name.decode()}")


def read_head(fields: Fields) -> tuple[int, Fields]:
    """Status and regular fields of a response head; raises Malformed (RFC 9113 sections 8.2 and 8.3.2)."""
    if not fields or fields[0][0] != b":status":
        raise Malformed(":status does not come first")
    status = fields[0][1]
    if not _is_status(status):
        raise Malformed(":status is not three digits")
    if status == b"101":
        raise Malformed("101 Switching Protocols")  # RFC 9113 section 8.6
    regular = fields[1:]
    for name, value in regular:
        if name[:1] == b":":
            raise Malformed("a pseudo-field other than one :status in front")
        _check_field(name, value)
    return int(status), regular


def read_trailers(fields: Fields) -> Fields:
    """Trailer fields, checked; pseudo-fields may not be among them (RFC 9113 section 8.1)."""
    for name, value in fields:
        if name[:1] == b":":
            raise Malformed("a pseudo-field among trailers")
        _check_field(name, value)
    return fields


def content_length(status: int, fields: Fields, head_request: bool) -> int | None:
    """How many bytes of DATA belong to this response; None when it does not say.

    Responses to HEAD and those with 204 or 304 carry no content whatever their content-length says
    (RFC 9113 section 8.1.1, RFC 9110 section 6.4.1).
    """
    values = [value for name, value in fields if name == b"content-length"]
    if len(values) > 1:
        raise Malformed("more than one content-length")
    if values and not _is_length(values[0]):
        raise Malformed("content-length is not a number of at most 18 digits")
    if head_request or status in (204, 304):
        return 0
    return int(values[0]) if values else None
