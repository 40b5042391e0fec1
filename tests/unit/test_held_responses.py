"""What a client that does not read keeps of received memory is counted, from its first byte on (both engines)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.client_bench import Bench, Connection
from tests.support.fake_transport import FakeTransport
from tests.support.wires import Ears, Rig

SEGMENT_BYTES = 128 << 10
LENGTH = [(b"content-length", b"1000000")]


class FullSocket(FakeTransport):
    """Keeps what it is given and says at once that it takes no more, as uvloop's does with a limit of 0."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.client = connection.client
        self.protocol = connection.protocol
        self.kept: list[Any] = []

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, parts: list[Any]) -> None:
        self.kept += parts
        self.buffered += sum(len(part) for part in parts)
        if not self.client.write_paused:
            self.protocol.pause_writing()


class Forwarder(Ears):
    """A receiver that does with each piece what Exchange.on_data does."""

    client: Any

    def on_data(self, data: Any) -> None:
        if self.client.write_paused:
            data = bytes(data)
            self.client.exchange.held += len(data)
        self.client.send_data(data)


def memory_of(pieces: list[Any], engine: str) -> int:
    """Own bytes, and for all slices together the segment that they were cut from."""
    own = sum(len(piece) for piece in pieces if isinstance(piece, (bytes, bytearray)))
    slices = [piece for piece in pieces if not isinstance(piece, (bytes, bytearray))]
    assert not slices or engine == "c"
    return own + (SEGMENT_BYTES if slices else 0)


@pytest.mark.parametrize("sizes", [[100], [3000], [16_000], [16_000, 16_000, 100], [16_000] * 6])
def test_the_first_pieces_of_a_slow_client_count_with_the_memory_that_they_keep(
    engine: str, sizes: list[int]
) -> None:
    bench, rig = Bench(engine), Rig(engine).start()
    connection = bench.connect()
    assert connection.transport.limit == 0
    connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    socket = FullSocket(connection)
    connection.protocol.transport = socket
    bench.exchange.begin(fields=LENGTH)
    forwarder = Forwarder(rig)
    forwarder.client = connection.client
    forwarder.stream = rig.wire.open(
        [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/")], None, forwarder
    )
    rig.serve(rig.peer.headers(1, (":status", "200")), *(rig.peer.data(1, bytes(size)) for size in sizes))
    bench.turn()
    assert sum(sizes) <= memory_of(socket.kept, engine) <= bench.exchange.held


def test_a_client_that_reads_again_is_no_longer_counted(engine: str) -> None:
    bench = Bench(engine)
    connection = bench.connect()
    connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    connection.protocol.transport = FullSocket(connection)
    bench.exchange.respond(bytes(50_000), fields=LENGTH)
    bench.turn()
    assert bench.exchange.held >= 50_000
    connection.protocol.resume_writing()
    assert bench.exchange.held == 0
