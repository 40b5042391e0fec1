"""What only the compiled arena has: blocks carved into slots, views counted per cell, pages given back."""

from __future__ import annotations

import contextlib
import gc
import importlib
import random
import resource
import sys
from typing import Any

import pytest
from tests.support.fake_clock import FakeClock
from tests.support.sanitizers import measures_memory

from h2ping._fast import IMPLEMENTATION
from h2ping.memory import TRIM_DELAY, Memory

if IMPLEMENTATION != "compiled":
    pytest.skip("the compiled modules are switched off", allow_module_level=True)

Arena: Any = importlib.import_module("h2ping._fast.arena").Arena

BLOCK = 16384
PAYLOAD = 16375


def filled(arena: Any, data: bytes, *, kept: bool = True) -> Any:
    body = arena.open(len(data), kept)
    assert body.append(data) == len(data)
    body.finish()
    return body


@pytest.mark.parametrize(
    ("size", "cells"),
    [
        (0, 0),
        (1, 1092),
        (1083, 1092),
        (1084, 2340),
        (2331, 2340),
        (2332, 5461),
        (5452, 5461),
        (5453, BLOCK),
        (PAYLOAD, BLOCK),
        (PAYLOAD + 1, BLOCK + 1092),
        (2 * PAYLOAD + 5000, 2 * BLOCK + 5461),
    ],
)
def test_a_body_of_known_size_takes_the_smallest_cells_that_hold_it(size: int, cells: int) -> None:
    arena = Arena(0)
    body = filled(arena, bytes(size))
    assert (body.reserved, arena.used) == (cells, cells)
    body.release()
    assert (arena.used, arena.live) == (0, 0)


@pytest.mark.parametrize(("size", "cell"), [(0, 1092), (10, 1092), (3000, 5461), (6000, BLOCK)])
def test_a_small_body_of_unknown_size_moves_to_the_smallest_cell_at_its_end(size: int, cell: int) -> None:
    arena = Arena(0)
    body = arena.open(None, True)
    content = bytes(i % 251 for i in range(size))
    assert body.writable() is not None
    body.append(content)
    body.finish()
    assert (body.reserved, arena.used) == (cell, cell)
    assert bytes(body.peek(0, size)) == content


def test_a_body_under_a_view_stays_where_it_is() -> None:
    arena = Arena(0)
    body = arena.open(None, True)
    body.append(b"abc")
    view = body.peek(0, 3)
    body.finish()
    assert body.reserved == BLOCK
    assert bytes(view) == b"abc"


def test_fifteen_small_bodies_share_one_block() -> None:
    arena = Arena(0)
    bodies = [filled(arena, b"x" * 1000) for _ in range(15)]
    assert arena.resident == BLOCK
    bodies.append(filled(arena, b"x" * 1000))
    assert arena.resident == 2 * BLOCK
    for body in bodies:
        body.release()
    assert arena.resident == 2 * BLOCK
    filled(arena, bytes(2 * PAYLOAD)).release()
    assert arena.resident == 2 * BLOCK, "an empty carved block serves as a whole one again"


def test_slots_of_one_block_do_not_overlap() -> None:
    arena = Arena(0)
    bodies = [filled(arena, bytes([i]) * size) for size in (1083, 2331, 5452) for i in range(31)]
    for i, body in enumerate(bodies):
        assert set(bytes(body.peek(0, 10_000))) == {i % 31}
        assert len(body.peek(0, 10_000)) == body.received


def test_freed_blocks_are_taken_again_last_in_first_out() -> None:
    arena = Arena(0)
    for _ in range(100):
        filled(arena, bytes(4 * PAYLOAD)).release()
    assert arena.resident == 4 * BLOCK


def test_a_cell_given_up_under_a_view_stays_as_it_is_until_the_view_goes() -> None:
    arena = Arena(0)
    body = filled(arena, b"a" * PAYLOAD)
    view = body.peek(0, PAYLOAD)
    body.release()
    assert (arena.used, arena.live, arena.views) == (BLOCK, 0, 1)
    other = filled(arena, b"b" * PAYLOAD)
    assert set(bytes(view)) == {ord("a")}
    del view
    assert (arena.used, arena.views) == (BLOCK, 0)
    other.release()
    assert arena.used == 0


def test_a_view_outlives_the_arena() -> None:
    view = filled(Arena(0), b"still here").peek(0, 100)
    assert bytes(view) == b"still here"


def test_a_view_for_sending_cannot_be_written_to() -> None:
    view = filled(Arena(0), b"abc").peek(0, 3)
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_trim_gives_back_the_coldest_pages_in_slices() -> None:
    arena = Arena(0)
    filled(arena, b"x" * (64 * PAYLOAD)).release()
    assert arena.trim(10 * BLOCK + 100) == 10 * BLOCK
    assert arena.resident == 54 * BLOCK
    assert arena.trim(1 << 30) == 54 * BLOCK
    assert (arena.trim(1 << 30), arena.resident) == (0, 0)
    body = filled(arena, b"y" * (64 * PAYLOAD))
    assert b"".join(bytes(body.peek(i * PAYLOAD, PAYLOAD)) for i in range(64)) == b"y" * (64 * PAYLOAD)


def test_what_nobody_needed_since_watch_is_the_least_that_was_spare() -> None:
    arena = Arena(0)
    filled(arena, bytes(64 * PAYLOAD)).release()
    assert (arena.spare, arena.least_spare) == (64 * BLOCK, 0)
    arena.watch()
    assert arena.least_spare == 64 * BLOCK
    filled(arena, bytes(10 * PAYLOAD)).release()
    assert (arena.spare, arena.least_spare) == (64 * BLOCK, 54 * BLOCK)
    arena.trim(50 * BLOCK)
    assert (arena.spare, arena.least_spare) == (14 * BLOCK, 4 * BLOCK)
    arena.trim(1 << 30)
    assert (arena.spare, arena.least_spare) == (0, 0)


def test_pages_of_a_burst_go_back_though_requests_go_on() -> None:
    clock, arena = FakeClock(), Arena(64 << 20)
    memory = Memory(arena, clock, 60.0, keep=False)

    def call(size: int) -> Any:
        body = arena.open(size, True)
        body.append(bytes(size))
        return body

    def end(body: Any) -> None:
        body.release()
        memory.on_released(body)

    for body in [call(1 << 20) for _ in range(32)]:
        end(body)
    assert arena.resident >= 32 << 20
    for _ in range(40):
        one = call(10 * PAYLOAD)
        end(one)
        clock.advance(TRIM_DELAY / 8)
    assert arena.resident == 10 * BLOCK
    clock.advance(2 * TRIM_DELAY)
    assert (arena.resident, clock.pending) == (0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss and /proc are Linux's")
@measures_memory
def test_opening_touches_no_memory() -> None:
    arena = Arena(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = arena.open(8 << 30, True)
    assert body is not None
    assert arena.resident == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 4096, "KiB"


def test_a_body_that_streams_reuses_its_window_while_the_transport_holds_views() -> None:
    arena = Arena(20 * BLOCK)
    body = arena.open(None, False)
    room: list[int] = []
    body.on_room = lambda: room.append(body.received)
    assert body.append(bytes(300 * 1024)) == 17 * PAYLOAD
    assert body.writable() is None
    view = body.peek(0, PAYLOAD)
    body.sent_to(PAYLOAD)
    assert room == [17 * PAYLOAD]
    assert body.append(b"z" * 100) == 100
    assert arena.used == 18 * BLOCK
    del view
    assert arena.used == 17 * BLOCK


def test_a_view_more_than_255_times_is_refused() -> None:
    body = filled(Arena(0), b"abc")
    views = [body.peek(0, 3) for _ in range(255)]
    with pytest.raises(BufferError):
        body.peek(0, 3)
    del views
    assert bytes(body.peek(0, 3)) == b"abc"


def test_bytes_that_are_gone_cannot_be_looked_at() -> None:
    arena = Arena(0)
    body = arena.open(40 * PAYLOAD, False)
    body.append(bytes(2 * PAYLOAD))
    body.sent_to(PAYLOAD)
    with pytest.raises(ValueError, match="gone"):
        body.peek(0, 1)
    body.release()
    with pytest.raises(ValueError, match="gone"):
        body.peek(PAYLOAD, 1)


def test_commit_of_more_than_was_handed_out_is_refused() -> None:
    body = Arena(0).open(10, True)
    assert len(body.writable()) == 10
    with pytest.raises(ValueError, match="room"):
        body.commit(11)
    with pytest.raises(ValueError, match="room"):
        body.commit(-1)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_done_the_books_balance_and_every_byte_is_its_own(seed: int) -> None:
    dice = random.Random(seed)
    arena = Arena(200 * BLOCK)
    bodies: list[tuple[Any, int, int]] = []
    views: list[tuple[memoryview, bytes]] = []
    for _ in range(3000):
        roll = dice.random()
        if roll < 0.3:
            size = dice.choice([0, 1, 900, 1083, 2000, 5000, PAYLOAD, PAYLOAD + 7, 50_000, 400_000])
            kept = dice.random() < 0.5
            chunked = dice.random() < 0.3
            body = arena.open(None if chunked else size, kept)
            if body is not None:
                bodies.append((body, size, dice.randrange(256)))
        elif bodies:
            body, size, tag = dice.choice(bodies)
            if roll < 0.6:
                body.append(bytes([tag]) * min(size - body.received, dice.randrange(1, 60_000)))
                if body.received == size:
                    body.finish()
            elif roll < 0.8 and body.received > body.sent:
                view = body.peek(body.sent, dice.randrange(1, 20_000))
                assert set(view) == {tag}
                views.append((view, bytes([tag]) * len(view)))
                body.sent_to(body.sent + len(view))
            elif roll < 0.85:
                body.drop_copy()
            elif roll < 0.9:
                body.grow()
            elif roll < 0.97:
                body.release()
                bodies.remove((body, size, tag))
        if views and dice.random() < 0.3:
            view, expected = views.pop(dice.randrange(len(views)))
            assert view == expected
        view = memoryview(b"")
        if dice.random() < 0.05:
            arena.trim(dice.randrange(50) * BLOCK)
        if dice.random() < 0.02:
            arena.watch()
        assert 0 <= arena.least_spare <= arena.spare <= arena.resident
        assert sum(body.reserved for body, _, _ in bodies) <= arena.used
        assert arena.live == len(bodies)
    assert arena.views == len(views)
    views.clear()
    assert sum(body.reserved for body, _, _ in bodies) == arena.used
    for body, _, _ in bodies:
        body.release()
    assert (arena.used, arena.live, arena.views) == (0, 0, 0)
    assert arena.trim(1 << 40) <= 1 << 40
    assert arena.resident == 0


def test_a_body_that_the_garbage_collector_finds_goes_back_to_the_arena() -> None:
    """`on_room` closes a cycle between a body and whoever holds it."""
    arena = Arena(1 << 20)
    body = filled(arena, b"x" * 40_000)
    holder = [body]
    body.on_room = holder.__len__
    body = holder = None  # type: ignore[assignment]
    gc.collect()
    assert (arena.live, arena.used) == (0, 0)


def test_the_largest_limit_there_is_maps_no_more_than_a_handle_can_name() -> None:
    with contextlib.suppress(MemoryError):  # so much address space is not to be had everywhere
        Arena(2**62)
