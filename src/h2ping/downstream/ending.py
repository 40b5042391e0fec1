"""How the connection of a client ends (RFC 9112 section 9.6).

Theory of operation
-------------------
1. `end`: everything is said; close once the output is written. What arrives at a closed socket resets it, and with it
   goes what the kernel has not delivered: while there is such output, it is `linger`.
2. `linger`: the client may still be sending. Our half is closed first, then what comes is thrown away until the client
   ends; else a reset could overtake the answer. It may take LINGER_LOOKS times LINGER_SECONDS, and longer while output
   is being delivered, but nothing may stand still for LINGER_SECONDS.
3. `cut`: a response that was cut is never ended as if it were whole: no last chunk, and a reset where only the end of
   the connection would mark the end of the body.
4. However it ends, a client has the time that it needs for the output that is left, as long as it takes some of it
   within the idle time (rule 5 of client.py); LINGER_SECONDS count from when the kernel has it.

Nothing of this happens in each request, so it is not compiled.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import termios
from typing import TYPE_CHECKING

from h2ping._fast import client_py

if TYPE_CHECKING:
    import asyncio

    from h2ping.downstream.client import Client

LINGER_BYTES = 256 << 20
"""So much is thrown away of what comes after the end: clients read an early answer once their upload is done."""
LINGER_LOOKS = 15
"""Half a minute in all, like nginx' lingering_time."""

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def end(client: Client) -> None:
    """Close once the output is written; a client that never reads it is dropped by the idle deadline."""
    octets = client.octets
    transport = octets.transport
    if transport is None:
        return
    if transport.is_closing():
        octets.mode = client_py.CLOSED
        transport.abort()
        return
    octets.flush()
    if not client.eof and octets.mode != client_py.SINK and undelivered(transport):
        linger(client)
        return
    octets.mode = client_py.CLOSED
    octets.held = None
    client.stop_waiting()
    if transport.get_write_buffer_size():
        client.watch_progress()
    transport.close()


def end_idle(client: Client) -> None:
    """Nothing moved for too long and no exchange is there."""
    transport = client.octets.transport
    if transport is not None and client.octets.mode == client_py.SINK:
        transport.abort()
    else:
        end(client)


def linger(client: Client) -> None:
    """Close our half and throw away what comes (rule 2)."""
    octets = client.octets
    transport = octets.transport
    if transport is None:
        return
    if client.eof or transport.is_closing():
        end(client)
        return
    octets.flush()
    octets.mode = client_py.SINK
    octets.remaining = LINGER_BYTES
    octets.held = None
    octets.body = None
    octets.stalled = False
    client.stop_waiting()
    _watch(client, transport)
    transport.write_eof()
    octets.regulate()


def on_linger_timeout(client: Client) -> None:
    """Nothing moved, or it has moved for long enough (rules 2 and 4)."""
    transport = client.octets.transport
    if transport is None:
        return
    if client.pending_bytes:
        client.watch_progress()
        return
    if client.lingering is not None:
        remaining, output, looks = client.lingering
        delivers = undelivered(transport) < output
        if delivers or (client.octets.remaining < remaining and looks < LINGER_LOOKS):
            _watch(client, transport, looks + 1)
            return
    transport.abort()


def _watch(client: Client, transport: asyncio.Transport, looks: int = 1) -> None:
    client.lingering = client.octets.remaining, undelivered(transport), looks
    client.context.linger(client)


def undelivered(transport: asyncio.Transport) -> int:
    """Bytes that the kernel has and the client's does not; 0 where that cannot be asked."""
    with contextlib.suppress(OSError, AttributeError, TypeError, ValueError):
        count = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(count, sys.byteorder)
    return 0


def is_delivering(client: Client) -> bool:
    """It lingers, and the kernel has output for it."""
    transport = client.octets.transport
    return client.lingering is not None and transport is not None and undelivered(transport) > 0


def on_all_written(client: Client) -> None:
    """The socket of a client that lingers has taken the last of the output."""
    client.stop_waiting()
    transport = client.octets.transport
    if transport is not None:
        _watch(client, transport)


def cut(client: Client) -> None:
    """End it at once; what was written may still arrive (rule 3)."""
    octets = client.octets
    transport = octets.transport
    octets.body = None
    if transport is None:
        return
    octets.flush()
    octets.mode = client_py.CLOSED
    if client.head_sent and octets.framing == client_py.UNTIL_CLOSE:
        # A mere end of the connection would say that the body is whole (RFC 9112 section 8).
        with contextlib.suppress(OSError, AttributeError, TypeError):
            transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE
            )
        transport.abort()
        return
    client.context.linger(client)
    transport.close()


def drop(client: Client) -> None:
    """End it now: what the socket has not taken is forgotten."""
    transport = client.octets.transport
    if transport is not None:
        transport.abort()


def forget(client: Client) -> None:
    """Nobody reads any more; what was written already may still go."""
    octets = client.octets
    octets.body = None
    octets.flush()
    octets.mode = client_py.CLOSED
    client.leave()
    if client.pending_bytes:
        client.watch_progress()
