"""The door: rule by rule, on a real socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

from h2ping.address import Address
from h2ping.door import Door
from h2ping.server import bind

pytestmark = pytest.mark.sockets

MOST = 16


class Guest(asyncio.Protocol):
    """Tells the door when it comes and goes."""

    inside: list[Guest]
    door: Door
    changed: asyncio.Event
    address: tuple[str, int]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.inside.append(self)
        self.door.entered()
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.inside.remove(self)
        self.door.left()
        self.changed.set()


@pytest.fixture
async def door() -> Door:
    """Open, for MOST guests."""
    Guest.inside = []
    Guest.changed = asyncio.Event()
    Guest.door = door = Door(Guest, MOST, backlog=128)
    sock = socket.create_server(("127.0.0.1", 0))
    Guest.address = sock.getsockname()
    await door.open(sock)
    return door


async def _until_inside(count: int) -> None:
    while len(Guest.inside) != count:
        Guest.changed.clear()
        await asyncio.wait_for(Guest.changed.wait(), 10)


async def _connect(count: int) -> list[socket.socket]:
    """One after the other, as the loop turns: what a door that is shut leaves in the queue connects, too."""
    loop = asyncio.get_running_loop()
    made = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, Guest.address)
        made.append(sock)
        await asyncio.sleep(0)
    return made


async def test_at_most_the_given_number_is_let_in_and_the_rest_waits(door: Door) -> None:
    sockets = await _connect(MOST)
    await _until_inside(MOST)
    waiting = await _connect(5)
    assert len(Guest.inside) == MOST
    for sock in sockets[:1]:
        sock.close()
    await _until_inside(MOST - 1)
    assert door.is_shut, "one has left; it opens when an eighth has"
    sockets[1].close()
    await _until_inside(MOST - 2 + 5)
    door.close()
    for sock in sockets[2:] + waiting:
        sock.close()
    await _until_inside(0)


async def test_who_has_connected_is_let_in_before_the_door_closes(door: Door) -> None:
    """Closing the socket would reset him (rule 4); a door that is shut for want of descriptors has a queue, too."""
    sockets = await _connect(MOST)
    await _until_inside(MOST)
    waiting = await _connect(5)
    await door.last_call()
    await _until_inside(MOST + 5)
    with socket.socket() as sock, pytest.raises(ConnectionError):
        sock.connect(Guest.address)
    for sock in sockets + waiting:
        sock.close()
    await _until_inside(0)


async def test_a_closed_door_refuses(door: Door) -> None:
    door.close()
    for _ in range(3):  # the loop closes its own descriptor in its next turn
        await asyncio.sleep(0)
    with socket.socket() as sock:
        assert sock.connect_ex(Guest.address) != 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
@pytest.mark.parametrize("listen", [":0", "[::]:0"])
def test_a_listener_on_every_address_takes_clients_of_both_families(listen: str) -> None:
    """As Go's does, whatever net.ipv6.bindv6only says."""
    with bind(Address.parse(listen)) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), 5):
                listener.setblocking(True)
                listener.accept()[0].close()
