"""What a request may say, and how its answer must look for the client that asked (RFC 9110, RFC 9112)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.client import request_bytes, with_key
from tests.support.framing import Code, data

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

HEAD = b" HTTP/1.1\r\nHost: x\r\n"

PASSED: dict[str, tuple[bytes, dict[bytes, bytes | None], bytes]] = {
    # what is sent, what the origin must see of it (None: nothing), the body it must get
    "a preflight": (
        b"OPTIONS /v1" + HEAD + b"Origin: http://a\r\nAccess-Control-Request-Method: POST\r\n\r\n",
        {b":method": b"OPTIONS", b"origin": b"http://a", b"access-control-request-method": b"POST"}, b"",
    ),
    "a method of WebDAV": (b"PROPFIND /" + HEAD + b"\r\n", {b":method": b"PROPFIND"}, b""),
    "a method with a body": (b"QUERY /" + HEAD + b"Content-Length: 2\r\n\r\nhi", {b":method": b"QUERY"}, b"hi"),
    "a method with a dash": (b"M-SEARCH /" + HEAD + b"\r\n", {b":method": b"M-SEARCH"}, b""),
    "a method in lower case": (b"get /" + HEAD + b"\r\n", {b":method": b"get"}, b""),
    "a method of odd characters": (b"A!#$%&'*+.^_`|~9 /" + HEAD + b"\r\n", {b":method": b"A!#$%&'*+.^_`|~9"}, b""),
    "TRACE": (b"TRACE /" + HEAD + b"\r\n", {b":method": b"TRACE"}, b""),
    "OPTIONS with Max-Forwards": (
        b"OPTIONS /" + HEAD + b"Max-Forwards: 010\r\n\r\n", {b":method": b"OPTIONS", b"max-forwards": b"9"}, b"",
    ),
    "TRACE with Max-Forwards": (b"TRACE /" + HEAD + b"Max-Forwards: 1\r\n\r\n", {b"max-forwards": b"0"}, b""),
    "TRACE with a huge Max-Forwards": (
        b"TRACE /" + HEAD + b"Max-Forwards: " + b"9" * 5000 + b"\r\n\r\n", {b"max-forwards": b"999999"}, b"",
    ),
    "OPTIONS with a Max-Forwards that is no number": (
        b"OPTIONS /" + HEAD + b"Max-Forwards: -1\r\n\r\n", {b"max-forwards": b"-1"}, b"",
    ),
    "GET with Max-Forwards": (b"GET /" + HEAD + b"Max-Forwards: 0\r\n\r\n", {b"max-forwards": b"0"}, b""),
    "HEAD with a body": (b"HEAD /" + HEAD + b"Content-Length: 2\r\n\r\nhi", {b":method": b"HEAD"}, b"hi"),
    "POST without a body": (b"POST /" + HEAD + b"\r\n", {b":method": b"POST"}, b""),
    "POST with an empty body": (b"POST /" + HEAD + b"Content-Length: 0\r\n\r\n", {b"content-length": b"0"}, b""),
    "an empty chunked body": (
        b"POST /" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {b"content-length": None}, b"",
    ),
    "odd characters in the path": (
        b"GET /a%00b//../%2e%2e/;x=\"<>^`{|}?q=?/?&&" + HEAD + b"\r\n",
        {b":path": b"/a%00b//../%2e%2e/;x=\"<>^`{|}?q=?/?&&"}, b"",
    ),
    "two slashes": (b"GET //evil/x" + HEAD + b"\r\n", {b":path": b"//evil/x"}, b""),
    "absolute, upper case": (b"GET HTTP://EVIL/x HTTP/1.1\r\nHost: y\r\n\r\n", {b":path": b"/x"}, b""),
    "absolute, https": (b"GET https://evil:1/x?y HTTP/1.1\r\nHost: y\r\n\r\n", {b":path": b"/x?y"}, b""),
    "absolute, without a path": (b"GET http://evil HTTP/1.1\r\nHost: y\r\n\r\n", {b":path": b"/"}, b""),
    "absolute, query only": (b"GET http://evil?x=1 HTTP/1.1\r\nHost: y\r\n\r\n", {b":path": b"/?x=1"}, b""),
    "absolute, IPv6": (b"GET http://[::1]:1/x HTTP/1.1\r\nHost: y\r\n\r\n", {b":path": b"/x"}, b""),
    "absolute for the server": (b"OPTIONS http://evil HTTP/1.1\r\nHost: y\r\n\r\n", {b":path": b"*"}, b""),
    "an IPv6 host": (b"GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", {b"host": None}, b""),
    "fields that Connection names, on two lines": (
        b"GET /" + HEAD + b"Connection: X-A\r\nx-a: 1\r\nX-C: 1\r\nCONNECTION: x-B , ,\tx-d\r\nX-B: 1\r\nX-D: 1\r\n"
        b"\r\n",
        {b"x-a": None, b"x-b": None, b"x-d": None, b"x-c": b"1"}, b"",
    ),
    "a length that Connection names": (
        b"POST /" + HEAD + b"Connection: Content-Length\r\nContent-Length: 2\r\n\r\nhi",
        {b"content-length": b"2"}, b"hi",
    ),
    "a coding that Connection names": (
        b"POST /" + HEAD + b"Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        {b"transfer-encoding": None}, b"hi",
    ),
    "a host that Connection names": (
        b"GET /" + HEAD + b"Connection: host, :authority\r\n\r\n", {b"host": None}, b"",
    ),
    "credentials of the proxy": (
        b"GET /" + HEAD + b"Proxy-Authorization: Basic x\r\nAuthorization: y\r\n\r\n",
        {b"proxy-authorization": None, b"authorization": b"y"}, b"",
    ),
    "TE without trailers": (b"GET /" + HEAD + b"TE: deflate\r\nConnection: TE\r\n\r\n", {b"te": None}, b""),
    "TE with trailers": (
        b"GET /" + HEAD + b"TE: deflate;q=0.5 , Trailers\r\nConnection: TE\r\n\r\n", {b"te": b"trailers"}, b"",
    ),
    "names of odd characters": (b"GET /" + HEAD + b"X!#$%&'*+.^_`|~9: 1\r\n\r\n", {b"x!#$%&'*+.^_`|~9": b"1"}, b""),
    "an unknown expectation": (
        b"POST /" + HEAD + b"Expect: wonders\r\nContent-Length: 2\r\n\r\nhi", {b":method": b"POST"}, b"hi",
    ),
    "many fields": (
        b"GET /" + HEAD + b"".join(b"X-%d: %d\r\n" % (n, n) for n in range(3000)) + b"\r\n", {b"x-2999": b"2999"}, b"",
    ),
    "an offer of a websocket": (
        b"GET /" + HEAD + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n",
        {b"upgrade": None, b"sec-websocket-key": b"a"}, b"",
    ),
    "HTTP/1.0 without a host": (b"GET / HTTP/1.0\r\n\r\n", {b":path": b"/"}, b""),
    "HTTP/1.0 with a body": (b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\nhi", {b":path": b"/"}, b"hi"),
    "HTTP/1.0 that expects": (
        b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nTE: trailers\r\nContent-Length: 2\r\n\r\nhi", {b"te": None}, b"hi",
    ),
    "extensions of each chunk": (
        b"POST /" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b'1;a="\\"b";c\r\nx\r\n' * 50 + b"0;d\r\n\r\n",
        {}, b"x" * 50,
    ),
    "sizes with zeros and capitals": (
        b"POST /" + HEAD + b"Transfer-Encoding: CHUNKED\r\n\r\n00A\r\n0123456789\r\n000\r\n\r\n", {}, b"0123456789",
    ),
}  # fmt: skip


async def test_requests_that_are_right_reach_the_origin_as_they_were_meant(stage: Stage) -> None:
    """RFC 9110 sections 7.6.1, 9 and 10.1; RFC 9112 sections 3.2, 6 and 7.1."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    wrong: list[tuple[object, ...]] = []
    for name, (raw, seen, body) in PASSED.items():
        client = await stage.client(proxy)
        client.send(with_key(raw))
        before = len(origin.requests)
        try:
            request = await origin.request(before + 1, within=SOON)
            got = await request.complete(within=SOON)
        except AssertionError as error:
            wrong.append((name, str(error)[:100]))
            continue
        values = {field: dict(request.fields).get(field) for field in seen}
        if values != seen or got != body or request.get(b":authority") != origin.authority:
            wrong.append((name, values, got))
        request.respond(200)
        method = raw.partition(b" ")[0].decode()
        response = await client.response(method, within=SOON)
        if response.status != 200 or response.interims:
            wrong.append((name, response.status, response.interims))
        if response.closes is not raw.partition(b"\r\n")[0].endswith(b"1.0"):
            wrong.append((name, "closes", response.closes))
        await client.gone()
    assert not wrong


EXPECTING: dict[str, tuple[bytes, bytes, list[int]]] = {
    "with a length": (b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n", b"hi", [100]),
    "in capitals": (b"EXPECT: 100-CONTINUE\r\nContent-Length: 2\r\n\r\n", b"hi", [100]),
    "with chunks": (
        b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"2\r\nhi\r\n0\r\n\r\n",
        [100],
    ),
    "among others": (b"Expect: 100-continue, wonders\r\nContent-Length: 2\r\n\r\n", b"hi", [100]),
    "with no body": (b"Expect: 100-continue\r\n\r\n", b"", []),
    "with an empty body": (b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n", b"", []),
}


async def test_100_is_sent_once_and_only_where_a_body_is_to_come(stage: Stage) -> None:
    """RFC 9110 section 10.1.1."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for name, (fields, body, interims) in EXPECTING.items():
        before = len(origin.requests)
        client.send(with_key(b"POST /" + HEAD + fields))
        for status in interims:
            assert await client.interim(within=SOON) == status, name
        client.send(body)
        request = await origin.request(before + 1)
        assert await request.complete() == (b"hi" if body else b""), name
        assert request.get(b"expect") is None, name
        request.respond(200, name.encode())
        response = await client.response("POST")
        assert (response.body, response.interims, response.closes) == (name.encode(), [], False), name


async def test_a_body_that_is_too_large_is_refused_before_it_is_asked_for(stage: Stage) -> None:
    """RFC 9110 section 10.1.1: the final status instead of 100."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--max-body-bytes=10")
    for length, status in ((10, 200), (11, 413), (10**17, 413)):
        client = await stage.client(proxy)
        client.send(
            with_key(b"POST /" + HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % length)
        )
        if status == 200:
            assert await client.interim(within=SOON) == 100
            client.send(bytes(length))
            (await origin.request(1)).respond(200)
        response = await client.response("POST", within=SOON)
        assert (response.status, response.interims, response.closes) == (status, [], status == 413)
    assert len(origin.requests) == 1


TRAILERS: dict[str, tuple[bytes, list[tuple[bytes, bytes]]]] = {
    "two": (b"X-Sum: 1\r\nx-other:  2 \r\n", [(b"x-sum", b"1"), (b"x-other", b"2")]),
    "none that may pass": (b"Content-Length: 9\r\nHost: y\r\nAuthorization: z\r\nTE: trailers\r\n", []),
    "some that may not": (b"Transfer-Encoding: x\r\nX-Sum: 1\r\nConnection: close\r\n", [(b"x-sum", b"1")]),
    "an empty one": (b"X-Empty:\r\n", [(b"x-empty", b"")]),
}


async def test_trailers_of_a_request_go_up_but_those_of_framing_and_routing(stage: Stage) -> None:
    """RFC 9110 section 6.5.1, RFC 9112 section 7.1.2, RFC 9113 section 8.1."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for number, (name, (lines, wanted)) in enumerate(TRAILERS.items(), 1):
        client.send(
            with_key(
                b"POST /" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n" + lines + b"\r\n"
            )
        )
        request = await origin.request(number)
        assert await request.complete() == b"hi", name
        assert list(request.trailers or []) == wanted, name
        request.respond(200)
        response = await client.response("POST")
        assert (response.status, response.closes) == (200, False), name


async def _ask(client: Client, version: str, method: str, *fields: tuple[str, str]) -> None:
    client.request(method, "/", fields=[("Connection", "keep-alive"), *fields], version=version)


STATUSES: dict[str, tuple[str, int, list[tuple[bytes, bytes]], bytes, tuple[bytes | None, bool, bytes]]] = {
    # method, status, fields, DATA; the client's content-length, chunked, body
    "205": ("GET", 205, [], b"", (b"0", False, b"")),
    "204": ("GET", 204, [], b"", (None, False, b"")),
    "204 with a length": ("GET", 204, [(b"content-length", b"0")], b"", (None, False, b"")),
    "304": ("GET", 304, [(b"etag", b"x")], b"", (None, False, b"")),
    "304 with a length": ("GET", 304, [(b"content-length", b"99")], b"", (b"99", False, b"")),
    "HEAD": ("HEAD", 200, [], b"", (None, False, b"")),
    "HEAD with a length": ("HEAD", 200, [(b"content-length", b"99")], b"", (b"99", False, b"")),
    "HEAD not found": ("HEAD", 404, [(b"content-length", b"9")], b"", (b"9", False, b"")),
    "299": ("GET", 299, [(b"content-length", b"2")], b"hi", (b"2", False, b"hi")),
    "418": ("POST", 418, [], b"hi", (None, True, b"hi")),
    "599": ("POST", 599, [], b"hi", (None, True, b"hi")),
    "999": ("GET", 999, [], b"hi", (None, True, b"hi")),
    "503 with its own time": ("GET", 503, [(b"retry-after", b"120")], b"hi", (None, True, b"hi")),
    "407": ("GET", 407, [(b"proxy-authenticate", b"Basic")], b"", (b"0", False, b"")),
    "a length of zeros": ("GET", 200, [(b"content-length", b"002")], b"hi", (b"002", False, b"hi")),
}  # fmt: skip


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_every_status_is_framed_so_that_the_next_request_finds_its_answer(
    stage: Stage, version: str
) -> None:
    """RFC 9110 sections 6.4.1, 8.6 and 15; RFC 9112 section 6.3. An HTTP/1.0 client gets no chunks, but an end."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for number, (name, (method, status, fields, body, wanted)) in enumerate(STATUSES.items(), 1):
        await _ask(client, version, method)
        request = await origin.request(number)
        request.conn.send(
            request.conn.response(request.stream, status, fields, end=not body),
            *([data(request.stream, body, end=True)] if body else []),
        )
        response = await client.response(method, within=SOON)
        length, chunked, content = wanted
        assert (response.status, response.get(b"content-length"), response.body) == (
            status,
            length,
            content,
        ), name
        assert response.chunked == (chunked and version == "1.1"), name
        assert {field for field in fields if field[0] != b"content-length"} <= set(response.fields), name
        assert len(response.all(b"date")) == 1, name
        if response.closes:
            assert (version, chunked) == ("1.0", True), name
            assert await client.closed() == b"", name
            client = await stage.client(proxy)


async def test_interim_responses_pass_with_their_fields_and_never_count_as_final(stage: Stage) -> None:
    """RFC 9110 section 15.2."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    for version, passed in (("1.1", [102, 103, 103, 199]), ("1.0", [])):
        client = await stage.client(proxy)
        client.request("GET", "/", version=version)
        request = await origin.request(len(origin.requests) + 1)
        for status in (100, 102, 103, 103, 199):
            request.conn.send(request.conn.response(request.stream, status, [(b"link", b"</%d>" % status)]))
        request.respond(200, b"final", [(b"date", b"Mon, 01 Jan 2001 00:00:00 GMT")])
        response = await client.response()
        assert [status for status, _ in response.interims] == passed
        assert all((b"link", b"</%d>" % status) in fields for status, fields in response.interims)
        assert (response.status, response.body) == (200, b"final")
        assert response.get(b"date") == b"Mon, 01 Jan 2001 00:00:00 GMT"


async def test_events_reach_a_1_0_client_as_they_come(stage: Stage) -> None:
    """RFC 9112 section 6.3, rule 8: no chunks, each event at once, the end of the connection ends them."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/events", version="1.0")
    request = await origin.request(1)
    request.head(200, [(b"content-type", b"text/event-stream")])
    head = await client.head()
    assert (head.closes, head.chunked) == (True, False)
    for number in range(5):
        event = b"data: %d\n\n" % number
        request.data(event, end=number == 4)
        assert await client.reader.readexactly(len(event)) == event
    assert await client.closed() == b""


LEFT: dict[str, tuple[bytes, bytes]] = {
    "inside the head": (b"POST / HT", b""),
    "before the body": (b"POST /" + HEAD + b"Content-Length: 9\r\n\r\n", b""),
    "instead of the body asked for": (
        b"POST /" + HEAD + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n",
        b"",
    ),
    "inside the body": (b"POST /" + HEAD + b"Content-Length: 9\r\n\r\nhalf", b"half"),
    "inside a chunk": (b"POST /" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf", b"half"),
    "between chunks": (b"POST /" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", b"half"),
    "inside the trailers": (
        b"POST /" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n0\r\nX: 1\r\n",
        b"half",
    ),
    "with a length without end": (
        b"POST /" + HEAD + b"Content-Length: 999999999999999999\r\n\r\nhalf",
        b"half",
    ),
}


@pytest.mark.parametrize("policy", ["cancel", "wait"])
@pytest.mark.parametrize("how", ["FIN", "RST"])
async def test_a_client_that_leaves_inside_its_request_has_sent_none(
    stage: Stage, how: str, policy: str
) -> None:
    """RFC 9112 section 8: an incomplete request is never ended upstream as if it were whole."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, f"--half-close={policy}", "--admin-listen=127.0.0.1:0")
    for name, (raw, part) in LEFT.items():
        client = await stage.client(proxy)
        before = len(origin.requests)
        client.send(with_key(raw))
        if b"\r\n\r\n" in raw:
            request = await origin.request(before + 1)
            await request.received(len(part))
        client.close() if how == "FIN" else client.rst()
        if b"\r\n\r\n" in raw:
            assert await request.was_reset(within=SOON) == Code.CANCEL, name
            assert not request.ended, name
    survivor = await stage.client(proxy)
    survivor.send(request_bytes("POST", "/last", b"x"))
    (await origin.request(len(origin.requests) + 1)).respond(200, b"last")
    assert (await survivor.response("POST")).body == b"last"
    assert '"requests": 0' in await proxy.page("/connections")


async def _pour(request: Request) -> None:
    request.head(200, [(b"content-length", b"%d" % (8 << 20))])
    await request.pour(bytes(8 << 20))


async def test_a_client_that_leaves_inside_a_long_response_frees_all_that_was_held_for_it(
    stage: Stage,
) -> None:
    """Flow control (RFC 9113 section 5.2) holds one window for each; when they leave nothing is held."""
    origin = await stage.origin(_pour)
    origin.tolerated = True
    proxy = await stage.proxy(origin, "--admin-listen=127.0.0.1:0")
    stalled = [await stage.client(proxy, receive_buffer_bytes=8192) for _ in range(8)]
    for client in stalled:
        client.request("GET", "/")
        await client.head()
    for client in stalled:
        client.rst()
    for request in origin.requests:
        assert await request.was_reset(within=SOON) == Code.CANCEL
    page = await proxy.page("/connections")
    assert '"used": 0' in page, page
    assert '"requests": 0' in page, page
    await origin.no_request(8, ABSENCE)
