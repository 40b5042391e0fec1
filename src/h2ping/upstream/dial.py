"""One attempt to reach the upstream: resolve, connect, TLS, ALPN, first SETTINGS, under one deadline."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import TYPE_CHECKING, Any

from h2ping.address import Address
from h2ping.errors import (
    ALPN,
    CERTIFICATE,
    CONNECT_FAILED,
    CONNECT_TIMEOUT,
    DNS_FAILED,
    TLS_FAILED,
    ConfigError,
    Processed,
    UpstreamError,
)
from h2ping.upstream.last_words import LastWords
from h2ping.upstream.reach import NotReachedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping.config import Settings
    from h2ping.upstream.connection import Connection
    from h2ping.upstream.reach import Reach


def tls_context(settings: Settings) -> ssl.SSLContext:
    """The context of one upstream: TLS 1.2 or later, ALPN h2 only (RFC 9113 sections 3.2 and 9.2).

    Trust comes from `-ca-file` or else from OpenSSL's defaults, which SSL_CERT_FILE and SSL_CERT_DIR replace.
    Raises ConfigError when the file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        reason = (
            error.strerror if isinstance(error, OSError) and error.strerror else "it holds no PEM certificate"
        )
        raise ConfigError(f"-ca-file {settings.ca_file}", reason) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.options |= getattr(ssl, "OP_NO_RENEGOTIATION", 0)  # RFC 9113 section 9.2.1; not in every LibreSSL
    if settings.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


async def dial(
    settings: Settings, context: ssl.SSLContext, reach: Reach, make_connection: Callable[[], Connection]
) -> Connection:
    """A connection that has received the peer's SETTINGS. Raises UpstreamError, always NEVER_SENT."""
    connection: Connection | None = None
    address: Any = None

    async def attempt() -> Connection:
        nonlocal address, connection
        loop: Any = asyncio.get_running_loop()  # uvloop's; asyncio's has no shutdown timeout before 3.11
        sock, address = await reach.connect(settings.upstream.host, settings.upstream.port)
        transport: Any = None
        try:
            transport, mute = await loop.create_connection(_Mute, sock=sock)
            mute.check(transport)
            connection = make_connection()
            secure = await loop.start_tls(
                transport,
                connection,
                context,
                # RFC 6066 section 3: without the dot that makes a name absolute.
                server_hostname=(settings.server_name or settings.upstream.host).rstrip("."),
                # The deadline below is the only one; uvloop's own would give another error for the same fact.
                ssl_handshake_timeout=settings.connect_timeout + 60,
                ssl_shutdown_timeout=5,
            )
            if transport.is_closing():
                raise ConnectionResetError
        except BaseException:
            if transport is not None:
                transport.abort()
            # The loop closes the descriptor, and does not tell the socket when that was lost very early. Closed once
            # more by the socket, the number may be another connection's by then, and libuv aborts the process.
            sock.detach()
            raise
        transport.set_protocol(LastWords(transport.get_protocol(), sock))
        connection.connection_made(secure)  # before its first byte: the loop hands those out in a later turn
        await connection.settled
        return connection

    reached = False
    try:
        made = await asyncio.wait_for(attempt(), settings.connect_timeout)
        reached = made.is_open  # else it said GOAWAY right behind its SETTINGS, or was lost
        made.address = address
        return made
    except UpstreamError:
        raise
    except (asyncio.TimeoutError, TimeoutError) as error:
        if connection is not None:
            connection.abort()
        if isinstance(error, OSError) and error.errno:  # ETIMEDOUT of the kernel, not our deadline
            raise explain(error, address) from error
        raise _never_sent(CONNECT_TIMEOUT, f"nothing within {settings.connect_timeout:g}s") from error
    except UnicodeError as error:  # a label that no name can have
        raise _never_sent(DNS_FAILED, "not a host name") from error
    except NotReachedError as failure:
        raise explain(failure.error, failure.address) from failure
    except (OSError, ssl.SSLError) as error:
        raise explain(error, address) from error
    finally:
        if address is not None:
            (reach.on_reached if reached else reach.on_failed)(address)


class _Mute(asyncio.Protocol):
    """The TCP connection before TLS takes it over, in which a client speaks first."""

    def __init__(self) -> None:
        self._heard = False

    def data_received(self, data: bytes) -> None:
        self._heard = True

    def check(self, transport: asyncio.BaseTransport) -> None:
        """Raises UpstreamError or ConnectionResetError where no handshake can follow."""
        if self._heard:
            raise _never_sent(TLS_FAILED, "the peer speaks before the handshake, and not TLS")
        if transport.is_closing():
            raise ConnectionResetError


def explain(error: BaseException, address: Any = None) -> UpstreamError:
    """The UpstreamError that a failed attempt's exception stands for, at that socket address where it is known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _never_sent(CERTIFICATE, error.verify_message or "verification failed")
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "handshake failed").lower().replace("_", " ")
        if "no application protocol" in reason:
            return _never_sent(
                ALPN, "the peer refused the handshake: no application protocol in common with h2"
            )
        return _never_sent(TLS_FAILED, reason)
    if isinstance(error, ssl.CertificateError):
        return _never_sent(CERTIFICATE, "the name does not match")
    if isinstance(error, socket.gaierror):
        return _never_sent(DNS_FAILED, error.strerror or "no address")
    if isinstance(error, ConnectionRefusedError):
        what = "connection refused"
    elif isinstance(error, ConnectionResetError):
        what = "connection reset by the peer"
    else:  # the loops put words and addresses of their own into strerror
        number = getattr(error, "errno", None)
        what = os.strerror(number) if number else getattr(error, "strerror", None) or type(error).__name__
    where = f" ({Address(*address[:2])})" if address is not None else ""
    return _never_sent(CONNECT_FAILED, what + where)


def wrong_protocol(chosen: str | None) -> UpstreamError:
    """The peer's ALPN choice was not h2."""
    what = f"the peer chose {chosen}" if chosen else "the peer chose no protocol"
    return _never_sent(ALPN, f"{what}, h2ping offered h2")


def _never_sent(cause: Any, detail: str) -> UpstreamError:
    return UpstreamError(cause, detail, processed=Processed.NEVER_SENT)
