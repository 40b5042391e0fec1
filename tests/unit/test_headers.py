"""Heads of both versions, table by table (RFC 9110, RFC 9112, RFC 9113 section 8.3)."""

from __future__ import annotations

import pytest

from h2ping import headers
from h2ping.errors import DownstreamError, UpstreamError
from h2ping.headers import Framing, Request

HOST = b"Host: here:1250"


def head(*lines: bytes, line: bytes = b"POST /v1 HTTP/1.1", host: bytes | None = HOST) -> bytes:
    return b"\r\n".join([line, *([host] if host is not None else []), *lines, b"", b""])


def parse(raw: bytes, prefix: bytes = b"") -> Request:
    headers.check_head(raw)
    return headers.parse_request(*headers.split_head(raw), prefix)


def refusal(raw: bytes) -> tuple[str, int]:
    """Token of the cause and status."""
    with pytest.raises(DownstreamError) as caught:
        parse(raw)
    return caught.value.cause.token, caught.value.cause.status


# --- what is refused --------------------------------------------------------------------------------------

BAD_SYNTAX = {
    "folded line": head(b"X-A: 1", b" Transfer-Encoding: chunked"),
    "folded with a tab": head(b"X-A: 1", b"\tb"),
    "folded first line": b"GET / HTTP/1.1\r\n X: 1\r\n\r\n",
    "space before the colon": head(b"Content-Length : 5"),
    "tab before the colon": head(b"Content-Length\t: 5"),
    "empty name": head(b": x"),
    "no colon": head(b"Content-Length 5"),
    "space in the name": head(b"Content Length: 5"),
    "obs-text in the name": head(b"X-\xc3\xa9: 5"),
    "control character in the name": head(b"X\x01: 5"),
    "NUL in the value": head(b"X: a\x00b"),
    "control character in the value": head(b"X: a\x08b"),
    "DEL in the value": head(b"X: a\x7fb"),
    "CR in the value": head(b"X-Abc: \rxTransfer-Encoding: chunked"),
    "CR at the end of the value": head(b"X: a\r"),
    "LF in the value": head(b"X: a\nTransfer-Encoding: chunked"),
    "LF alone": b"GET / HTTP/1.1\nHost: x\n\n",
    "LF alone after the request line": b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "lower-case version": head(line=b"GET / http/1.1"),
    "two digits": head(line=b"GET / HTTP/1.10"),
    "space after the version": head(line=b"GET / HTTP/1.1 "),
    "two spaces": head(line=b"GET  / HTTP/1.1"),
    "tab between": head(line=b"GET\t/ HTTP/1.1"),
    "leading space": head(line=b" GET / HTTP/1.1"),
    "space in the target": head(line=b"GET /a b HTTP/1.1"),
    "control character in the target": head(line=b"GET /\x01 HTTP/1.1"),
    "obs-text in the target": head(line=b"GET /\xc3\xa9 HTTP/1.1"),
    "method with a colon": head(line=b"GET: / HTTP/1.1"),
    "empty": b"\r\n",
}


@pytest.mark.parametrize("name", BAD_SYNTAX)
def test_a_head_that_breaks_the_grammar_is_refused(name: str) -> None:
    """RFC 9112 sections 2.2, 3, 5.1 and 5.2; cases obs-fold-rejected, bare-cr-smuggling."""
    assert refusal(BAD_SYNTAX[name]) == ("bad-request", 400)


def test_the_reason_repeats_no_byte_of_the_request() -> None:
    """Case secrets-not-logged."""
    for raw in BAD_SYNTAX.values():
        with pytest.raises(DownstreamError) as caught:
            parse(raw.replace(b"X", b"S3CR3T"))
        assert "S3CR3T" not in str(caught.value)


@pytest.mark.parametrize("version", [b"2.0", b"3.0", b"1.2", b"0.9", b"9.9"])
def test_other_versions_are_not_supported(version: bytes) -> None:
    """RFC 9110 section 15.6.6."""
    assert refusal(head(line=b"PRI * HTTP/" + version)) == ("http-version", 505)


BAD_LENGTHS = {
    "both": (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "both, other order": (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "differing": (b"Content-Length: 5", b"Content-Length: 6"),
    "twice the same": (b"Content-Length: 5", b"Content-Length: 5"),
    "list": (b"Content-Length: 5, 5",),
    "plus": (b"Content-Length: +5",),
    "minus": (b"Content-Length: -5",),
    "hexadecimal": (b"Content-Length: 0x5",),
    "underscore": (b"Content-Length: 5_0",),
    "space inside": (b"Content-Length: 5 0",),
    "empty": (b"Content-Length:",),
    "fraction": (b"Content-Length: 5.0",),
    "Arabic digits": ("Content-Length: \u0665".encode(),),
    "superscript": (b"Content-Length: \xb2",),
    "beyond 64 bits": (b"Content-Length: 18446744073709551621",),
    "chunked twice": (b"Transfer-Encoding: chunked, chunked",),
    "chunked in two fields": (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "chunked not last": (b"Transfer-Encoding: chunked, gzip",),
    "no coding": (b"Transfer-Encoding:",),
    "empty member": (b"Transfer-Encoding: , chunked",),
}


@pytest.mark.parametrize("name", BAD_LENGTHS)
def test_a_length_in_doubt_is_refused(name: str) -> None:
    """RFC 9112 sections 6.1 and 6.3; case te-and-cl-rejected."""
    assert refusal(head(*BAD_LENGTHS[name])) == ("ambiguous-length", 400)


def test_transfer_encoding_in_http_10_is_refused() -> None:
    """RFC 9112 section 6.1."""
    raw = head(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0")
    assert refusal(raw) == ("ambiguous-length", 400)


@pytest.mark.parametrize(
    "coding", [b"gzip", b"gzip, chunked", b"identity", b"xchunked", b"chunked;q=1", b'"chunked"']
)
def test_other_transfer_codings_are_not_implemented(coding: bytes) -> None:
    """RFC 9112 section 6.1."""
    assert refusal(head(b"Transfer-Encoding: " + coding)) == ("unsupported-coding", 501)


@pytest.mark.parametrize(
    ("raw"),
    [
        pytest.param(head(host=None), id="no Host"),
        pytest.param(head(b"Host: there"), id="two Hosts"),
        pytest.param(head(b"Host: here:1250"), id="two equal Hosts"),
        pytest.param(head(host=b"Host: a b"), id="space"),
        pytest.param(head(host=b"Host: user@here"), id="user"),
        pytest.param(head(host=b"Host: here/path"), id="path"),
        pytest.param(head(host=b"Host: here:port"), id="port"),
        pytest.param(head(host=b"Host: a, b/"), id="list"),
    ],
)
def test_a_host_that_is_missing_or_malformed_is_refused(raw: bytes) -> None:
    """RFC 9112 section 3.2."""
    assert refusal(raw) == ("bad-request", 400)


@pytest.mark.parametrize("host", [b"", b"[::1]:1250", b"a_b.example", b"127.0.0.1", b"h:"])
def test_a_host_of_any_legal_form_passes(host: bytes) -> None:
    parse(head(host=b"Host: " + host))


def test_an_http_10_request_needs_no_host() -> None:
    assert parse(head(line=b"GET / HTTP/1.0", host=None)).version == (1, 0)


def test_connect_is_refused() -> None:
    """Case absolute-form-and-connect; RFC 9110 section 9.3.6."""
    assert refusal(head(line=b"CONNECT evil.example:443 HTTP/1.1")) == ("connect-method", 405)


@pytest.mark.parametrize(
    "target",
    [
        b"*",
        b"v1/x",
        b"evil.example:443",
        b"ftp://x/",
        b"http:///x",
        b"http://a@b/",
        b"/a#b",
        b"https://",
        b"?a",
    ],
)
def test_a_target_of_no_known_form_is_refused(target: bytes) -> None:
    """RFC 9112 section 3.2."""
    assert refusal(head(line=b"GET " + target + b" HTTP/1.1")) == ("bad-request", 400)


# --- what passes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "prefix", "path"),
    [
        pytest.param(b"GET", b"/v1/m?x=1", b"/base", b"/base/v1/m?x=1", id="prefix"),
        pytest.param(b"GET", b"/v1", b"/base/", b"/base/v1", id="prefix with a slash"),
        pytest.param(b"GET", b"/", b"", b"/", id="root"),
        pytest.param(b"POST", b"http://evil.example/v1/x", b"", b"/v1/x", id="absolute form"),
        pytest.param(
            b"POST", b"HTTPS://Evil.example:8/v1?q", b"/b", b"/b/v1?q", id="absolute form, upper case"
        ),
        pytest.param(b"GET", b"http://here", b"", b"/", id="absolute form without a path"),
        pytest.param(b"GET", b"http://here?q", b"", b"/?q", id="absolute form with a query only"),
        pytest.param(b"OPTIONS", b"*", b"/base", b"*", id="asterisk"),
        pytest.param(b"OPTIONS", b"http://here", b"", b"*", id="OPTIONS for a whole server"),
        pytest.param(b"GET", b"//evil.example/x", b"", b"//evil.example/x", id="two slashes"),
        pytest.param(b"GET", b"/a/../b%2f;c", b"", b"/a/../b%2f;c", id="not normalised"),
        pytest.param(b"FROB", b"/x", b"", b"/x", id="unknown method"),
    ],
)
def test_the_target_becomes_the_path_at_the_upstream(
    method: bytes, target: bytes, prefix: bytes, path: bytes
) -> None:
    """RFC 9112 section 3.2; cases absolute-form-and-connect, authority-is-upstream-host."""
    request = parse(head(line=method + b" " + target + b" HTTP/1.1"), prefix)
    assert headers.h2_fields(request, b"judge.example:8443") == [
        (b":method", method),
        (b":scheme", b"https"),
        (b":authority", b"judge.example:8443"),
        (b":path", path),
    ]


def test_fields_pass_byte_for_byte_and_in_order() -> None:
    raw = head(
        b"Authorization: Bearer  a b",
        b"X-Forwarded-For: 1.2.3.4",
        b"x-twice: 1",
        b"COOKIE: a=1; b=2",
        b"X-Twice:2",
        b"X-Text: \t caf\xc3\xa9 \xff\t ",
        b"Empty:",
        b"Accept: */*",
        b"Content-Length: 0005",
        b"!#$%&'*+-.^_`|~: odd",
    )
    assert parse(raw).fields == [
        (b"authorization", b"Bearer  a b"),
        (b"x-forwarded-for", b"1.2.3.4"),
        (b"x-twice", b"1"),
        (b"cookie", b"a=1; b=2"),
        (b"x-twice", b"2"),
        (b"x-text", b"caf\xc3\xa9 \xff"),
        (b"empty", b""),
        (b"accept", b"*/*"),
        (b"content-length", b"0005"),
        (b"!#$%&'*+-.^_`|~", b"odd"),
    ]


def test_hop_by_hop_fields_and_those_that_connection_names_are_taken_off() -> None:
    """RFC 9110 section 7.6.1, RFC 9113 section 8.2.2."""
    raw = head(
        b"Connection: X-Mine, close , content-length",
        b"Connection: x-other;a=b",
        b"X-Mine: 1",
        b"X-Other: 2",
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: keep-alive",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABk",
        b"TE: gzip",
        b"Proxy-Authorization: Basic eDp5",
        b"Expect: 100-continue",
        b"Content-Length: 5",
        b"X-Kept: 3",
    )
    request = parse(raw)
    assert request.fields == [(b"content-length", b"5"), (b"x-kept", b"3")]
    assert request.content_length == 5
    assert not request.keep_alive


@pytest.mark.parametrize("te", [b"trailers", b"gzip, Trailers", b"trailers;q=1, deflate"])
def test_te_is_kept_as_trailers_only(te: bytes) -> None:
    """RFC 9113 section 8.2.2."""
    request = parse(head(b"TE: " + te, b"Connection: te"))
    assert request.fields == [(b"te", b"trailers")]
    assert request.wants_trailers


def test_chunked_in_any_case_is_chunked() -> None:
    request = parse(head(b"Transfer-Encoding: ChunKed"))
    assert request.chunked
    assert request.fields == []


@pytest.mark.parametrize(
    ("line", "connection", "keep_alive"),
    [
        (b"GET / HTTP/1.1", b"", True),
        (b"GET / HTTP/1.1", b"close", False),
        (b"GET / HTTP/1.1", b"keep-alive, Close", False),
        (b"GET / HTTP/1.0", b"", False),
        (b"GET / HTTP/1.0", b"Keep-Alive", True),
        (b"GET / HTTP/1.0", b"keep-alive, close", False),
    ],
)
def test_persistence_is_as_version_and_connection_say(
    line: bytes, connection: bytes, keep_alive: bool
) -> None:
    """RFC 9112 section 9.3."""
    assert parse(head(b"Connection: " + connection, line=line)).keep_alive is keep_alive


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (b"application/problem+json", True),
        (b"text/html, Application/Problem+JSON;q=0.5", True),
        (b"application/problem+json;q=0", False),
        (b"application/problem+json; q=0.000", False),
        (b"application/json", False),
        (b"*/*", False),
    ],
)
def test_problem_json_is_for_those_who_name_it(accept: bytes, wanted: bool) -> None:
    """RFC 9457, RFC 9110 section 12.4.2."""
    assert parse(head(b"Accept: " + accept)).wants_problem is wanted


def test_expect_continue_is_for_http_11() -> None:
    """RFC 9110 section 10.1.1."""
    assert parse(head(b"Expect: 100-Continue")).expect_continue
    assert not parse(head(b"Expect: 100-continue", line=b"POST / HTTP/1.0")).expect_continue
    assert not parse(head(b"Expect: something")).expect_continue


# --- responses --------------------------------------------------------------------------------------------

ASK = parse(head(line=b"GET / HTTP/1.1"))
ASK_HEAD = parse(head(line=b"HEAD / HTTP/1.1"))
ASK_10 = parse(head(line=b"GET / HTTP/1.0"))
ASK_10_KEEP = parse(head(b"Connection: keep-alive", line=b"GET / HTTP/1.0"))
LENGTH_5 = [(b"content-length", b"5")]


@pytest.mark.parametrize(
    ("request_", "status", "fields", "end", "close", "lines", "framing"),
    [
        pytest.param(ASK, 200, LENGTH_5, False, False, [b"content-length: 5"], Framing.LENGTH, id="length"),
        pytest.param(
            ASK, 200, [], False, False, [b"transfer-encoding: chunked"], Framing.CHUNKED, id="chunks"
        ),
        pytest.param(ASK, 200, [], True, False, [b"content-length: 0"], Framing.LENGTH, id="empty"),
        pytest.param(ASK, 204, LENGTH_5, True, False, [], Framing.NONE, id="204"),
        pytest.param(ASK, 304, LENGTH_5, True, False, [b"content-length: 5"], Framing.NONE, id="304"),
        pytest.param(ASK, 304, [], True, False, [], Framing.NONE, id="304 without length"),
        pytest.param(ASK_HEAD, 200, LENGTH_5, True, False, [b"content-length: 5"], Framing.NONE, id="HEAD"),
        pytest.param(ASK_HEAD, 200, [], True, False, [], Framing.NONE, id="HEAD without length"),
        pytest.param(ASK_10, 200, [], False, True, [b"connection: close"], Framing.UNTIL_CLOSE, id="1.0"),
        pytest.param(
            ASK_10_KEEP, 200, [], False, False, [b"connection: close"], Framing.UNTIL_CLOSE, id="1.0 kept"
        ),
        pytest.param(
            ASK_10_KEEP,
            200,
            LENGTH_5,
            False,
            False,
            [b"content-length: 5", b"connection: keep-alive"],
            Framing.LENGTH,
            id="1.0 kept with length",
        ),
        pytest.param(
            ASK,
            200,
            LENGTH_5,
            False,
            True,
            [b"content-length: 5", b"connection: close"],
            Framing.LENGTH,
            id="close",
        ),
    ],
)
def test_a_response_is_framed_by_what_is_known(
    request_: Request,
    status: int,
    fields: list[tuple[bytes, bytes]],
    end: bool,
    close: bool,
    lines: list[bytes],
    framing: Framing,
) -> None:
    """RFC 9112 sections 6.2 and 6.3; cases framing-choice-chunked-or-length, http10-client-no-chunking."""
    raw, chosen = headers.response_head(status, fields, request_, end, close)
    first, *rest = raw.split(b"\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert rest == [*lines, b"", b""]
    assert chosen is framing


def test_an_unknown_status_has_an_empty_reason() -> None:
    """RFC 9112 section 4."""
    raw, _ = headers.response_head(299, [], ASK, True, False)
    assert raw.startswith(b"HTTP/1.1 299 \r\n")


def test_interim_heads_have_no_framing() -> None:
    """RFC 9110 section 8.6."""
    fields = [(b"link", b"</a>"), (b"content-length", b"5"), (b"connection", b"x")]
    assert headers.interim_head(103, fields) == b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"


@pytest.mark.parametrize("value", [b"v\r\nSet-Cookie: s=1", b"v\rx", b"v\nx", b"v\0x"])
def test_a_line_break_in_a_response_field_never_reaches_a_client(value: bytes) -> None:
    """Case crlf-in-response-header; RFC 9113 section 10.3."""
    for build in (
        lambda: headers.response_head(200, [(b"x-a", value)], ASK, True, False),
        lambda: headers.interim_head(103, [(b"x-a", value)]),
        lambda: headers.trailer_section([(b"x-a", value)]),
    ):
        with pytest.raises(UpstreamError):
            build()


def test_trailers_leave_out_what_must_not_be_there() -> None:
    """RFC 9110 section 6.5.1."""
    fields = [
        (b"X-Sum", b" 1 "),
        (b"Content-Length", b"5"),
        (b"transfer-encoding", b"chunked"),
        (b"Host", b"x"),
    ]
    assert headers.forwardable_trailers(fields) == [(b"x-sum", b"1")]
    assert headers.trailer_section([(b"x-sum", b"1"), (b"set-cookie", b"a")]) == b"x-sum: 1\r\n"


# --- HPACK classes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        b"authorization",
        b"cookie",
        b"set-cookie",
        b"proxy-authorization",
        b"x-api-key",
        b"x-goog-api-key",
        b"apikey",
        b"x-auth-token",
        b"client-secret",
    ],
)
def test_secrets_are_never_indexed(name: bytes) -> None:
    """RFC 7541 section 7.1.3."""
    assert headers.is_sensitive(name)


def test_ordinary_fields_are_neither_secret_nor_volatile() -> None:
    for name in (b"content-type", b"user-agent", b"accept", b":path"):
        assert not headers.is_sensitive(name)
        assert not headers.is_volatile(name)


@pytest.mark.parametrize(
    "name", [b"content-length", b"traceparent", b"x-request-id", b"x-b3-traceid", b"date"]
)
def test_fields_that_change_with_each_request_are_volatile(name: bytes) -> None:
    assert headers.is_volatile(name)
