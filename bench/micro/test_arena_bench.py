"""Bodies in the arena, by both twins: time and memory. `pytest bench/micro/test_arena_bench.py -s`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.wires import new_arena

from bench.micro.memory import resident_bytes_each

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("pytest_benchmark")

SIZES = [pytest.param(1 << 10, id="1k"), pytest.param(64 << 10, id="64k"), pytest.param(512 << 10, id="512k")]


@pytest.fixture(params=["c", "py"])
def twin(request: pytest.FixtureRequest) -> str:
    if request.param == "c":
        pytest.importorskip("h2ping._fast.arena", exc_type=ImportError)
    name: str = request.param
    return name


@pytest.fixture
def arena(twin: str) -> Any:
    return new_arena(twin, 1 << 30)


def filled(arena: Any, content: bytes) -> Any:
    """A kept body, received whole."""
    body = arena.open(len(content), True)
    assert body.append(content) == len(content)
    body.finish()
    return body


@pytest.mark.parametrize("size", SIZES)
def test_arena_body_in_out_and_released(benchmark: Any, arena: Any, size: int) -> None:
    """Received, read cell by cell as DATA frames are, released."""
    content = b"x" * size

    def life() -> None:
        body = filled(arena, content)
        at = 0
        while at < size:
            at += len(body.peek(at, 16_375))
        body.sent_to(size)
        body.release()

    benchmark.group = f"a body of {size >> 10} KB"
    benchmark(life)
    assert arena.used == 0


def test_arena_second_sending_of_64_kb(benchmark: Any, arena: Any) -> None:
    """A kept body is read once more."""
    body = filled(arena, b"x" * 65_536)

    def again() -> None:
        at = 0
        while at < 65_536:
            at += len(body.peek(at, 16_375))

    benchmark(again)


@pytest.mark.parametrize("size", SIZES)
def test_memory_of_a_kept_body(twin: str, size: int) -> None:
    """Its bytes, a tenth more for cells that are not full, and a few hundred for the book about it."""
    assert resident_bytes_each(bodies, (64 << 20) // (size + 2048), twin, size) < 1.1 * size + 2048


def bodies(twin: str, size: int) -> Callable[[], object]:
    arena, content = new_arena(twin, 1 << 30), b"x" * size
    return lambda: filled(arena, content)


def test_memory_of_a_thousand_bodies_is_free_again() -> None:
    """What is trimmed goes back to the system (the plain twin has nothing to trim)."""
    compiled = pytest.importorskip("h2ping._fast.arena", exc_type=ImportError).Arena(1 << 30)
    for body in [filled(compiled, b"x" * 65_536) for _ in range(1000)]:
        body.release()
    compiled.trim(1 << 30)
    assert compiled.resident == 0
