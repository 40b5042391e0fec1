"""Flow-control windows of both engines: credit that comes, credit that is given, bodies that wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.frames import INITIAL_WINDOW_SIZE

from bench.micro.test_mux_bench import ENGINES, RESPONSE, Peer

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


@pytest.fixture(params=ENGINES)
def peer(request: pytest.FixtureRequest) -> Peer:
    return Peer(request.param, connection_window=1 << 20)


def test_window_updates(benchmark: BenchmarkFixture, peer: Peer) -> None:
    """100 WINDOW_UPDATE frames of streams that wait for nothing."""
    peer.open(0)
    peer.send_all()
    data = peer.frames.window(1, 1) * 100

    def updates() -> None:
        peer.wire.receive(data)
        peer.wire.take_output()

    benchmark.group = "100 WINDOW_UPDATE frames"
    benchmark(updates)


def test_a_body_that_waits_for_credit(benchmark: BenchmarkFixture, peer: Peer) -> None:
    """64 KB leave in steps of 4 KB, each as its credit comes."""
    peer.wire.receive(peer.frames.settings((INITIAL_WINDOW_SIZE, 0)))
    stream = 1

    def upload() -> None:
        nonlocal stream
        body = peer.open(65_536)
        peer.send_all()
        for _ in range(16):
            peer.wire.receive(peer.frames.window(stream, 4096) + peer.frames.window(0, 4096))
            peer.send_all()
        assert peer.receiver.stream.upload_done
        peer.receiver.stream.reset(8)
        peer.send_all()
        body.release()
        stream += 2

    benchmark.group = "64 KB up in steps of 4 KB"
    benchmark(upload)


def test_credit_for_small_pieces(benchmark: BenchmarkFixture, peer: Peer) -> None:
    """A client takes 1 MB in pieces of 1 KB; the peer gets its window back in few frames."""
    peer.open(0)
    peer.wire.receive(peer.frames.headers(1, *RESPONSE))
    data = peer.frames.data(1, bytes(1024)) * 1024

    def download() -> None:
        peer.wire.receive(data)
        peer.send_all()

    benchmark.group = "1 MB of DATA in 1 KB frames"
    benchmark(download)


@pytest.mark.parametrize("waiting", [1, 1000])
def test_connection_credit_beside_bodies_that_wait(
    benchmark: BenchmarkFixture, peer: Peer, waiting: int
) -> None:
    """Streams without a window of their own cost nothing when the connection's grows."""
    peer.wire.receive(peer.frames.settings((INITIAL_WINDOW_SIZE, 0)))
    bodies: list[Any] = [peer.open(1024) for _ in range(waiting)]
    peer.send_all()
    given = peer.frames.window(0, 1) * 10

    def credit() -> None:
        peer.wire.receive(given)
        peer.send_all()

    benchmark.group = f"10 credits beside {waiting} bodies that wait"
    benchmark(credit)
    assert all(not body.sent for body in bodies)
