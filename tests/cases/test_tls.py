"""Trust, ALPN and the end of a TLS connection.

Permanent faults are answered 421 as `h2ping`, which clients do not retry, and 502 as `h2-ping-sidecar`, as
its contract wants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.bell import pace
from tests.support.framing import data
from tests.support.stage import PROGRAMS

if TYPE_CHECKING:
    from tests.support.stage import Stage

PERMANENT = {"h2ping": 421, "h2-ping-sidecar": 502}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("alpn", [["http/1.1"], None], ids=["http/1.1", "no ALPN"])
async def test_an_upstream_that_does_not_choose_h2_gets_no_byte_of_it(
    any_stage: Stage, alpn: list[str] | None, program: str
) -> None:
    """Case alpn-must-be-h2 (RFC 9113 section 3.2)."""
    origin = await any_stage.origin(alpn=alpn)
    proxy = await any_stage.proxy(origin, program=program)
    client = await any_stage.client(proxy)
    response = await client.ask("POST", "/v1", b"judge", within=SOON)
    assert (response.status, response.cause) == (PERMANENT[program], "alpn")
    assert response.body.startswith(program.encode() + b": upstream error:")
    line = await proxy.logged("alpn")
    assert "http/1.1" in line or "no protocol" in line
    await client.silent(ABSENCE)
    assert len(origin.connections) <= 2, "a redial loop"
    assert all(bytes(conn.plain) == b"" for conn in origin.connections)


async def test_bytes_before_the_close_all_arrive(stage: Stage) -> None:
    """Case last-bytes-before-close: the client is slower than the close."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--log-format=json")
    client = await stage.client(proxy, receive_buffer_bytes=16384)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    body = bytes(range(256)) * 4096
    request.head(200, [(b"content-length", b"%d" % len(body))])
    await request.pour(body[:-5], end=False)
    request.conn.fin(data(request.stream, body[-5:], end=True))
    response = await client.head("POST")
    assert response.status == 200
    got = bytearray()
    while len(got) < len(body):
        await pace(0.02)
        piece = await client.reader.read(65536)
        assert piece, f"cut after {len(got)} bytes"
        got += piece
    assert got == body
    assert not proxy.matching('"level": "error"')
    assert not [record for record in proxy.records() if record["cause"]]


FAULTS = {
    "unknown": ("self-signed", "unable to get local issuer", "unknown"),
    "other_name": ("name", "mismatch"),
    "expired": ("expired",),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_certificate_that_does_not_verify_is_refused(
    any_stage: Stage, fault: str, program: str
) -> None:
    """Case wrong-certificate-refused (RFC 9110 section 4.3.4)."""
    origin = await any_stage.origin(cert=getattr(any_stage.certificates, fault))
    proxy = await any_stage.proxy(origin, program=program)
    client = await any_stage.client(proxy)
    response = await client.ask("POST", "/v1", b"judge", within=SOON)
    assert (response.status, response.cause) == (PERMANENT[program], "certificate")
    line = (await proxy.logged("certificate")).lower()
    assert any(words in line for words in FAULTS[fault]), line
    assert all(bytes(conn.plain) == b"" for conn in origin.connections)


async def test_verification_is_turned_off_only_loudly(any_stage: Stage) -> None:
    """Case wrong-certificate-refused: the explicit option."""
    origin = await any_stage.origin(cert=any_stage.certificates.unknown)
    proxy = await any_stage.proxy(origin, "-insecure-skip-verify")
    await proxy.logged("WARNING")
    client = await any_stage.client(proxy)
    client.request("GET", "/")
    (await origin.request(1)).respond(200, b"trusted blindly")
    assert (await client.response()).body == b"trusted blindly"
