"""What a client is told that broke its own request, and what the log says of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.cases.timing import SOON
from tests.support.framing import Code

if TYPE_CHECKING:
    from tests.support.stage import Stage

SECRET = b"S3CR3T"
TAIL = b"?key=%b HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n" % (SECRET, SECRET)

REFUSED: dict[str, tuple[bytes, int, str, str]] = {
    # what is sent, status, cause, and how the log names the request
    "no request line": (b"nonsense %b\r\n\r\n" % SECRET, 400, "bad-request", "- -"),
    "a space in the target": (b"GET /a b" + TAIL + b"\r\n", 400, "bad-request", "- -"),
    "a folded line": (b"GET /fold" + TAIL + b" x\r\n\r\n", 400, "bad-request", "GET /fold"),
    "no colon": (b"POST /colon" + TAIL + b"%b\r\n\r\n" % SECRET, 400, "bad-request", "POST /colon"),
    "a bare LF, head not whole": (b"PUT /lf" + TAIL + b"a: b\n", 400, "bad-request", "PUT /lf"),
    "a control character": (b"PUT /nul" + TAIL + b"a: \0", 400, "bad-request", "PUT /nul"),
    "two hosts": (b"GET /hosts" + TAIL + b"Host: y\r\n\r\n", 400, "bad-request", "GET /hosts"),
    "no host": (b"GET /nohost HTTP/1.1\r\n\r\n", 400, "bad-request", "GET /nohost"),
    "a password in the target": (
        b"GET http://u:%b@h/absolute?%b HTTP/1.1\r\nHost: x\r\n\r\n" % (SECRET, SECRET),
        400, "bad-request", "GET /absolute",
    ),
    "a password in the target of CONNECT": (
        b"CONNECT u:%b@h:443 HTTP/1.1\r\nHost: x\r\n\r\n" % SECRET, 405, "connect-method", "CONNECT -",
    ),
    "both lengths": (
        b"POST /both" + TAIL + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        400, "ambiguous-length", "POST /both",
    ),
    "an unknown coding": (
        b"POST /coding" + TAIL + b"Transfer-Encoding: gzip\r\n\r\n", 501, "unsupported-coding", "POST /coding",
    ),
    "the last hop of OPTIONS": (
        b"OPTIONS /last" + TAIL + b"Max-Forwards: 0\r\n\r\n", 501, "max-forwards", "OPTIONS /last",
    ),
    "the last hop of TRACE": (
        b"TRACE /trace" + TAIL + b"Max-Forwards: 000\r\n\r\n", 501, "max-forwards", "TRACE /trace",
    ),
    "a version": (b"GET /version HTTP/3.0\r\nHost: x\r\n\r\n", 505, "http-version", "GET /version"),
    "a long head": (
        b"GET /long" + TAIL + b"X-A: " + b"a" * 5000 + b"\r\n\r\n", 431, "head-too-large", "GET /long",
    ),
    "a longer head, never whole": (
        b"GET /longer" + TAIL + b"X-A: " + b"a" * 50_000, 431, "head-too-large", "GET /longer",
    ),
    "an endless target": (b"GET /" + b"a" * 50_000, 431, "head-too-large", "- -"),
    "a long body": (
        b"POST /body" + TAIL + b"Content-Length: 101\r\n\r\n", 413, "body-too-large", "POST /body",
    ),
    "a long chunk": (
        b"POST /chunk" + TAIL + b"Transfer-Encoding: chunked\r\n\r\n65\r\n", 413, "body-too-large",
        "POST /chunk",
    ),
    "a head that stops": (b"GET /slow" + TAIL, 408, "head-timeout", "GET /slow"),
}  # fmt: skip


async def test_a_request_that_breaks_is_answered_with_its_cause_and_logged_by_its_name(stage: Stage) -> None:
    """RFC 9110 section 15.5, RFC 9112 sections 2.2 and 9.6: a whole answer, close, one line, no field values."""
    origin = await stage.origin()
    proxy = await stage.proxy(
        origin, "--max-header-bytes=4KiB", "--max-body-bytes=100", "--client-head-timeout=2s"
    )
    wrong: list[tuple[object, ...]] = []
    for name, (raw, status, cause, what) in REFUSED.items():
        client = await stage.client(proxy)
        before = len(proxy.lines)
        client.send(raw)
        response = await client.response("POST", within=2 * SOON)
        if (response.status, response.cause, response.closes) != (status, cause, True):
            wrong.append((name, response.status, response.cause, response.closes))
        if response.get(b"content-type") != b"text/plain; charset=utf-8" or response.get(b"date") is None:
            wrong.append((name, response.fields))
        if not re.match(rb"h2ping: %b: \S.*\n$" % cause.encode(), response.body):
            wrong.append((name, response.body))
        if await client.closed(within=SOON):
            wrong.append((name, "more came"))
        await proxy.logged(f"client error: {what}: {cause}", within=SOON)
        told = [line for _, line in proxy.lines[before:] if "client error" in line]
        if len(told) != 1 or SECRET.decode() in told[0] + response.body.decode():
            wrong.append((name, told))
    assert not wrong
    assert not [request for request in origin.requests if request.ended]


async def test_a_problem_is_told_as_json_also_for_a_request_that_breaks_late(stage: Stage) -> None:
    """RFC 9457; the body broke, so the head is known and what it accepts."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--max-body-bytes=100")
    for accept, kind in (
        (b"application/problem+json", b"application/problem+json"),
        (b"text/html, Application/Problem+JSON;q=0.5", b"application/problem+json"),
        (b"application/problem+json;q=0", b"text/plain; charset=utf-8"),
        (b"*/*", b"text/plain; charset=utf-8"),
    ):
        client = await stage.client(proxy)
        client.send(
            b"POST / HTTP/1.1\r\nHost: x\r\nAccept: %b\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" % accept
        )
        response = await client.response("POST", within=SOON)
        assert (response.status, response.get(b"content-type")) == (413, kind)
        if kind.endswith(b"json"):
            assert json.loads(response.body)["cause"] == "body-too-large"


async def test_the_answer_to_head_has_no_body_and_the_connection_goes_on(stage: Stage) -> None:
    """RFC 9110 section 9.3.2: also where h2ping answers itself, with 502 or 503."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("HEAD", "/1")
    (await origin.request(1)).reset(Code.INTERNAL_ERROR)
    response = await client.response("HEAD", within=SOON)
    assert (response.status, response.cause, response.closes) == (502, "stream-reset", False)
    client.request("GET", "/2")
    (await origin.request(2)).respond(200, b"two")
    assert (await client.response()).body == b"two"
