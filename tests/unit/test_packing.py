"""Compressed copies: each test one of the rules in h2ping.packing."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
import pytest_asyncio
from tests.support.zstd import need_zstd

from h2ping import config
from h2ping._fast import Arena as CompiledArena
from h2ping._fast.arena_py import Arena as PlainArena
from h2ping.errors import ConfigError
from h2ping.packing import PackedCopy, Packer, Unpacking, cells_of, zstd_packer

TEXT = " ".join(
    random.Random(4).choices(["the", "judge", "reads", "an", "answer", "slowly"], k=60_000)
).encode()


@pytest.fixture(params=[CompiledArena, PlainArena], ids=["at-hand", "py"])
def arena(request: pytest.FixtureRequest) -> Any:
    return request.param(8 << 20)


@pytest_asyncio.fixture
async def packer() -> Any:
    need_zstd()
    made = zstd_packer()
    yield made
    made.close()


def kept(arena: Any, content: bytes) -> Any:
    body = arena.open(len(content), True)
    assert body.append(content) == len(content)
    body.finish()
    return body


async def pack(packer: Packer, body: Any) -> list[bytes] | None:
    packed: asyncio.Future[list[bytes] | None] = asyncio.get_running_loop().create_future()
    packer.pack(body, packed.set_result)
    return await packed


async def test_each_piece_is_a_frame_of_its_own(packer: Packer, arena: Any) -> None:
    pieces = await pack(packer, kept(arena, TEXT))
    assert pieces is not None
    assert len(pieces) > 1
    assert b"".join(map(packer.unpack, pieces)) == TEXT
    assert sum(map(len, pieces)) < len(TEXT) / 2


async def test_the_work_is_done_in_one_thread_beside_the_loop(arena: Any) -> None:
    threads = []

    def slow(plain: bytes) -> bytes:
        threads.append(threading.get_ident())
        return b"short"

    packer = Packer(slow, bytes)
    await asyncio.gather(pack(packer, kept(arena, TEXT)), pack(packer, kept(arena, TEXT)))
    packer.close()
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_a_body_that_does_not_become_smaller_costs_one_piece(arena: Any) -> None:
    tried = []
    packer = Packer(lambda plain: tried.append(plain) or plain, bytes)  # type: ignore[func-returns-value]
    assert await pack(packer, kept(arena, TEXT)) is None
    packer.close()
    assert len(tried) == 1


async def test_noise_is_not_worth_it(packer: Packer, arena: Any) -> None:
    assert await pack(packer, kept(arena, random.Random(5).randbytes(300_000))) is None


async def test_a_body_that_is_released_meanwhile_is_read_to_its_end(packer: Packer, arena: Any) -> None:
    body = kept(arena, TEXT)
    packing = asyncio.ensure_future(pack(packer, body))
    await asyncio.sleep(0)
    body.release()
    other = kept(arena, bytes(len(TEXT)))
    pieces = await packing
    assert pieces is not None
    assert b"".join(map(packer.unpack, pieces)) == TEXT
    other.release()
    assert (arena.used, arena.live) == (0, 0)


async def test_a_packed_copy_is_held_by_the_arena(packer: Packer, arena: Any) -> None:
    body = kept(arena, TEXT)
    pieces = await pack(packer, body)
    assert pieces is not None
    before = arena.used
    body.release()
    copy = PackedCopy(arena, pieces, packer.unpack, len(TEXT), None)
    assert 0 < arena.used < before / 2
    assert b"".join(copy.piece(number) for number in range(len(copy))) == TEXT
    copy.release()
    copy.release()
    assert (arena.used, arena.live) == (0, 0)


async def test_a_packed_copy_for_which_the_arena_has_no_cells_is_counted(packer: Packer, arena: Any) -> None:
    """A transport may hold the cells that were freed for it."""
    pieces = await pack(packer, kept(arena, TEXT))
    assert pieces is not None
    arena.charge(arena.limit)
    before = arena.used
    copy = PackedCopy(arena, pieces, packer.unpack, len(TEXT), None)
    assert arena.used - before == sum(map(len, pieces))
    assert b"".join(copy.piece(number) for number in range(len(copy))) == TEXT
    copy.release()
    assert arena.used == before


async def test_a_resend_reads_piece_by_piece_through_a_window(packer: Packer, arena: Any) -> None:
    content = TEXT * 3
    pieces = await pack(packer, kept(arena, content))
    assert pieces is not None
    trailers = [(b"x-sum", b"1")]
    copy = PackedCopy(arena, pieces, packer.unpack, len(content), trailers)
    body = arena.open(len(content), False)
    unpacking = Unpacking(copy, body)
    room: list[bool] = []
    body.on_room = lambda: room.append(True)
    sent = b""
    unpacking.fill()
    assert body.received < len(content)
    while len(sent) < len(content):
        room.clear()
        while len(sent) < body.received and not room:
            sent += bytes(body.peek(len(sent), 1 << 20))
            body.sent_to(len(sent))
        unpacking.fill()
    assert sent == content
    assert body.complete
    assert body.trailers == trailers


async def test_a_packer_that_fails_leaves_the_copy_as_it_is(
    arena: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(plain: bytes) -> bytes:
        raise MemoryError

    packer = Packer(fail, bytes)
    assert await pack(packer, kept(arena, TEXT)) is None
    packer.close()


def test_a_missing_package_is_one_clear_line_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"h2ping\[zstd\]"):
        config.parse({"upstream": "https://judge.example", "compress_waiting_bodies": "true"})
    config.parse({"upstream": "https://judge.example"})


def test_all_cells_of_a_body_are_seen(arena: Any) -> None:
    assert b"".join(cells_of(kept(arena, TEXT))) == TEXT
