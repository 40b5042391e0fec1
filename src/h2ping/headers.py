"""HTTP/1.1 heads to HTTP/2 fields and back (RFC 9110, RFC 9112, RFC 9113 section 8.3). Pure functions.

Theory of operation
-------------------
1. A head is checked byte for byte before any parser sees it (`check_head`), so that no two parsers can read
   two different requests out of one head. What breaks the grammar is refused, never repaired.
2. How long the body is must be beyond doubt (RFC 9112 section 6.3): one Content-Length of digits, or
   exactly `Transfer-Encoding: chunked`, or neither. Anything else is refused.
3. A request goes to the one configured upstream. The host in an absolute-form target or in Host is read,
   checked and forgotten: it never chooses where a request goes.
4. Fields that belong to one connection are taken off (RFC 9110 section 7.6.1), those that Connection names
   too. All others pass byte for byte and in order; only names are lowered (RFC 9113 section 8.2.1).
5. A response is framed by what is known when its head is written: no body, its length, chunks, or, for an
   HTTP/1.0 client, the end of the connection. Never two of them (RFC 9112 section 6.2).

This module knows neither sockets nor clocks nor settings.
"""

from __future__ import annotations

import enum
import importlib
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias

from h2ping._fast import NO_EXTENSIONS
from h2ping.errors import (
    AMBIGUOUS_LENGTH,
    BAD_REQUEST,
    CONNECT_REFUSED,
    MALFORMED_RESPONSE,
    MAX_FORWARDS,
    UNSUPPORTED_CODING,
    VERSION_UNSUPPORTED,
    DownstreamError,
    UpstreamError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType


def _compiled() -> ModuleType | None:
    try:
        return importlib.import_module("h2ping._fast.heads")
    except ImportError:
        return None


compiled = None if NO_EXTENSIONS else _compiled()
"""The twin of what is slow here: `split_head` with its check, `field_lines`."""

Fields: TypeAlias = "list[tuple[bytes, bytes]]"
"""Header or trailer fields: lower-case names, order kept."""


class Framing(enum.IntEnum):
    """How the client learns where a response body ends (RFC 9112 section 6.3)."""

    NONE = 0
    LENGTH = 1
    CHUNKED = 2
    UNTIL_CLOSE = 3


@dataclass(slots=True)
class Request:
    """One request as it goes up, and what of its HTTP/1.1 form the answer must obey.

    Nobody changes it once it is made. It is not frozen because that alone costs 1 us, a quarter of reading a head.
    """

    method: bytes
    target: bytes
    """`:path`: the configured prefix and the origin form of the target, or `*`."""
    fields: Fields
    """In HTTP/2 form, without pseudo-fields."""
    content_length: int | None
    chunked: bool
    version: tuple[int, int]
    keep_alive: bool
    expect_continue: bool
    wants_problem: bool
    """The client accepts application/problem+json (RFC 9457)."""
    wants_trailers: bool


# --- the grammar of a head ----------------------------------------------------------------------------------
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
# RFC 9112 section 3: one space between the three, a target of visible ASCII.
_REQUEST_LINE = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])\r\n" % _TOKEN)
# RFC 9110 section 5.5: HTAB, SP, visible ASCII and obs-text. No name without a colon right behind it (RFC
# 9112 section 5.1), no line that starts with white space (section 5.2).
_FIELD_LINES = re.compile(rb"(?:%b:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n" % _TOKEN)
_FORBIDDEN_BYTE = re.compile(rb"(?<!\r)\n|\r(?=[^\n])|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_FIELD_LINE = re.compile(rb"(%b)?([ \t]*)(:)?" % _TOKEN)
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~%!$&'()*+,;=]*)(?::[0-9]*)?")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)([^#]*)")


def bad_byte_in(head: bytes | bytearray, start: int = 0) -> str:
    """Why a head that may still be incomplete can never become a request; empty while it can.

    Only what is wrong at any place of a head: control characters, a CR or LF alone (RFC 9112 section 2.2).
    """
    found = _FORBIDDEN_BYTE.search(head, start)
    if found is None:
        return ""
    byte = found.group()
    if byte == b"\n":
        return "a line ends with LF alone"
    if byte == b"\r":
        return "CR without LF"
    return "control character in the head"


def check_head(raw: bytes) -> None:
    """Refuse a head (request line to empty line) that is not RFC 9112 to the byte."""
    line = _REQUEST_LINE.match(raw)
    if line is not None and _FIELD_LINES.fullmatch(raw, line.end()) is not None:
        if line.group(3) != b"1" or line.group(4) not in b"01":
            raise DownstreamError(VERSION_UNSUPPORTED)
        return
    raise DownstreamError(BAD_REQUEST, _fault_in(raw, line.end() if line else 0))


def request_line_of(begun: bytes | bytearray) -> tuple[bytes, bytes]:
    """Method and path of a head that was refused or never ended, for the log; empty where it does not say.

    The authority of another form of target than a path may hold a password and is left out.
    """
    line = _REQUEST_LINE.match(begun)
    if line is None:
        return b"", b""
    method, path = bytes(line[1]), bytes(line[2])
    absolute = _ABSOLUTE.fullmatch(path)
    if absolute is not None:
        path = absolute[2] or b"/"
    return method, path if path.startswith(b"/") or path == b"*" else b""


def _fault_in(raw: bytes, fields_start: int) -> str:
    """What is wrong with a head, in words that repeat none of its bytes."""
    if reason := bad_byte_in(raw):
        return reason
    if not fields_start:
        return "malformed request line"
    for line in raw[fields_start:].split(b"\r\n"):
        if line[:1] in (b" ", b"\t"):
            return "folded header line"  # RFC 9112 section 5.2
        found = _FIELD_LINE.match(line)
        if line and found is not None and not (found.group(1) and not found.group(2) and found.group(3)):
            return "space before the colon" if found.group(2) and found.group(3) else "malformed field name"
    return "malformed head"


def split_head(raw: bytes) -> tuple[bytes, bytes, str, Fields]:
    """Method, target, version and fields of a head that `check_head` let pass, names as they came."""
    line, _, rest = raw.partition(b"\r\n")
    method, target, version = line.split(b" ")
    fields = []
    for field in rest[:-4].split(b"\r\n") if rest != b"\r\n" else ():
        name, _, value = field.partition(b":")
        fields.append((name, value.strip(b" \t")))
    return method, target, version[5:].decode(), fields


# --- request: HTTP/1.1 -> HTTP/2 ----------------------------------------------------------------------------
# RFC 9110 section 7.6.1 and RFC 9113 section 8.2.2; proxy-authorization is for the next proxy only and h2ping
# does not share its authentication with the upstream (RFC 9110 section 11.7.2).
_HOP_BY_HOP = frozenset({
    b"connection", b"http2-settings", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te",
    b"transfer-encoding", b"upgrade",
})  # fmt: skip
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"expect"}
_FRAMING_OR_HOP = _HOP_BY_HOP | {b"content-length"}
# RFC 9110 section 7.6.1 forbids naming end-to-end fields; framing must not hang on a client that does.
_NEVER_STRIPPED = frozenset({b"content-length"})
READ_HERE = {
    **dict.fromkeys(_NOT_FORWARDED, False),
    b"accept": True,
    b"content-length": True,
    b"max-forwards": True,
}
"""Fields that mean something to h2ping itself, and whether they go up all the same."""

_COUNTED_METHODS = frozenset({b"OPTIONS", b"TRACE"})
"""RFC 9110 section 7.6.2: with these an intermediary must obey Max-Forwards; with others it may ignore it."""
_MOST_HOPS = 10**6
"""The recipient's maximum, which section 7.6.2 allows: more than any path has."""

_MAX_LENGTH_DIGITS = 18
"""A length of 19 digits may not fit 64 signed bits (RFC 9110 section 8.6: anticipate large numbers)."""


def parse_request(
    method: bytes,
    target: bytes,
    version: str,
    raw_fields: Iterable[tuple[bytes, bytes]],
    upstream_prefix: bytes,
) -> Request:
    """The request in a head that `check_head` let pass. Raises DownstreamError."""
    fields = [(name.lower(), value.strip(b" \t")) for name, value in raw_fields]
    read = [field for field in fields if field[0] in READ_HERE]
    if read:
        fields = [field for field in fields if READ_HERE.get(field[0], True)]
    return read_request(method, target, version, fields, read, upstream_prefix)


def read_request(
    method: bytes, target: bytes, version: str, fields: Fields, read: Fields, upstream_prefix: bytes
) -> Request:
    """The same for fields sorted out by `READ_HERE`, names in lower case and values stripped.

    `fields` go up, but for those that Connection names; `read` are those that mean something here.
    """
    if method == b"CONNECT":
        raise DownstreamError(CONNECT_REFUSED)
    if version not in ("1.0", "1.1"):
        raise DownstreamError(VERSION_UNSUPPORTED)
    is_11 = version == "1.1"
    lengths: list[bytes] = []
    codings: list[bytes] = []
    hosts: list[bytes] = []
    options: set[bytes] = set()
    wants_trailers = expects = problem = counts = False
    for name, value in read:
        if name == b"content-length":
            lengths.append(value)
        elif name == b"host":
            hosts.append(value)
        elif name == b"connection":
            options.update(_members(value))
        elif name == b"transfer-encoding":
            codings.append(value)
        elif name == b"te":
            wants_trailers = wants_trailers or b"trailers" in _members(value)
        elif name == b"expect":
            expects = expects or b"100-continue" in _members(value)
        elif name == b"accept":
            problem = problem or _accepts_problem(value)
        elif name == b"max-forwards":
            counts = method in _COUNTED_METHODS
    _check_host(hosts, is_11)
    chunked = _is_chunked(codings, lengths, is_11)
    length = _content_length(lengths)
    stripped = options - _NEVER_STRIPPED
    if stripped:
        fields = [field for field in fields if field[0] not in stripped]
    if counts:
        fields = [
            (name, _one_hop_less(value) if name == b"max-forwards" else value) for name, value in fields
        ]
    # An HTTP/1.0 client cannot read trailers, whatever it says (RFC 9112 section 6.1).
    wants_trailers = wants_trailers and is_11
    if wants_trailers:
        fields.append((b"te", b"trailers"))  # the one TE that HTTP/2 allows (RFC 9113 section 8.2.2)
    return Request(
        method,
        _origin_form(method, target, upstream_prefix),
        fields,
        length,
        chunked,
        (1, 1) if is_11 else (1, 0),
        b"close" not in options and (is_11 or b"keep-alive" in options),  # RFC 9112 section 9.3
        expects and is_11,  # RFC 9110 section 10.1.1: ignored from an HTTP/1.0 client
        problem,
        wants_trailers,
    )


def h2_fields(request: Request, authority: bytes) -> Fields:
    """Pseudo-fields first, then the rest (RFC 9113 section 8.3.1)."""
    return [
        (b":method", request.method),
        (b":scheme", b"https"),
        (b":authority", authority),
        (b":path", request.target),
        *request.fields,
    ]


def _members(value: bytes) -> list[bytes]:
    """Lower-case members of a list-valued field, parameters taken off (RFC 9110 section 5.6.1)."""
    return [member.partition(b";")[0].strip(b" \t") for member in value.lower().split(b",")]


def _accepts_problem(value: bytes) -> bool:
    if b"problem" not in value.lower():
        return False
    for member in value.lower().split(b","):
        media, _, parameters = member.partition(b";")
        if media.strip(b" \t") == b"application/problem+json":
            # RFC 9110 section 12.4.2: a weight of zero means "not acceptable"
            return re.search(rb"(?:^|;)[ \t]*q=0(?:\.0*)?[ \t]*(?:;|$)", parameters) is None
    return False


def _check_host(hosts: list[bytes], is_11: bool) -> None:
    """RFC 9112 section 3.2: exactly one Host in HTTP/1.1, never two, and it must look like one."""
    if len(hosts) > 1:
        raise DownstreamError(BAD_REQUEST, "more than one Host field")
    if is_11 and not hosts:
        raise DownstreamError(BAD_REQUEST, "no Host field")
    if hosts and _HOST.fullmatch(hosts[0]) is None:
        raise DownstreamError(BAD_REQUEST, "malformed Host field")


def _one_hop_less(value: bytes) -> bytes:
    """RFC 9110 section 7.6.2. What is no number passes as it came."""
    if not value.isdigit():
        return value
    hops = value.lstrip(b"0")
    if not hops:
        raise DownstreamError(MAX_FORWARDS)
    return b"%d" % (min(int(hops[:_MAX_LENGTH_DIGITS]), _MOST_HOPS) - 1)


def _is_chunked(codings: list[bytes], lengths: list[bytes], is_11: bool) -> bool:
    """RFC 9112 sections 6.1 and 6.3: chunked and nothing else, or no Transfer-Encoding at all."""
    if not codings:
        return False
    if lengths:
        raise DownstreamError(AMBIGUOUS_LENGTH, "both Content-Length and Transfer-Encoding")
    if not is_11:
        raise DownstreamError(AMBIGUOUS_LENGTH, "Transfer-Encoding in an HTTP/1.0 request")
    if len(codings) == 1 and codings[0].lower() == b"chunked":
        return True
    members = [coding.strip(b" \t") for coding in b",".join(codings).lower().split(b",")]
    if b"chunked" in members[:-1] or not all(members):
        # Chunked twice, or chunked and then something else: the end of the body cannot be known.
        raise DownstreamError(AMBIGUOUS_LENGTH, "chunked is not the last coding or not the only one")
    raise DownstreamError(UNSUPPORTED_CODING)


def _content_length(lengths: list[bytes]) -> int | None:
    """RFC 9110 section 8.6: 1*DIGIT, once."""
    if not lengths:
        return None
    if len(lengths) > 1:
        raise DownstreamError(AMBIGUOUS_LENGTH, "more than one Content-Length field")
    value = lengths[0]
    # bytes.isdigit knows ASCII digits only; int() would also take signs, underscores and spaces.
    if not value.isdigit():
        raise DownstreamError(AMBIGUOUS_LENGTH, "Content-Length is not a number")
    if len(value) > _MAX_LENGTH_DIGITS:
        raise DownstreamError(AMBIGUOUS_LENGTH, "Content-Length is too large")
    return int(value)


def _origin_form(method: bytes, target: bytes, prefix: bytes) -> bytes:
    """RFC 9112 section 3.2: all forms but authority-form, as the path to ask the upstream for."""
    if target == b"*":
        if method != b"OPTIONS":
            raise DownstreamError(BAD_REQUEST, "the target * is for OPTIONS only")
        return target
    if b"#" in target:
        raise DownstreamError(BAD_REQUEST, "fragment in the request target")
    path = target
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None:
            raise DownstreamError(BAD_REQUEST, "the request target is neither a path nor an http(s) URL")
        authority, path = absolute.groups()
        if not authority or _HOST.fullmatch(authority) is None:
            raise DownstreamError(BAD_REQUEST, "malformed authority in the request target")
        if not path and method == b"OPTIONS" and not prefix:
            return b"*"  # RFC 9112 section 3.2.4
        if not path.startswith(b"/"):
            path = b"/" + path
    return prefix.rstrip(b"/") + path


# --- response: HTTP/2 -> HTTP/1.1 ---------------------------------------------------------------------------
# A member of an enumeration is looked up by a descriptor each time: 0.1 us of every head.
_NONE, _LENGTH, _CHUNKED, _UNTIL_CLOSE = Framing
_NO_CONTENT, _NOT_MODIFIED = int(HTTPStatus.NO_CONTENT), int(HTTPStatus.NOT_MODIFIED)
_STATUS_LINES = {int(s): b"HTTP/1.1 %d %b\r\n" % (s, s.phrase.encode()) for s in HTTPStatus}


def _status_line(status: int) -> bytes:
    # RFC 9112 section 4: the space stays where there is no reason phrase.
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def response_head(
    status: int, fields: Fields, request: Request, end: bool, close: bool
) -> tuple[bytes, Framing]:
    """The head of a final response, and how its body is framed. `end`: no body follows.

    `close` announces that the connection ends after it. Date, where it is missing, is `downstream`'s to add.
    """
    bodyless = status == _NOT_MODIFIED or request.method == b"HEAD"
    has_length = False
    kept: Fields = []
    for field in fields:
        if field[0] in _FRAMING_OR_HOP:
            if field[0] != b"content-length" or status == _NO_CONTENT:  # RFC 9110 section 8.6
                continue
            has_length = True
        kept.append(field)
    if bodyless or status == _NO_CONTENT:
        framing = _NONE
    elif has_length:
        framing = _LENGTH
    elif end:
        framing = _LENGTH
        kept.append((b"content-length", b"0"))
    elif request.version >= (1, 1):
        framing = _CHUNKED
        kept.append((b"transfer-encoding", b"chunked"))
    else:
        framing = _UNTIL_CLOSE
    if close or framing is _UNTIL_CLOSE:
        kept.append((b"connection", b"close"))
    elif request.version < (1, 1) and request.keep_alive:
        kept.append((b"connection", b"keep-alive"))
    return _written(_status_line(status), kept, b"\r\n"), framing


def content_length(fields: Fields) -> int:
    """Of a response whose fields were checked; -1 without one."""
    for name, value in fields:
        if name == b"content-length":
            return int(value)
    return -1


def interim_head(status: int, fields: Fields) -> bytes:
    """A 1xx response: a head without any framing (RFC 9110 sections 8.6 and 15.2)."""
    kept = [field for field in fields if field[0] not in _FRAMING_OR_HOP]
    return _written(_status_line(status), kept, b"\r\n")


def plain_field_lines(first: bytes, fields: Fields, last: bytes) -> bytes | None:
    """`first`, a line for each field, `last`; None if a field would break its line."""
    text = b"".join([b"%b: %b\r\n" % field for field in fields])
    if text.count(b"\n") != len(fields) or text.count(b"\r") != len(fields) or b"\0" in text:
        return None
    return first + text + last


_field_lines = compiled.field_lines if compiled is not None else plain_field_lines


def _written(first: bytes, fields: Fields, last: bytes) -> bytes:
    text: bytes | None = _field_lines(first, fields, last)
    if text is None:
        # The wire has refused such fields already (RFC 9113 section 8.2.1); here one would split a response.
        raise UpstreamError(MALFORMED_RESPONSE, "CR, LF or NUL in a response field")
    return text


# --- trailers -----------------------------------------------------------------------------------------------
# RFC 9110 section 6.5.1: nothing of framing, routing, authentication, response control or content format.
_NOT_IN_TRAILERS = _NOT_FORWARDED | {
    b"accept-encoding", b"age", b"authorization", b"cache-control", b"content-encoding", b"content-length",
    b"content-range", b"content-type", b"cookie", b"date", b"expires", b"if-match", b"if-modified-since",
    b"if-none-match", b"if-range", b"if-unmodified-since", b"location", b"max-forwards", b"pragma",
    b"proxy-authenticate", b"range", b"retry-after", b"set-cookie", b"trailer", b"vary", b"warning",
    b"www-authenticate",
}  # fmt: skip


def forwardable_trailers(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Trailers that may pass, names lowered."""
    lowered = ((name.lower(), value.strip(b" \t")) for name, value in fields)
    return [field for field in lowered if field[0] not in _NOT_IN_TRAILERS]


def trailer_section(fields: Fields) -> bytes:
    """What stands between the last chunk and the empty line (RFC 9112 section 7.1.2)."""
    return _written(b"", forwardable_trailers(fields), b"")


# --- what may enter a HPACK table ---------------------------------------------------------------------------
_SENSITIVE = frozenset({b"authorization", b"cookie", b"proxy-authorization", b"set-cookie"})
_SENSITIVE_PARTS = re.compile(rb"api-?_?key|token|secret|password|credential")
_VOLATILE = frozenset({
    b"age", b"baggage", b"content-length", b"content-md5", b"content-range", b"date", b"digest", b"etag",
    b"expires", b"idempotency-key", b"if-match", b"if-modified-since", b"if-none-match", b"if-range",
    b"if-unmodified-since", b"last-modified", b"nvcf-reqid", b"range", b"sentry-trace", b"traceparent",
    b"tracestate", b"x-amzn-trace-id", b"x-correlation-id", b"x-request-id", b"x-request-start",
    b"x-stainless-retry-count", b"x-trace-id",
})  # fmt: skip


def is_sensitive(name: bytes) -> bool:
    """Never to be indexed (RFC 7541 section 7.1.3). `name` is in lower case."""
    return name in _SENSITIVE or _SENSITIVE_PARTS.search(name) is not None


def is_volatile(name: bytes) -> bool:
    """Has another value in nearly every request, so that indexing it only drives others out of the table."""
    return name in _VOLATILE or name.startswith(b"x-b3-")


def poll_seconds(request: Request) -> float | None:
    """The request's NVCF-POLL-SECONDS: how long the endpoint holds it before it answers 202 or 504."""
    for name, value in request.fields:
        if name == b"nvcf-poll-seconds" and value.isdigit() and len(value) < 7:
            return float(value)
    return None
