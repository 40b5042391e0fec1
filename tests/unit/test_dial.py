"""One attempt to reach the upstream: what each failure is called."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import ssl
import struct
from typing import TYPE_CHECKING, Any

import pytest
import trustme
import uvloop
from tests.support import framing
from tests.support.fake_clock import FakeClock

from h2ping import config
from h2ping.address import Upstream
from h2ping.errors import ConfigError, Processed, UpstreamError
from h2ping.upstream import dial as dial_module
from h2ping.upstream.connection import Connection
from h2ping.upstream.dial import dial, explain, tls_context, wrong_protocol
from h2ping.upstream.keepalive import Cadence
from h2ping.upstream.reach import Reach
from h2ping.upstream.wire import WireLimits

if TYPE_CHECKING:
    from pathlib import Path


def with_attributes(error: Exception, **attributes: Any) -> Exception:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "cause", "detail"),
    [
        (
            with_attributes(ssl.SSLCertVerificationError(1, "x"), verify_message="certificate has expired"),
            "certificate", "certificate has expired",
        ),
        (with_attributes(ssl.SSLError(1, "x"), reason="WRONG_VERSION_NUMBER"), "tls-failed", "wrong version number"),
        (with_attributes(ssl.SSLError(1, "x"), reason="TLSV1_ALERT_NO_APPLICATION_PROTOCOL"), "alpn", "h2"),
        (socket.gaierror(-2, "Name or service not known"), "dns-failed", "Name or service not known"),
        (ConnectionRefusedError(111, "x"), "connect-failed", "connection refused"),
        (ConnectionResetError(), "connect-failed", "connection reset by the peer"),
        (OSError(errno.ENETUNREACH, "x"), "connect-failed", "Network is unreachable"),
        (OSError(), "connect-failed", "OSError"),
    ],
    ids=["certificate", "tls", "no-application-protocol", "dns", "refused", "reset", "unreachable", "bare"],
)  # fmt: skip
def test_a_failed_attempt_is_called_by_its_cause(error: Exception, cause: str, detail: str) -> None:
    explained = explain(error)
    assert (explained.cause.token, explained.processed) == (cause, Processed.NEVER_SENT)
    assert detail in explained.detail


def test_the_protocol_that_the_peer_chose_is_named() -> None:
    assert "chose http/1.1" in wrong_protocol("http/1.1").detail
    assert "chose no protocol" in wrong_protocol(None).detail


def test_a_ca_file_that_is_no_certificate_is_a_setting_that_cannot_work(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no PEM")
    settings = config.Settings(upstream=Upstream.parse("https://h"), ca_file=str(file))
    with pytest.raises(ConfigError, match="ca-file"):
        tls_context(settings)


class Owner:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


async def attempt(port: int, ca_file: str = "", **settings: str) -> Connection:
    parsed = config.parse(
        {"upstream": f"https://localhost:{port}", "ca_file": ca_file, "connect_timeout": "300ms", **settings}
    )
    return await dial(
        parsed,
        tls_context(parsed),
        Reach(),
        lambda: Connection(1, Owner(), FakeClock(), Cadence(None, 340.0), WireLimits()),
    )


@pytest.mark.sockets
def test_a_connection_that_is_reset_at_once_closes_its_descriptor_once() -> None:
    """A second close would hit whatever has the number by then; libuv aborts the process when it is one of its own."""

    async def run() -> list[socket.socket]:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)

        def accept(turns: int) -> None:
            peer, _ = listener.accept()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset(peer, turns)

        def reset(peer: socket.socket, turns: int) -> None:
            if turns:
                loop.call_soon(reset, peer, turns - 1)
            else:
                peer.close()

        others: list[socket.socket] = []
        for number in range(100):
            loop.add_reader(listener, accept, number % 10)
            with pytest.raises(UpstreamError):
                await attempt(listener.getsockname()[1], connect_timeout="10s")
            others += socket.socketpair()
        loop.remove_reader(listener)
        listener.close()
        return others

    others = uvloop.run(run())
    gc.collect()
    for other in others:
        os.fstat(other.fileno())
        other.close()


@pytest.mark.sockets
async def test_a_peer_that_never_answers_the_handshake_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(UpstreamError) as caught:
            await attempt(silent.getsockname()[1])
    assert (caught.value.cause.token, caught.value.cause.status) == ("connect-timeout", 504)


@pytest.mark.sockets
async def test_a_refused_connection_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(UpstreamError) as caught:
        await attempt(port)
    assert caught.value.cause.token == "connect-failed"
    assert caught.value.detail == f"connection refused (127.0.0.1:{port})"


def test_an_address_of_ipv6_is_told_as_in_a_url() -> None:
    explained = explain(OSError(errno.ENETUNREACH, "Connect call failed"), ("::1", 443, 0, 0))
    assert explained.detail == "Network is unreachable ([::1]:443)"


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


async def serve_tls(authority: trustme.CA, alpn: list[str], name: str = "localhost") -> asyncio.Server:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if alpn:
        context.set_alpn_protocols(alpn)

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    return await asyncio.start_server(hold, "127.0.0.1", 0, ssl=context)


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("alpn", "name", "trusted", "cause"),
    [
        (["http/1.1"], "localhost", True, "alpn"),
        ([], "localhost", True, "alpn"),
        (["h2"], "other.example", True, "certificate"),
        (["h2"], "localhost", False, "certificate"),
        (["h2"], "localhost", True, "connect-timeout"),
    ],
    ids=["http/1.1", "no-alpn", "wrong-name", "unknown-authority", "no-settings"],
)
async def test_a_peer_that_is_not_to_be_trusted_or_understood(
    authority: trustme.CA, tmp_path: Path, alpn: list[str], name: str, trusted: bool, cause: str
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = await serve_tls(authority, alpn, name)
    port = server.sockets[0].getsockname()[1]
    patience = "300ms" if cause == "connect-timeout" else "10s"
    with pytest.raises(UpstreamError) as caught:
        await attempt(port, str(tmp_path / "ca.pem") if trusted else "", connect_timeout=patience)
    assert caught.value.cause.token == cause
    assert caught.value.processed is Processed.NEVER_SENT
    server.close()
    await server.wait_closed()


class Ears:
    """A stream's receiver that remembers what it was called with last."""

    def __init__(self) -> None:
        self.last: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        return lambda *details: setattr(self, "last", (name, *details))


def be_reset(listener: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """The peer's end of one connection: settled, and to be reset when it is closed."""
    sock, _ = listener.accept()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer = context.wrap_socket(sock, server_side=True)
    peer.sendall(framing.settings({}))
    return peer


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("words", "heard"),
    [
        (framing.goaway(0), ("goaway-refused", Processed.REFUSED)),
        (framing.goaway(1), ("connection-lost", Processed.MAYBE)),
        (b"", ("connection-lost", Processed.MAYBE)),
    ],
    ids=["refused", "maybe processed", "nothing"],
)
def test_what_the_peer_said_before_its_reset_is_heard_though_our_write_fails_first(
    authority: trustme.CA, tmp_path: Path, words: bytes, heard: tuple[str, Processed]
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.set_alpn_protocols(["h2"])
    ears = Ears()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            accepted = loop.run_in_executor(None, be_reset, listener, context)
            connection = await attempt(
                listener.getsockname()[1], str(tmp_path / "ca.pem"), connect_timeout="10s"
            )
            peer = await accepted
        fields = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"h"), (b":path", b"/")]
        connection.open(fields, None, ears)
        await asyncio.sleep(0)

        def end() -> None:
            if words:
                peer.sendall(words)
            peer.close()

        # In one turn of the loop with the write that follows: it cannot look at the socket in between.
        loop.call_soon(end)
        connection.open(fields, None, Ears())
        for _ in range(9):
            await asyncio.sleep(0)
        assert connection.lost

    uvloop.run(run())
    told, error = ears.last
    assert told == "on_failed"
    assert (error.cause.token, error.processed) == heard


def test_verification_is_on_unless_it_was_switched_off() -> None:
    on = config.parse({"upstream": "https://h"})
    off = config.parse({"upstream": "https://h", "insecure_skip_verify": "true"})
    assert tls_context(on).verify_mode is ssl.CERT_REQUIRED
    assert dial_module.tls_context(on).check_hostname
    assert tls_context(off).verify_mode is ssl.CERT_NONE
