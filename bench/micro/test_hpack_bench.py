"""HPACK, a block at a time: the compiled codec and the `hpack` package. `python -m pytest bench/micro`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.hpack_codecs import codec_of

from bench.callgrind.pieces import REQUEST, RESPONSE, classify
from bench.micro.memory import resident_bytes_each

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("pytest_benchmark")

SECTIONS = [pytest.param(REQUEST, id="request"), pytest.param(RESPONSE, id="response")]


@pytest.fixture(params=["c", "py"])
def codec(request: pytest.FixtureRequest) -> Any:
    if request.param == "c":
        pytest.importorskip("h2ping._fast.hpack", exc_type=ImportError)
    return codec_of(request.param)


@pytest.mark.parametrize("section", SECTIONS)
def test_hpack_encode_12_fields(benchmark: Any, codec: Any, section: list[tuple[bytes, bytes]]) -> None:
    """The second block of a connection and those after it: the table is warm."""
    encoder = codec.Encoder(classify)
    encoder.encode_block(section)
    benchmark.group = f"encode a {'request' if section is REQUEST else 'response'}"
    block = benchmark(encoder.encode_block, section)
    assert len(block) < 250


@pytest.mark.parametrize("section", SECTIONS)
def test_hpack_decode_12_fields(benchmark: Any, codec: Any, section: list[tuple[bytes, bytes]]) -> None:
    encoder, decoder = codec.Encoder(classify), codec.Decoder(65536, 1000)
    decoder.decode_block(encoder.encode_block(section))
    benchmark.group = f"decode a {'request' if section is REQUEST else 'response'}"
    # The oracle's encoder indexes volatile fields too, so that one block can be decoded again and again.
    assert benchmark(decoder.decode_block, encoder.encode_block(section)) == section


@pytest.mark.parametrize("limit", [65536])
def test_hpack_decode_a_bomb_of_16_kb(benchmark: Any, codec: Any, limit: int) -> None:
    """What one malicious block costs us: 16,000 references to a field of 4,000 octets."""
    decoder = codec.Decoder(limit)
    bomb = b"\x40\x01b" + bytes.fromhex("7fa11e") + b"x" * 4000 + b"\xbe" * 16000

    def blow_up() -> None:
        with pytest.raises(codec.FieldSectionTooLarge):
            decoder.decode_block(bomb)

    benchmark(blow_up)


@pytest.mark.parametrize("engine", ["c", "py"])
def test_memory_of_a_connections_tables(engine: str) -> None:
    """An encoder and a decoder with what one request and one response leave in them."""
    if engine == "c":
        pytest.importorskip("h2ping._fast.hpack", exc_type=ImportError)
    assert resident_bytes_each(tables, 2000, engine) < 20_000


def tables(engine: str) -> Callable[[], object]:
    codec: Any = codec_of(engine)

    def pair() -> object:
        encoder, decoder = codec.Encoder(classify), codec.Decoder(65536, 1000)
        decoder.decode_block(encoder.encode_block(REQUEST))
        decoder.decode_block(encoder.encode_block(RESPONSE))
        return encoder, decoder

    return pair
