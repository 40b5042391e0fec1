"""What is fuzzed: each target takes bytes and raises when something is wrong.

Both engines get the same bytes and must come to the same end, so the plain twin is the oracle of the compiled one; in
a build with sanitizers the compiled one has a second judge.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from h2ping._fast import IMPLEMENTATION
from h2ping.config import FLAGS
from h2ping.errors import CONNECTION_LOST, ConfigError, UpstreamError
from h2ping.sources import load
from h2ping.units import format_duration, format_size, parse_duration, parse_limit, parse_size
from tests.support import hpack_oracle
from tests.support.client_bench import Bench
from tests.support.fake_exchange import has_body
from tests.support.hpack_codecs import codec_of
from tests.support.traces import heard, told
from tests.support.wires import Rig

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.client_bench import Connection
    from tests.support.fake_exchange import FakeExchange
    from tests.support.wires import Ears

CORPUS = Path(__file__).parent / "corpus"
SANITIZED = "SANITIZED" in os.environ
"""The build has its own judge; the plain twin, slow there, would take the time."""
ENGINES = ("c",) if SANITIZED else ("c", "py") if IMPLEMENTATION == "compiled" else ("py",)
BEFORE_PREFACE = 0x80
PADDED_INTEGER = "five octets"
"""The one thing that the oracle takes and we do not: integers padded with needless octets."""


def upstream(data: bytes) -> None:
    """Frames, or what is none, on a connection with three open requests.

    The first byte says how the rest is cut up, and with its highest bit that the server has not sent its preface yet:
    the requests open when its SETTINGS have come.
    """
    cut, data = (data[0], data[1:]) if data else (0, data)
    _upstream(ENGINES[0], data, cut)
    if len(ENGINES) == 1:
        return
    # Of a frame that never ends the compiled engine tells what came of it, the plain one nothing.
    whole = _whole_frames(data)
    ends = [_upstream(engine, whole, cut) for engine in ENGINES]
    assert ends.count(ends[0]) == len(ends), ends


def _whole_frames(data: bytes) -> bytes:
    at = 0
    while at + 9 <= len(data) and at + 9 + int.from_bytes(data[at : at + 3], "big") <= len(data):
        at += 9 + int.from_bytes(data[at : at + 3], "big")
    return data[:at]


def _upstream(engine: str, data: bytes, cut: int) -> Any:
    rig = Rig(engine)
    ears: list[Ears] = []

    def open_requests() -> None:
        if not ears and rig.wire.can_open and rig.wire.max_streams >= 3:
            ears.extend(
                rig.open(body)
                for body in (None, rig.body(b"body"), rig.body(b"half", size=9, complete=False))
            )

    if cut & BEFORE_PREFACE:
        rig.wire.start()
        rig.sent()
        rig.hooks["settings"] = open_requests
    else:
        rig.start()
        open_requests()
    end: Any = None
    step = cut & ~BEFORE_PREFACE or len(data) or 1
    for start in range(0, len(data), step):
        try:
            rig.serve(data[start : start + step])
        except UpstreamError as error:
            end = told(error)
            break
        rig.sent()
    rig.sent()
    rig.wire.abandon(UpstreamError(CONNECTION_LOST))
    assert all(each.over for each in ears), "a request without an end"
    return end, [heard(each) for each in ears]


def client(data: bytes) -> None:
    """What a client may write, whole and byte by byte; each request that is whole is answered, so the next is read."""
    ends = [_client(engine, data, step) for engine in ENGINES for step in (len(data) or 1, 1)]
    assert ends.count(ends[0]) == len(ends), ends


def _client(engine: str, data: bytes, step: int) -> Any:
    bench = Bench(engine)
    connection = bench.connect()
    for start in range(0, len(data), step):
        if connection.transport.closed:
            break
        _send(connection, data[start : start + step])
    requests = [
        (
            each.request.method,
            each.request.target,
            each.request.fields,
            [word for word in each.heard if word != "body"],
            each.bytes,
        )
        for each in bench.exchanges
    ]
    return requests, bench.refused


def _send(connection: Connection, piece: bytes) -> None:
    """What the client does not read now it reads once it has answered."""
    while True:
        piece = piece[connection.send(piece) :]
        if not _answer(connection.bench) and (
            not piece or connection.transport.paused or connection.transport.closed
        ):
            return


def _answer(bench: Bench) -> bool:
    """Respond to the request at hand if it is whole, and is not answered."""
    if not bench.exchanges or not _is_whole(bench.exchange):
        return False
    bench.exchange.heard.append("answered")
    bench.exchange.respond(b"answer")
    bench.turn()
    return True


def _is_whole(exchange: FakeExchange) -> bool:
    ended = "end" in exchange.heard or not has_body(exchange.request)
    return ended and exchange.error is None and not {"answered", "gone"} & set(exchange.heard)


def field_blocks(data: bytes) -> None:
    """HPACK blocks, each behind a byte that says its length, against the reference (RFC 7541)."""
    ours: Any = codec_of(ENGINES[0])
    decoder, oracle = ours.Decoder(), hpack_oracle.Decoder()
    while data:
        size, data = data[0], data[1:]
        block, data = data[:size], data[size:]
        try:
            expected = oracle.decode_block(block)
        except hpack_oracle.HpackError:
            expected = None
        try:
            found = decoder.decode_block(block)
        except ours.HpackError as error:
            if expected is not None and PADDED_INTEGER not in str(error):
                raise
            return
        assert found == expected, block
        assert decoder.table_fields == oracle.table_fields


def settings(data: bytes) -> None:
    """Durations, sizes and limits: a number that can be printed and read back, or a ValueError."""
    text = data.decode("utf-8", "surrogateescape")
    with contextlib.suppress(ValueError):
        seconds = parse_duration(text)
        assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-9, abs=1e-9)
    for parse in (parse_size, parse_limit):
        with contextlib.suppress(ValueError):
            size = parse(text)
            assert size >= 0
            assert parse(format_size(size)) == size


def file(data: bytes) -> None:
    """The configuration file: settings or one ConfigError with a line for a human."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "h2ping.yaml"
        path.write_bytes(data)
        try:
            assert load({}, {}, "h2ping", str(path))
        except ConfigError as error:
            assert str(error)  # noqa: PT017 - what is looked at is the message


TARGETS: dict[str, Callable[[bytes], None]] = {
    "upstream": upstream,
    "client": client,
    "field_blocks": field_blocks,
    "settings": settings,
    "file": file,
}

WORDS: dict[str, list[bytes]] = {
    # Heads of frames on the second request; blocks of fields.
    "upstream": [
        *(bytes((0, 0, size, kind, flags, 0, 0, 0, 3)) for size, kind, flags in (
            (1, 1, 4), (1, 1, 5), (5, 0, 0), (0, 0, 1), (4, 3, 0), (4, 8, 0), (1, 9, 4), (5, 2, 0),
        )),
        *(bytes((0, 0, size, kind, flags, 0, 0, 0, 0)) for size, kind, flags in (
            (6, 4, 0), (0, 4, 1), (8, 6, 0), (8, 6, 1), (8, 7, 0), (4, 8, 0),
        )),
        b"\x88", b"\x5c\x01\x35", b"\x08\x03103", b"\x00\x01a\x01b", b"\x3f\xe1\x1f",
    ],
    "field_blocks": [b"\x3f\xe1\x1f", b"\x20", b"\x40\x01a\x01b", b"\x10\x01a\x01b", b"\xbe", b"\x7f\x00\x81\x1f"],
    "client": [
        *(f"{name}: {value}\r\n".encode() for name, value in (
            ("Content-Length", "5"), ("Transfer-Encoding", "chunked"), ("Connection", "close"),
            ("Connection", "keep-alive, te"), ("Expect", "100-continue"), ("Upgrade", "h2c"), ("TE", "trailers"),
            ("Trailer", "x"), ("Host", "h:1"),
        )),
        *(b"GET ", b"HEAD ", b"OPTIONS ", b"CONNECT ", b"http://", b" HTTP/1.0\r\n", b" HTTP/1.1\r\n", b"0\r\n\r\n"),
    ],
    "settings": [b"ns", b"us", b"\xc2\xb5s", b"ms", b"1h", b"0.5", b"KiB", b"TiB", b"off", b"9223372036854775807"],
    "file": [f"\n{name}: ".encode() for name in FLAGS] + [b"\ninstances:\n- name: a\n  ", b"{", b"&a", b"*a", b"<<: "],
}  # fmt: skip
"""What the fuzzer may write besides what it comes upon by itself."""


def fails(name: str, data: bytes) -> str:
    """The traceback of one input, if it has any."""
    try:
        TARGETS[name](data)
    except Exception:
        return traceback.format_exc()
    return ""


def main() -> None:
    """Some inputs through one target: those that fail are named."""
    name, *paths = sys.argv[1:]
    failed = {path: error for path in paths if (error := fails(name, Path(path).read_bytes()))}
    for path, error in failed.items():
        print(f"failed: {path}\n{error}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
