"""How the connection of a client ends (RFC 9112 section 9.6).

Theory of operation
-------------------
1. `end`: everything is said; close once the output is written.
2. `linger`: the client may still be sending. Our half is closed first, then what comes is thrown away for a while;
   else a reset could overtake the answer.
3. `cut`: a response that was cut is never ended as if it were whole: no last chunk, and a reset where only the end of
   the connection would mark the end of the body.
4. However it ends, a client has the time that it needs for the output that is left, as long as it takes some of it
   within the idle time (rule 5 of client.py); LINGER_SECONDS count from when all is written.

Nothing of this happens in each request, so it is not compiled.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

from h2ping._fast import client_py

if TYPE_CHECKING:
    from h2ping.downstream.client import Client

LINGER_BYTES = 1 << 20
"""So much is thrown away of what comes after the end."""

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
    client.context.linger(client)
    transport.write_eof()
    octets.regulate()


def on_linger_timeout(client: Client) -> None:
    """It was given enough time to read, unless its socket has not even taken all yet (rule 4)."""
    transport = client.octets.transport
    if transport is None:
        return
    if client.pending_bytes:
        client.watch_progress()
    else:
        transport.abort()


def on_all_written(client: Client) -> None:
    """The socket of a client that lingers has taken the last of the output."""
    client.stop_waiting()
    client.context.linger(client)


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
