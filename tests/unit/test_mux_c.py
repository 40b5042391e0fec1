"""What only the compiled engine does: bodies leave from their cells, received bytes are shared, not copied."""

from __future__ import annotations

import gc
import importlib
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.frames import INITIAL_WINDOW_SIZE
from tests.support.wires import Ears, Rig

from h2ping._fast import IMPLEMENTATION

if TYPE_CHECKING:
    from h2ping.upstream.wire import WireLimits

if IMPLEMENTATION != "compiled":
    pytest.skip("the compiled modules are switched off", allow_module_level=True)

Slice: Any = importlib.import_module("h2ping._fast.segment").Slice
PAYLOAD = 16_375


@pytest.fixture
def rig() -> Rig:
    return wide_rig()


def wide_rig(limits: WireLimits | None = None) -> Rig:
    rig = Rig("c", limits, (INITIAL_WINDOW_SIZE, 1 << 20)).start()
    rig.serve(rig.peer.window(0, 1 << 30))
    return rig


class Hoarder(Ears):
    """Keeps what `on_data` brings as it came."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self.pieces: list[Any] = []
        self.credits = True

    def on_data(self, data: Any) -> None:
        self.pieces.append(data)
        if self.credits:
            self.stream.credit(len(data))


def hoarder(rig: Rig, *, prompt: bool = True) -> Hoarder:
    ears = Hoarder(rig)
    ears.credits = prompt
    ears.stream = rig.wire.open([(b":method", b"GET")], None, ears)
    rig.serve(rig.peer.response(ears.stream.id))
    return ears


# --- bodies ---------------------------------------------------------------------------------------------------


def test_a_block_leaves_as_one_buffer_with_its_header_in_front(rig: Rig) -> None:
    """One TLS record per frame: header and payload apart would be two."""
    rig.open(rig.body(b"x" * (3 * PAYLOAD)))
    output = rig.wire.take_output()
    assert [type(piece) for piece in output] == [bytes, memoryview, memoryview, memoryview]
    assert [len(piece) for piece in output[1:]] == [16_384] * 3
    assert rig.wire.copied_blocks == 0
    assert rig.arena.views == 3
    del output
    assert rig.arena.views == 0


def test_a_small_body_shares_a_record_with_its_head(rig: Rig) -> None:
    rig.open(rig.body(b"x" * 1000))
    assert [type(piece) for piece in rig.wire.take_output()] == [bytes]
    assert rig.wire.copied_blocks == 0


def test_a_second_attempt_copies_a_block_that_the_first_transport_still_holds(rig: Rig) -> None:
    """Stamping it would corrupt what the other transport has yet to write."""
    content = bytes(i % 251 for i in range(PAYLOAD))
    body = rig.body(content)
    rig.open(body)
    held = rig.wire.take_output()
    before = bytes(held[1])
    again = wide_rig()
    again.wire.open([(b":method", b"GET")], None, Ears(again))
    ears = Ears(again)
    ears.stream = again.wire.open([(b":method", b"POST")], body, ears)
    output = again.wire.take_output()
    assert again.wire.copied_blocks == 1
    assert bytes(held[1]) == before
    assert b"".join(output).endswith(content)
    del held
    ears.stream.reset(8)
    ears.stream = again.wire.open([(b":method", b"POST")], body, ears)
    again.wire.take_output()
    assert again.wire.copied_blocks == 1


def test_the_rest_of_a_block_that_a_window_cut_is_copied(rig: Rig) -> None:
    """The nine bytes before it are payload of the body, which may have to be sent again."""
    content = bytes(i % 251 for i in range(PAYLOAD))
    narrow = Rig("c", None, (INITIAL_WINDOW_SIZE, 10_000)).start()
    body = narrow.body(content)
    narrow.open(body)
    assert narrow.uploaded() == {1: 10_000}
    narrow.serve(narrow.peer.window(1, 1 << 20))
    assert narrow.uploaded() == {1: 6375}
    assert narrow.wire.copied_blocks == 1
    assert bytes(body.peek(0, PAYLOAD)) == content


# --- responses --------------------------------------------------------------------------------------------------


def test_received_data_is_shared_not_copied(rig: Rig) -> None:
    ears = hoarder(rig)
    rig.serve(rig.peer.data(1, b"a" * 10_000), rig.peer.data(1, b"b" * 10_000))
    assert [type(piece) for piece in ears.pieces] == [Slice, Slice]
    assert [bytes(piece) for piece in ears.pieces] == [b"a" * 10_000, b"b" * 10_000]
    assert memoryview(ears.pieces[0]).readonly


def test_slices_keep_their_bytes_whatever_arrives_later(rig: Rig) -> None:
    ears = hoarder(rig)
    for i in range(200):
        rig.serve(rig.peer.data(1, bytes([i]) * 16_000))
    assert sum(len(piece) for piece in ears.pieces) == 200 * 16_000
    at = 0
    for piece in ears.pieces:
        assert set(bytes(piece)) <= {at // 16_000, (at + len(piece) - 1) // 16_000}
        at += len(piece)


def test_small_pieces_are_copies_so_that_they_hold_no_segment(rig: Rig) -> None:
    ears = hoarder(rig)
    rig.serve(rig.peer.data(1, b"data: {}\n\n"))
    assert [type(piece) for piece in ears.pieces] == [bytes]


def test_a_receiver_that_does_not_keep_up_gets_copies(rig: Rig) -> None:
    """Else one slow client would hold the segments that it shares with fast ones."""
    ears = hoarder(rig, prompt=False)
    for _ in range(4):
        rig.serve(rig.peer.data(1, bytes(16_000)))
    assert [type(piece) for piece in ears.pieces] == [Slice, bytes, bytes, bytes]
    ears.stream.credit(4 * 16_000)
    rig.serve(rig.peer.data(1, bytes(16_000)))
    assert type(ears.pieces[-1]) is Slice


def test_writing_past_the_receive_buffer_is_refused(rig: Rig) -> None:
    room = len(rig.wire.receive_buffer())
    with pytest.raises(ValueError, match="room"):
        rig.wire.received(room + 1)


def test_bytes_written_to_the_receive_buffer_are_read_from_it(rig: Rig) -> None:
    ears = hoarder(rig)
    data = rig.peer.data(1, b"x" * 5000)
    rig.wire.receive_buffer()[: len(data)] = data
    rig.wire.received(len(data))
    assert [bytes(piece) for piece in ears.pieces] == [b"x" * 5000]


# --- cost -----------------------------------------------------------------------------------------------------


def test_a_request_in_flight_costs_little_memory(rig: Rig) -> None:
    """Budget: 4 KB for the whole of a request; this is the Wire's part of it, h2's state machine included."""
    count = 2000
    ears = Ears(rig)
    fields = [(b":method", b"GET"), (b":path", b"/")]
    for _ in range(100):
        rig.wire.open(fields, None, ears)
    rig.wire.take_output()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        streams = [rig.wire.open(fields, None, ears) for _ in range(count)]
        rig.wire.take_output()
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(streams) == count
    assert used / count < 700


def test_nothing_is_left_of_streams_that_are_over(rig: Rig) -> None:
    """An hour of requests on one connection leaves no trace in it."""

    def exchange(times: int) -> None:
        for _ in range(times):
            ears = rig.open(rig.body(b"x" * 100))
            rig.wire.take_output()
            rig.serve(rig.peer.response(ears.stream.id), rig.peer.data(ears.stream.id, b"ok", end=True))
            ears.body.release()
            rig.log.clear()

    exchange(200)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        exchange(500)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    assert (rig.wire.open_streams, rig.arena.live, rig.arena.used) == (0, 0, 0)


@pytest.mark.parametrize("at_end", [False, True])
def test_streams_that_end_while_the_peer_opens_no_window_are_forgotten(at_end: bool) -> None:
    """RFC 9113 section 6.9: a peer may keep its window shut for as long as it likes."""
    rig = Rig("c", None, (INITIAL_WINDOW_SIZE, 1 << 20)).start()
    rig.open(rig.body(b"x" * 100_000))
    rig.sent()
    rig.wire.hold_data(at_end)
    for _ in range(5000):
        stream = rig.open(rig.body(b"" if at_end else b"x")).stream
        rig.wire.take_output()
        stream.reset(8)
        rig.log.clear()
    del stream
    last = rig.open(rig.body(b"last"))
    kind = type(last.stream)
    assert sum(type(one) is kind for one in gc.get_objects()) < 1100
    rig.wire.hold_data(False)
    rig.serve(rig.peer.window(0, 1 << 20))
    assert rig.uploaded() == {1: 100_000 - 65_535, last.stream.id: 4}
