"""Trust, ALPN and the end of a TLS connection.

Permanent faults are answered 421 as `h2ping`, which clients do not retry, and 502 as `h2-ping-sidecar`, as
its contract wants.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.bell import PATIENCE, pace
from tests.support.frames import SETTINGS, frame
from tests.support.framing import data
from tests.support.names import ABSOLUTE, resolver
from tests.support.stage import PROGRAMS

if TYPE_CHECKING:
    from pathlib import Path

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


async def test_a_host_name_with_a_trailing_dot_is_asked_for_and_checked_without_it(
    any_stage: Stage, tmp_path: Path
) -> None:
    """RFC 6066 section 3: the name in SNI has no trailing dot, and no certificate has one."""
    origin = await any_stage.origin()
    proxy = await any_stage.proxy(f"https://{ABSOLUTE}:{origin.port}", env=resolver(tmp_path))
    client = await any_stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    assert request.conn.sni == "localhost"
    request.respond(200)
    assert (await client.response()).status == 200


async def test_a_certificate_for_another_name_is_refused_for_a_name_with_a_trailing_dot(
    any_stage: Stage, tmp_path: Path
) -> None:
    """RFC 9110 section 4.3.4."""
    origin = await any_stage.origin(cert=any_stage.certificates.other_name)
    proxy = await any_stage.proxy(f"https://{ABSOLUTE}:{origin.port}", env=resolver(tmp_path))
    response = await any_stage.ask(proxy)
    assert response.cause == "certificate"


async def test_a_server_name_with_a_trailing_dot_is_asked_for_without_it(any_stage: Stage) -> None:
    """RFC 6066 section 3."""
    origin = await any_stage.origin(cert=any_stage.certificates.judge)
    proxy = await any_stage.proxy(origin, "-server-name=judge.example.")
    client = await any_stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    assert request.conn.sni == "judge.example"
    request.respond(200)
    assert (await client.response()).status == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="Python's ssl cannot ask for a renegotiation")
async def test_an_upstream_that_renegotiates_loses_the_connection(any_stage: Stage) -> None:
    """RFC 9113 section 9.2.1: a HelloRequest of TLS 1.2 is refused, and the request ends at once."""
    chain, key = any_stage.certificates.good
    server = await asyncio.create_subprocess_exec(
        "openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", chain, "-key", key, "-alpn", "h2",
        "-tls1_2", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        said = b""
        while (found := re.search(rb"ACCEPT 127\.0\.0\.1:(\d+)", said)) is None:
            piece = await server.stdout.read(4096)
            assert piece, said
            said += piece
        proxy = await any_stage.proxy(f"https://localhost:{int(found[1])}")
        client = await any_stage.client(proxy)
        client.request("POST", "/", b"judge")
        while b"PRI * HTTP/2.0" not in said:
            piece = await server.stdout.read(4096)
            assert piece, said
            said += piece
        server.stdin.write(frame(SETTINGS))
        while b"judge" not in said:
            said += await server.stdout.read(4096)
        server.stdin.write(b"r\n")
        response = await client.response("POST", within=SOON)
        assert (response.status, response.cause) == (502, "connection-lost")
        while b"no renegotiation" not in said:
            piece = await asyncio.wait_for(server.stdout.read(4096), PATIENCE)
            assert piece, said
            said += piece
    finally:
        server.kill()
        await server.communicate()


async def test_verification_is_turned_off_only_loudly(any_stage: Stage) -> None:
    """Case wrong-certificate-refused: the explicit option."""
    origin = await any_stage.origin(cert=any_stage.certificates.unknown)
    proxy = await any_stage.proxy(origin, "-insecure-skip-verify")
    await proxy.logged("WARNING")
    client = await any_stage.client(proxy)
    client.request("GET", "/")
    (await origin.request(1)).respond(200, b"trusted blindly")
    assert (await client.response()).body == b"trusted blindly"
