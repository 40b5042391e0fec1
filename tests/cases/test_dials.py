"""An upstream that many ask at once and that is there only in part: dials, and who waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Code, Setting, goaway, settings
from tests.support.scripted_origin import context_for

if TYPE_CHECKING:
    from tests.support.scripted_origin import Conn, Request
    from tests.support.stage import Stage

MOST_DIALS = 10
"""Eight in the four seconds that a request waits, and a few for chance."""


@pytest.mark.parametrize(
    ("opening", "cause"),
    [
        (settings({}) + goaway(0), "goaway-refused"),
        (settings({}) + goaway(2**31 - 1, Code.ENHANCE_YOUR_CALM), "goaway-refused"),
        (goaway(0), "protocol-error"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol-error"),
    ],
    ids=["SETTINGS, GOAWAY", "SETTINGS, GOAWAY(2^31-1)", "GOAWAY", "HTTP/1.1"],
)
async def test_an_upstream_that_takes_nothing_on_any_connection_is_not_hammered(
    stage: Stage, opening: bytes, cause: str
) -> None:
    """RFC 9113 sections 3.4 and 6.8: what is draining says so on each new connection."""
    origin = await stage.origin(opening=opening)
    origin.tolerated = True
    proxy = await stage.proxy(origin, "--log-format=json")
    response = await stage.ask(proxy, "POST", "/", b"x")
    assert (response.status, response.cause) == (502, cause)
    assert len(origin.connections) <= MOST_DIALS
    assert (await proxy.record(cause=cause))["processed"] == "never-sent"
    if b"HTTP/1" in opening:
        assert b"an answer in HTTP/1" in response.body


async def test_a_burst_while_the_upstream_restarts_is_served_when_it_is_back(any_stage: Stage) -> None:
    """Many dials that fail at the same moment are one failure, not eight."""

    async def answer(request: Request) -> None:
        request.respond(200)

    origin = await any_stage.origin(answer, listen=False)
    proxy = await any_stage.proxy(origin)
    clients = [await any_stage.client(proxy) for _ in range(150)]
    for client in clients:
        client.request("POST", "/", b"x")
    await proxy.logged("connect-failed")
    await origin.start()
    assert {(await client.response("POST")).status for client in clients} == {200}
    assert len(origin.connections) <= MOST_DIALS + 2


def _every_other_fails(stage: Stage, how: str, conn: Conn) -> None:
    if conn.number % 2 == 0:
        return
    if how == "RST":
        conn.rst()
    else:
        conn.use(context_for(stage.certificates.other_name, ["h2"]))


@pytest.mark.parametrize("how", ["RST", "certificate"])
async def test_one_bad_host_of_two_fails_no_request(any_stage: Stage, how: str) -> None:
    """Behind one name stand good and bad: as long as one connection works there is hope for all who wait."""

    async def answer(request: Request) -> None:
        request.respond(200)

    origin = await any_stage.origin(answer, settings={Setting.MAX_CONCURRENT_STREAMS: 4})
    origin.on_connect = lambda conn: _every_other_fails(any_stage, how, conn)
    proxy = await any_stage.proxy(origin)
    clients = [await any_stage.client(proxy) for _ in range(60)]
    for client in clients:
        client.request("POST", "/", b"x")
    assert {(await client.response("POST")).status for client in clients} == {200}


async def test_streams_are_waited_for_where_none_is_allowed_yet(any_stage: Stage) -> None:
    """MAX_CONCURRENT_STREAMS of 0 (RFC 9113 section 6.5.2) with all of `-max-conns` at hand: one connection."""
    origin = await any_stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 0})
    proxy = await any_stage.proxy(origin)
    client = await any_stage.client(proxy)
    client.request("POST", "/", b"x")
    await origin.no_request(0, ABSENCE)
    (conn,) = origin.connections
    conn.send(settings({Setting.MAX_CONCURRENT_STREAMS: 1}))
    (await origin.request(1, within=SOON)).respond(200, b"ok")
    assert (await client.response("POST")).body == b"ok"


async def test_the_connection_after_the_last_request_is_there_before_it(any_stage: Stage) -> None:
    """`-max-requests-per-conn`: nobody waits for a handshake because a count was reached."""
    origin = await any_stage.origin()
    proxy = await any_stage.proxy(origin, "--max-requests-per-conn=10")
    held = await any_stage.client(proxy)
    held.request("POST", "/held", b"x")
    first = await origin.request(1)
    client = await any_stage.client(proxy)
    for number in range(2, 10):
        client.request("POST", "/", b"x")
        request = await origin.request(number)
        assert request.conn is first.conn or number == 9  # the count has jitter: by 9 it may be reached
        request.respond(200)
        assert (await client.response("POST")).status == 200
    await origin.bell.until(lambda: len(origin.connections) == 2, "the replacement", SOON)
    first.respond(200, b"held")
    assert (await held.response("POST")).body == b"held"
