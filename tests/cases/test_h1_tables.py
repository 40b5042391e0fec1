"""Tables of requests that are refused, and of odd ones that pass, over one real proxy (RFC 9112)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cases.timing import ABSENCE, SOON
from tests.support.client import with_key

if TYPE_CHECKING:
    from tests.support.stage import Stage

CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


def post(*lines: bytes, body: bytes = b"hello") -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: x", *lines, b"", body])


REFUSED: dict[str, tuple[bytes, set[int]]] = {
    "no host": (b"GET / HTTP/1.1\r\n\r\n", {400}),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", {400}),
    "host with spaces": (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", {400}),
    "host with userinfo": (b"GET / HTTP/1.1\r\nHost: u:p@a\r\n\r\n", {400}),
    "two spaces before the version": (b"GET /  HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "space before the method": (b" GET / HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "tab between": (b"GET\t/\tHTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "no version": (b"GET /\r\n\r\n", {400}),
    "version 2.0": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", {400, 505}),
    "version 1.2": (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", {400, 505}),
    "version 11.1": (b"GET / HTTP/11.1\r\nHost: x\r\n\r\n", {400, 505}),
    "version in lower case": (b"GET / http/1.1\r\nHost: x\r\n\r\n", {400, 505}),
    "method with a bracket": (b"GE(T / HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "target with a space": (b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "target without a slash": (b"GET models HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "target with a control": (b"GET /a\x01b HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 405, 505}),
    "TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n", {400}),
    "bare LF": (b"GET / HTTP/1.1\nHost: x\n\n", {400}),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost: x\r\nX-A : 1\r\n\r\n", {400}),
    "no colon": (b"GET / HTTP/1.1\r\nHost: x\r\nX-A\r\n\r\n", {400}),
    "empty name": (b"GET / HTTP/1.1\r\nHost: x\r\n: 1\r\n\r\n", {400}),
    "name with a slash": (b"GET / HTTP/1.1\r\nHost: x\r\na/b: 1\r\n\r\n", {400}),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: a\0b\r\n\r\n", {400}),
    "first line folded": (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", {400}),
    "signed length": (post(b"Content-Length: +5"), {400}),
    "negative length": (post(b"Content-Length: -5"), {400}),
    "hexadecimal length": (post(b"Content-Length: 0x5"), {400}),
    "length with an underscore": (post(b"Content-Length: 1_0"), {400}),
    "empty length": (post(b"Content-Length: "), {400}),
    "two lengths": (post(b"Content-Length: 5", b"Content-Length: 6"), {400}),
    "list of unequal lengths": (post(b"Content-Length: 5, 6"), {400}),
    "endless length": (post(b"Content-Length: 99999999999999999999999"), {400, 413}),
    "coding and length": (post(b"Transfer-Encoding: chunked", b"Content-Length: 5"), {400}),
    "unknown coding": (post(b"Transfer-Encoding: gzip"), {400, 501}),
    "chunked not last": (post(b"Transfer-Encoding: chunked, gzip"), {400, 501}),
    "chunked after another": (post(b"Transfer-Encoding: gzip, chunked"), {400, 501}),
    "chunked twice": (post(b"Transfer-Encoding: chunked, chunked"), {400, 501}),
    "two codings": (post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), {400, 501}),
    "coding with a control": (post(b"Transfer-Encoding: \x0bchunked"), {400, 501}),
    "coding in quotes": (post(b'Transfer-Encoding: "chunked"'), {400, 501}),
    "coding in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    "coding name with a space": (post(b"Transfer-Encoding : chunked"), {400}),
    "empty coding": (post(b"Transfer-Encoding:"), {400, 501}),
    "coding with a comma before": (post(b"Transfer-Encoding: ,chunked"), {400, 501}),
    "coding with a comma behind": (post(b"Transfer-Encoding: chunked,"), {400, 501}),
    "coding with a parameter": (post(b"Transfer-Encoding: chunked;q=1"), {400, 501}),
    "coding almost chunked": (post(b"Transfer-Encoding: xchunked"), {400, 501}),
    "coding identity": (post(b"Transfer-Encoding: identity"), {400, 501}),
    "coding with a high byte": (post(b"Transfer-Encoding: chunked\xa0"), {400, 501}),
    "length with a high digit": (post(b"Content-Length: \xb2"), {400}),
    "length with a fraction": (post(b"Content-Length: 5.0"), {400}),
    "list of equal lengths": (post(b"Content-Length: 5, 5"), {400}),
    "two equal lengths": (post(b"Content-Length: 5", b"Content-Length: 5"), {400}),
    "two equal hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", {400}),
    "host with a path": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", {400}),
    "host with a word as port": (b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", {400}),
    "absolute target without host": (b"GET http://a/ HTTP/1.1\r\n\r\n", {400}),
    "absolute target, empty authority": (b"GET http:///x HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "absolute target of another scheme": (b"GET ftp://a/x HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "authority as target": (b"GET a:80 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "fragment in the target": (b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "raw high bytes in the target": (b"GET /\xe5\xbc\xa0 HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "* for another method": (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "* and more": (b"OPTIONS *x HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "CONNECT with a path": (b"CONNECT /x HTTP/1.1\r\nHost: x\r\n\r\n", {400, 405}),
    "space behind the version": (b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", {400}),
    "version of two digits": (b"GET / HTTP/1.10\r\nHost: x\r\n\r\n", {400, 505}),
    "version 0.9": (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", {400, 505}),
    "method with a high byte": (b"G\xc9T / HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "LF before the request line": (b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", {400}),
    "CR CR LF": (b"GET / HTTP/1.1\r\r\nHost: x\r\n\r\n", {400}),
    "pseudo-field": (b"GET / HTTP/1.1\r\nHost: x\r\n:path: /y\r\n\r\n", {400}),
    "DEL in a value": (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: a\x7f\r\n\r\n", {400}),
    "name with a high byte": (b"GET / HTTP/1.1\r\nHost: x\r\nX-\xe9: 1\r\n\r\n", {400}),
    "name in quotes": (b'GET / HTTP/1.1\r\nHost: x\r\n"X": 1\r\n\r\n', {400}),
}

BROKEN_CHUNKS: dict[str, bytes] = {
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "bare LF after the size": b"5\nhello\r\n0\r\n\r\n",
    "bare LF after the data": b"5\r\nhello\n0\r\n\r\n",
    "data longer than its size": b"3\r\nhello\r\n0\r\n\r\n",
    "bare CR in an extension": b"5;a\rb\r\nhello\r\n0\r\n\r\n",
    "bare LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "NUL in an extension": b"5;a\0b\r\nhello\r\n0\r\n\r\n",
    "space before the size": b" 5\r\nhello\r\n0\r\n\r\n",
    "size of 17 digits": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "endless extension": b"5;" + b"a" * 100_000 + b"\r\nhello\r\n0\r\n\r\n",
    "folded trailer": b"5\r\nhello\r\n0\r\nX-A: 1\r\n b\r\n\r\n",
    "trailer without a colon": b"5\r\nhello\r\n0\r\nnonsense\r\n\r\n",
    "size in quotes": b'"5"\r\nhello\r\n0\r\n\r\n',
    "size of nothing but an extension": b";a=1\r\nhello\r\n0\r\n\r\n",
    "space between size and extension": b"5 ;a=1\r\nhello\r\n0\r\n\r\n",
    "tab behind the size": b"5\t\r\nhello\r\n0\r\n\r\n",
    "CR without LF behind the size": b"5\rhello\r\n0\r\n\r\n",
    "CR without LF behind the data": b"5\r\nhello\rX0\r\n\r\n",
    "data shorter than its size": b"6\r\nhello\r\n0\r\n\r\n",
    "bare LF behind the last chunk": b"5\r\nhello\r\n0\n\n",
    "bare LF in a trailer": b"5\r\nhello\r\n0\r\nX-A: 1\nX-B: 2\r\n\r\n",
    "NUL in a trailer": b"5\r\nhello\r\n0\r\nX-A: \0\r\n\r\n",
    "space before the colon of a trailer": b"5\r\nhello\r\n0\r\nX-A : 1\r\n\r\n",
    "extensions without end, one byte a chunk": (b"1;" + b"a" * 200 + b"\r\nx\r\n") * 1000,
    "endless trailers": b"5\r\nhello\r\n0\r\n" + b"X-A: 1\r\n" * 20_000 + b"\r\n",
}


async def test_malformed_heads_never_reach_the_upstream(stage: Stage) -> None:
    """RFC 9112 sections 2.2, 3, 5, 6.1 and 6.3."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    wrong = []
    for name, (raw, statuses) in REFUSED.items():
        client = await stage.client(proxy)
        client.send(with_key(raw))
        try:
            response = await client.response(within=SOON)
            rest = await client.closed(within=SOON)
        except Exception as error:
            wrong.append((name, repr(error)))
            continue
        if response.status not in statuses or not response.closes or rest:
            wrong.append((name, f"{response.status} {response.cause} closes={response.closes} {rest!r}"))
    await origin.no_request(0, ABSENCE)
    assert not wrong


async def test_broken_chunks_never_become_a_whole_request(stage: Stage) -> None:
    """RFC 9112 section 7.1: 400, close, and RST_STREAM instead of END_STREAM."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    wrong = []
    for name, raw in BROKEN_CHUNKS.items():
        client = await stage.client(proxy)
        client.send(with_key(CHUNKED + raw))
        try:
            response = await client.response("POST", within=SOON)
            rest = await client.closed(within=SOON)
        except Exception as error:
            wrong.append((name, repr(error)))
            continue
        if response.status not in (400, 431) or not response.closes or rest:
            wrong.append((name, f"{response.status} {response.cause} closes={response.closes} {rest!r}"))
    for request in origin.requests:
        await request.was_reset()
    assert not [request for request in origin.requests if request.ended]
    assert not wrong


async def test_a_request_after_a_refused_one_is_not_read(stage: Stage) -> None:
    """RFC 9112 section 9.6: what follows on the same connection may be an attack."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(
        post(b"Content-Length: 5", b"Transfer-Encoding: chunked")
        + b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert (await client.response("POST", within=SOON)).status == 400
    assert await client.closed() == b""
    await origin.no_request(0, ABSENCE)


async def test_a_head_beyond_the_limit_is_431(stage: Stage) -> None:
    """RFC 6585 section 5; the head is not read to its end."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--max-header-bytes=8KiB")
    for raw in (
        b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: 1\r\n" * 2000 + b"\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 100_000,
    ):
        client = await stage.client(proxy)
        client.send(with_key(raw))
        response = await client.response(within=SOON)
        assert response.status in (414, 431)
        assert response.closes
    client = await stage.client(proxy)
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 7000 + b"\r\n\r\n")
    request = await origin.request(1)
    assert request.get(b"x-a") == b"a" * 7000
    request.respond(200, b"", [(b"x-b", b"b" * 40_000)])
    assert (await client.response()).get(b"x-b") == b"b" * 40_000


async def test_pipelined_requests_are_answered_in_order(stage: Stage) -> None:
    """RFC 9112 section 9.3.2."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(
        b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\none"
        b"POST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
        b"GET /3 HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    for number, body in ((1, b"one"), (2, b"two"), (3, b"")):
        request = await origin.request(number)
        assert request.path == b"/%d" % number
        assert await request.complete() == body
        request.respond(200, request.path)
        assert (await client.response()).body == b"/%d" % number


async def test_odd_requests_that_are_right_pass(stage: Stage) -> None:
    """Each row: what is sent, and what the origin must see of it."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    rows: list[tuple[bytes, dict[bytes, bytes | None], bytes]] = [
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", {b":method": b"OPTIONS", b":path": b"*"}, b""),
        (
            b"DELETE /f HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
            {b":method": b"DELETE", b"content-length": b"2"},
            b"hi",
        ),
        (b"GET /f HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi", {b":method": b"GET"}, b"hi"),
        (b"PURGE /f HTTP/1.1\r\nHost: x\r\n\r\n", {b":method": b"PURGE"}, b""),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", {b"content-length": b"0"}, b""),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", {b":method": b"POST"}, b""),
        (b"GET //a/../b?c=%zz&d=%20 HTTP/1.1\r\nHost: x\r\n\r\n", {b":path": b"//a/../b?c=%zz&d=%20"}, b""),
        (b"GET ?x=1 HTTP/1.1\r\nHost: x\r\n\r\n", {}, b"refused"),
        (b"GET / HTTP/1.1\r\nHost:\r\n\r\n", {b":path": b"/"}, b""),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nX-Empty:\r\nX-Space: \t a b \t\r\n\r\n",
            {b"x-empty": b"", b"x-space": b"a b"},
            b"",
        ),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n"
            b"X-End: 1\r\n\r\n",
            {b"x-hop": None, b"keep-alive": None, b"connection": None, b"x-end": b"1"},
            b"",
        ),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nProxy-Connection: keep-alive\r\nTE: gzip, trailers;q=0.5\r\n\r\n",
            {b"proxy-connection": None},
            b"",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
            b"HTTP2-Settings: AAMAAABk\r\nContent-Length: 5\r\n\r\nhello",
            {b"upgrade": None, b"http2-settings": None},
            b"hello",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            {b"upgrade": None},
            b"hello",
        ),
        (
            b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n"
            b'5;a=1;b="c d"\r\nhello\r\n00000\r\n\r\n',
            {b"transfer-encoding": None},
            b"hello",
        ),
        (
            b"GET / HTTP/1.1\r\nHost: x\r\nCookie: a=1; b=2\r\nCookie: c=3\r\n\r\n",
            {},
            b"",
        ),
    ]  # fmt: skip
    wrong = []
    for raw, seen, body in rows:
        before = len(origin.requests)
        client = await stage.client(proxy)
        client.send(with_key(raw))
        if body == b"refused":
            assert (await client.response()).status == 400
            continue
        try:
            request = await origin.request(before + 1, within=SOON)
            got = await request.complete(within=SOON)
        except AssertionError as error:
            wrong.append((raw, str(error)[:100]))
            continue
        values = {name: dict(request.fields).get(name) for name in seen}
        if values != seen or got != body:
            wrong.append((raw, f"{values} {got!r}"))
        request.respond(200)
        response = await client.response()
        if response.status != 200:
            wrong.append((raw, str(response.status)))
    assert not wrong
