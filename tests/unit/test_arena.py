"""Bodies in memory: both twins of the arena keep the same books and give back the same bytes.

What only the compiled one has is in test_arena_c.py.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h2ping._fast import IMPLEMENTATION

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 16_384
PAYLOAD = 16_375
WINDOW = 17 * BLOCK
"""Cells for 256 KiB."""


def make(twin: str, limit: int = 0) -> Any:
    name = {"py": "h2ping._fast.arena_py", "c": "h2ping._fast.arena"}[twin]
    return importlib.import_module(name).Arena(limit)


@pytest.fixture
def new(engine: str) -> Callable[..., Any]:
    return lambda limit=0: make(engine, limit)


def content(body: Any) -> bytes:
    pieces = []
    at = body.sent if not body.kept else 0
    while at < body.received:
        piece = body.peek(at, 1 << 20)
        pieces.append(bytes(piece))
        at += len(piece)
    return b"".join(pieces)


@pytest.mark.parametrize(
    ("size", "cells"),
    [
        (0, 0),
        (1, 1092),
        (1083, 1092),
        (1084, 2340),
        (2332, 5461),
        (5453, BLOCK),
        (PAYLOAD, BLOCK),
        (PAYLOAD + 1, BLOCK + 1092),
        (1 << 20, 64 * BLOCK + 1092),
    ],
)
def test_a_kept_body_reserves_the_cells_of_all_of_it(new: Any, size: int, cells: int) -> None:
    arena = new()
    body = arena.open(size, True)
    assert (body.reserved, arena.used, arena.live) == (cells, cells, 1)
    assert body.append(b"x" * size + b"more") == size
    body.finish()
    assert (arena.used, len(content(body))) == (cells, size)
    body.release()
    assert (arena.used, arena.live) == (0, 0)


@pytest.mark.parametrize("size", [None, 10 << 20])
def test_a_body_that_is_not_kept_reserves_a_window(new: Any, size: int | None) -> None:
    arena = new()
    body = arena.open(size, False)
    assert arena.used == WINDOW
    assert body.append(bytes(1 << 20)) == 17 * PAYLOAD
    assert body.writable() is None


def test_a_body_is_refused_when_it_would_pass_the_limit(new: Any) -> None:
    """The cap is hard; who waits is decided elsewhere."""
    arena = new(4 * BLOCK)
    first = arena.open(3 * PAYLOAD, True)
    assert arena.open(2 * PAYLOAD, True) is None
    assert arena.could_fit(4 * PAYLOAD, True)
    assert not arena.could_fit(4 * PAYLOAD + 1, True)
    assert not arena.could_fit(None, False)
    first.release()
    assert arena.open(2 * PAYLOAD, True) is not None


def test_charged_bytes_count_and_may_pass_the_limit(new: Any) -> None:
    arena = new(BLOCK)
    arena.charge(10 * BLOCK)
    assert (arena.used, arena.limit) == (10 * BLOCK, BLOCK)
    assert arena.open(1, True) is None
    arena.refund(10 * BLOCK)
    assert arena.open(1, True) is not None


def test_writable_ends_at_the_cell_and_at_the_body(new: Any) -> None:
    body = new().open(PAYLOAD + 100, True)
    room = body.writable()
    assert len(room) == PAYLOAD
    room[:] = b"a" * PAYLOAD
    body.commit(PAYLOAD - 5)
    assert len(body.writable()) == 5
    body.commit(5)
    room = body.writable()
    assert len(room) == 100
    room[:] = b"b" * 100
    body.commit(100)
    assert body.writable() is None
    assert content(body) == b"a" * PAYLOAD + b"b" * 100


@pytest.mark.parametrize("size", [-1, 11])
def test_commit_of_other_than_was_handed_out_is_refused(new: Any, size: int) -> None:
    body = new().open(10, True)
    assert body.writable() is not None
    with pytest.raises(ValueError, match="room"):
        body.commit(size)


def test_peek_ends_at_the_cell_at_what_was_received_and_at_the_asked_size(new: Any) -> None:
    body = new().open(3 * PAYLOAD, True)
    body.append(bytes(PAYLOAD + 50))
    assert [len(body.peek(at, 1 << 20)) for at in (0, 100, PAYLOAD, PAYLOAD + 50)] == [
        PAYLOAD,
        PAYLOAD - 100,
        50,
        0,
    ]
    assert len(body.peek(0, 7)) == 7
    assert body.peek(0, 7).readonly


def test_a_kept_body_can_be_read_again_from_its_start_after_it_was_sent(new: Any) -> None:
    body = new().open(40_000, True)
    body.append(b"q" * 40_000)
    body.finish()
    body.sent_to(40_000)
    assert content(body) == b"q" * 40_000


def test_a_streaming_body_frees_what_was_sent_and_has_room_again(new: Any) -> None:
    arena = new()
    body = arena.open(None, False)
    rooms: list[int] = []
    body.on_room = lambda: rooms.append(body.sent)
    body.append(bytes(17 * PAYLOAD))
    body.sent_to(PAYLOAD - 1)
    assert rooms == []
    body.sent_to(PAYLOAD)
    body.sent_to(2 * PAYLOAD)
    assert rooms == [PAYLOAD], "told when room appears, not whenever there is some"
    with pytest.raises(ValueError, match="gone"):
        body.peek(0, 1)
    assert arena.used == WINDOW
    body.finish()
    assert arena.used == 15 * BLOCK
    body.sent_to(17 * PAYLOAD)
    assert arena.used == 0


def test_sent_to_never_goes_back_and_never_passes_what_was_received(new: Any) -> None:
    body = new().open(100, True)
    body.append(bytes(50))
    body.sent_to(30)
    body.sent_to(10)
    assert body.sent == 30
    with pytest.raises(ValueError, match="sent more"):
        body.sent_to(51)


def test_finish_gives_back_what_was_reserved_for_more(new: Any) -> None:
    arena = new()
    body = arena.open(None, True)
    body.append(b"abc")
    body.finish()
    assert (arena.used, body.reserved, body.complete) == (1092, 1092, True)
    assert body.append(b"d") == 0
    assert bytes(body.peek(0, 10)) == b"abc"
    body.drop_copy()
    body.sent_to(3)
    assert (arena.used, body.reserved) == (0, 0)


def test_a_kept_body_of_unknown_size_grows_while_the_arena_has_cells(new: Any) -> None:
    arena = new(19 * BLOCK)
    body = arena.open(None, True)
    assert body.append(bytes(20 * PAYLOAD)) == 17 * PAYLOAD
    assert body.grow()
    assert body.append(bytes(3 * PAYLOAD)) == PAYLOAD
    assert body.grow()
    assert not body.grow()
    assert arena.used == 19 * BLOCK


def test_dropping_the_copy_frees_what_was_sent(new: Any) -> None:
    arena = new()
    body = arena.open(10 * PAYLOAD, True)
    body.append(bytes(10 * PAYLOAD))
    body.finish()
    body.sent_to(6 * PAYLOAD + 1)
    body.drop_copy()
    assert (arena.used, body.kept) == (4 * BLOCK, False)
    body.sent_to(10 * PAYLOAD)
    assert arena.used == 0


def test_dropping_the_copy_of_a_body_still_arriving_leaves_it_a_window(new: Any) -> None:
    arena = new()
    body = arena.open(100 * PAYLOAD, True)
    body.append(bytes(30 * PAYLOAD))
    body.sent_to(29 * PAYLOAD)
    body.drop_copy()
    assert arena.used == WINDOW
    assert body.append(bytes(100 * PAYLOAD)) == 16 * PAYLOAD


def test_a_view_keeps_its_bytes_after_release(new: Any) -> None:
    arena = new()
    body = arena.open(100, True)
    body.append(b"v" * 100)
    view = body.peek(0, 100)
    body.release()
    other = arena.open(100, True)
    other.append(b"w" * 100)
    assert bytes(view) == b"v" * 100


def test_release_twice_and_forgetting_a_body_count_once(new: Any) -> None:
    arena = new()
    body = arena.open(100, True)
    body.release()
    body.release()
    forgotten = arena.open(100, True)
    assert arena.live == 1
    del forgotten
    gc.collect()
    assert (arena.used, arena.live) == (0, 0)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("open"),
            st.sampled_from([None, 0, 1, 1083, 1084, 5000, PAYLOAD, PAYLOAD + 7, 50_000, 400_000]),
            st.booleans(),
        ),
        st.tuples(st.just("append"), st.integers(0, 9), st.integers(0, 100_000)),
        st.tuples(st.just("send"), st.integers(0, 9), st.integers(1, 60_000)),
        st.tuples(st.sampled_from(["finish", "grow", "drop_copy", "release"]), st.integers(0, 9), st.none()),
        st.tuples(st.sampled_from(["charge", "refund"]), st.integers(0, BLOCK), st.none()),
    ),
    max_size=60,
)


def play(twin: str, script: list[tuple[str, Any, Any]]) -> list[Any]:
    arena = make(twin, 60 * BLOCK)
    bodies: list[Any] = []
    trace: list[Any] = []
    rooms = 0

    def on_room() -> None:
        nonlocal rooms
        rooms += 1

    for step, first, second in script:
        outcome: Any = None
        if step == "open":
            body = arena.open(first, second)
            outcome = body is not None
            if body is not None:
                body.on_room = on_room
                bodies.append(body)
        elif step in ("charge", "refund"):
            getattr(arena, step)(first)
        elif bodies:
            body = bodies[first % len(bodies)]
            if step == "append":
                outcome = body.append(bytes([len(trace) % 256]) * second)
            elif step == "send":
                released = body not in bodies
                if not released and body.received > body.sent:
                    view = body.peek(body.sent, second)
                    outcome = bytes(view)
                    body.sent_to(body.sent + len(view))
                    del view
            else:
                outcome = getattr(body, step)()
                if step == "release":
                    bodies.remove(body)
        trace.append((step, outcome, rooms, arena.used, arena.live))
        trace.append([(b.received, b.sent, b.reserved, b.kept, b.complete) for b in bodies])
    return trace


@pytest.mark.skipif(IMPLEMENTATION != "compiled", reason="there is one twin only")
@settings(max_examples=200, deadline=None)
@given(steps)
def test_the_twins_keep_the_same_books(script: list[tuple[str, Any, Any]]) -> None:
    assert play("c", script) == play("py", script)
