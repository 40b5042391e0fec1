"""What is fuzzed: each target takes bytes and raises when something is wrong.

Both engines get the same bytes and must come to the same end, so the plain twin is the oracle of the compiled one; in
a build with sanitizers the compiled one has a second judge.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h2ping._fast import IMPLEMENTATION
from h2ping.errors import CONNECTION_LOST, ConfigError, UpstreamError
from h2ping.sources import load
from h2ping.units import parse_duration, parse_limit, parse_size
from tests.support import hpack_oracle
from tests.support.client_bench import Bench
from tests.support.hpack_codecs import codec_of
from tests.support.traces import heard, told
from tests.support.wires import Rig

if TYPE_CHECKING:
    from collections.abc import Callable

SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
"""The build has its own judge; the plain twin, slow there, would take the time."""
ENGINES = ("c",) if SANITIZED else ("c", "py") if IMPLEMENTATION == "compiled" else ("py",)
PADDED_INTEGER = "five octets"
"""The one thing that the oracle takes and we do not: integers padded with needless octets."""


def upstream(data: bytes) -> None:
    """Frames, or what is none, on a connection with three open requests. The first byte says how it is cut up."""
    cut, data = (data[0], data[1:]) if data else (0, data)
    _upstream(ENGINES[0], data, cut)
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
    rig = Rig(engine).start()
    ears = [rig.open(), rig.open(rig.body(b"body")), rig.open(rig.body(b"half", size=9, complete=False))]
    end: Any = None
    step = cut or len(data) or 1
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
    """What a client may write, whole and byte by byte."""
    ends = [_client(engine, data, step) for engine in ENGINES for step in (len(data) or 1, 1)]
    assert ends.count(ends[0]) == len(ends), ends


def _client(engine: str, data: bytes, step: int) -> Any:
    bench = Bench(engine)
    connection = bench.connect()
    for start in range(0, len(data), step):
        if connection.transport.closed:
            break
        connection.send(data[start : start + step])
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
    """Durations, sizes and limits: a number or a ValueError."""
    text = data.decode("utf-8", "surrogateescape")
    for parse in (parse_duration, parse_size, parse_limit):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0


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
