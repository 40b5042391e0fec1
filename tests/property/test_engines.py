"""Both engines, given the same, do the same (docs/architecture.md): random scripts of frames and calls.

Frames are well-formed or not, on streams in any state; calls come in any order that their user is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st

from h2ping._fast import IMPLEMENTATION
from h2ping.errors import CONNECTION_LOST, UpstreamError
from h2ping.upstream.wire import WireLimits
from tests.support.frames import frame
from tests.support.traces import heard, owner_heard, sent_of, told
from tests.support.wires import Ears, Rig

if IMPLEMENTATION != "compiled":
    pytest.skip("there is one engine only", allow_module_level=True)


@dataclass(frozen=True)
class Live:
    """Stands for the stream of the n-th request that has not heard its last call."""

    number: int


LIMITS = WireLimits(
    stream_window_bytes=70_000,
    connection_window_bytes=200_000,
    max_field_section_bytes=2_000,
    max_continuations=3,
    max_idle_frames=20,
    max_queued_control_bytes=400,
)

# Mostly streams that wait for something: a script dies with the first fault of the connection.
opened = st.builds(Live, st.integers(0, 3))
streams = st.one_of(opened, opened, st.sampled_from([1, 3, 9, 31, 2, 0]))
codes = st.sampled_from([0, 1, 2, 7, 8, 11, 2**32 - 1])
names = st.sampled_from(
    ["x-a", "x-b", "content-length", "content-length", "Bad", "te", "connection", ":path", "", "set-cookie"]
)
values = st.sampled_from(["", "0", "3", "5", "300", " 5", "v", "v\r\n", "close", "x" * 300, "trailers"])
statuses = st.sampled_from(
    ["200", "200", "200", "204", "304", "404", "100", "103", "101", "99", "20x", "2000"]
)
plain_fields = st.lists(
    st.tuples(st.sampled_from(["x-a", "x-b", "date"]), st.sampled_from(["1", "2"])), max_size=2
)
odd_fields = st.lists(st.tuples(names, values), max_size=3)
pads = st.sampled_from([None, None, 0, 1, 200])
contents = st.sampled_from([b"", b"abc", b"hello", b"x" * 300, b"y" * 16_000])
increments = st.sampled_from([0, 1, 100, 70_000, 2**31 - 1, 2**31 - 1 - 65_535, 2**32 - 1])
payloads = st.one_of(
    st.sampled_from(
        [b"", b"\0" * 4, b"\0" * 8, b"\xff" * 8, b"\0\0\0\x02\x88", b"\x88", b"\x01\x88\0", b"\0" * 6]
    ),
    st.binary(max_size=12),
)

usual = st.one_of(
    st.tuples(
        st.just("whole"),
        opened,
        plain_fields,
        st.lists(contents, max_size=3),
        pads,
        st.sampled_from(["data", "trailers", "apart", "not"]),
    ),
    st.tuples(st.just("response"), opened, st.just("200"), plain_fields, st.booleans()),
    st.tuples(st.just("response"), opened, statuses, odd_fields, st.booleans()),
    st.tuples(st.just("response"), opened, st.just("103"), plain_fields, st.just(False)),
    st.tuples(st.just("data"), opened, contents, st.booleans(), pads),
    st.tuples(st.just("data"), opened, contents, st.just(False), pads),
    st.tuples(st.just("trailers"), opened, plain_fields),
    st.tuples(st.just("cut response"), opened, plain_fields, st.booleans(), st.integers(0, 1)),
    st.tuples(st.just("window"), opened, st.sampled_from([0, 1, 100, 70_000, 2**31 - 1])),
    st.tuples(st.just("settings"), st.sampled_from([1, 3, 4]), st.sampled_from([0, 1, 50, 16_384, 65_536])),
    st.tuples(st.just("reset"), opened, codes),
    st.tuples(st.just("ping"), st.booleans()),
    st.tuples(st.just("priority"), opened, st.sampled_from([5, 5, 5, 4])),
)
rare = st.one_of(
    st.tuples(st.just("response"), streams, statuses, odd_fields, st.booleans()),
    st.tuples(st.just("data"), streams, contents, st.booleans(), pads),
    st.tuples(st.just("cut response"), streams, plain_fields, st.booleans(), st.integers(0, 4)),
    st.tuples(
        st.just("settings"),
        st.sampled_from([1, 2, 3, 4, 5, 6, 9]),
        st.sampled_from([0, 1, 50, 16_384, 65_536, 2**31]),
    ),
    st.tuples(st.just("settings ack")),
    st.tuples(st.just("goaway"), st.sampled_from([0, 1, 3, 5, 2**31 - 1]), codes),
    st.tuples(st.just("reset"), streams, codes),
    st.tuples(st.just("window"), streams, increments),
    st.tuples(st.just("priority"), streams, st.integers(0, 6)),
    st.tuples(st.just("promise"), streams, st.sampled_from([0, 2, 2, 3, 4, 6])),
    st.tuples(st.just("raw"), st.integers(0, 12), st.integers(0, 255), streams, payloads),
)
request = st.one_of(
    st.tuples(st.just("get"), st.sampled_from([b"GET", b"HEAD"])),
    st.tuples(st.just("post"), st.sampled_from([0, 5, 20_000, 90_000]), st.booleans(), st.booleans()),
)
ours = st.one_of(
    request,
    st.tuples(st.just("append"), st.integers(0, 9), st.integers(1, 40_000)),
    st.tuples(st.just("finish"), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 9), codes),
    st.tuples(st.just("credit"), st.integers(0, 9), st.sampled_from([1, 300, 20_000, 10**9])),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("take")),
    st.tuples(st.just("our ping")),
    st.tuples(st.just("our goaway")),
)
scripts = st.builds(
    lambda first, then: [*first, *then],
    st.lists(request, min_size=4, max_size=4),
    st.lists(st.one_of(usual, usual, usual, usual, ours, ours, rare), min_size=15, max_size=60),
)


class Play:
    """One engine goes through a script; the trace says what could be seen of it after each step."""

    def __init__(self, engine: str) -> None:
        self.rig = Rig(engine, LIMITS)
        self.streams: list[Ears] = []
        self.trace: list[Any] = []
        self.cancelled: list[Ears] = []
        self.received = 0
        self.returned = 0

    def run(self, script: list[Any], *, end: bool = True) -> list[Any]:
        rig = self.rig
        rig.wire.start()
        first = rig.sent()
        self.returned -= sum(one.code for one in first if one.kind == 8)
        # Windows of the connection are wide: which of two streams gets the last bytes of one is the engines'
        # choice.
        rig.serve(rig.peer.settings((4, 60_000)), rig.peer.window(0, 1 << 30))
        self.note_sent()
        rig.reader.decoder.max_header_list_size = 1 << 30
        for step in script:
            self.step(*step)
            self.trace.append((step[0], rig.wire.open_streams, rig.wire.can_open, rig.wire.max_streams))
        if not end:
            return self.trace
        self.note_sent()
        self.trace.append(owner_heard(rig))
        rig.wire.abandon(UpstreamError(CONNECTION_LOST))
        self.trace.append(owner_heard(rig))
        self.trace.append([heard(one) for one in self.streams])
        for one in self.streams:
            event(f"last call: {one.calls[-1] if one.calls else None}")
        assert rig.wire.open_streams == 0
        assert all(one.stream.upload_done for one in self.streams)
        return self.trace

    def note_sent(self) -> None:
        frames = self.rig.sent()
        self.returned += sum(one.code for one in frames if one.kind == 8 and one.stream == 0)
        self.trace.append(sent_of(frames))
        self.trace.append([one.body.sent if one.body is not None else None for one in self.streams])

    def step(self, name: str, *details: Any) -> None:
        if name in OURS:
            OURS[name](self, *details)
            return
        details = tuple(self.resolve(one) if isinstance(one, Live) else one for one in details)
        data = PEER[name](self.rig.peer, *details)
        self.received += len(data)
        try:
            self.rig.serve(data)
        except UpstreamError as error:
            event(f"fault: {error.detail}")
            self.trace.append(told(error))

    def resolve(self, which: Live) -> int:
        """Id of a stream that is not over, if there is one."""
        waiting = [one for one in self.streams if one not in self.cancelled and not one.over]
        candidates = waiting or self.streams
        return candidates[which.number % len(candidates)].stream.id if candidates else 1

    def open(self, body: Any, method: bytes) -> None:
        if self.rig.wire.can_open and self.rig.wire.open_streams < self.rig.wire.max_streams:
            self.streams.append(self.rig.open(body, method=method))

    def append(self, number: int, size: int) -> None:
        for ears in self.streams[number : number + 1]:
            if ears.body is not None and not ears.body.complete:
                self.trace.append(ears.body.append(bytes([size % 256]) * size))
                ears.stream.body_ready()

    def finish(self, number: int) -> None:
        for ears in self.streams[number : number + 1]:
            if ears.body is not None and not ears.body.complete:
                ears.body.finish()
                ears.stream.body_ready()

    def cancel(self, number: int, code: int) -> None:
        for ears in self.streams[number : number + 1]:
            self.cancelled.append(ears)
            ears.stream.reset(code)

    def credit(self, number: int, size: int) -> None:
        for ears in self.streams[number : number + 1]:
            ears.stream.credit(size)


def post(play: Play, size: int, complete: bool, trailers: bool) -> None:
    body = play.rig.body(b"b" * size, size=size + (0 if complete else 100_000), complete=False)
    if trailers:
        body.trailers = [(b"x-trailer", b"1")]
    if complete:
        body.finish()
    play.open(body, b"POST")


OURS: dict[str, Any] = {
    "get": lambda play, method: play.open(None, method),
    "post": post,
    "append": Play.append,
    "finish": Play.finish,
    "cancel": Play.cancel,
    "credit": Play.credit,
    "hold": lambda play, held: play.rig.wire.hold_data(held),
    "take": Play.note_sent,
    "our ping": lambda play: play.rig.wire.ping(b"12345678"),
    "our goaway": lambda play: play.rig.wire.goaway(0),
}


def whole(p: Any, stream: int, fields: Any, pieces: list[bytes], pad: int | None, ending: str) -> bytes:
    frames = [p.response(stream, 200, *fields)]
    frames += [p.data(stream, piece, pad=pad) for piece in pieces]
    if ending == "data":
        frames.append(p.data(stream, b"last", end=True, pad=pad))
    elif ending == "trailers":
        frames.append(p.headers(stream, ("x-sum", "1"), end=True))
    elif ending == "apart":
        frames.append(p.data(stream, end=True))
    return b"".join(frames)


def cut_response(p: Any, stream: int, fields: Any, end: bool, cuts: int) -> bytes:
    block = p.block((":status", "200"), *fields)
    pieces = [p.headers(stream, block=block[:1], end=end, end_headers=False)]
    pieces += [p.continuation(stream) for _ in range(cuts)]
    return b"".join([*pieces, p.continuation(stream, block[1:], end_headers=True)])


PEER: dict[str, Any] = {
    "whole": whole,
    "response": lambda p, stream, status, fields, end: p.headers(
        stream, (":status", status), *fields, end=end
    ),
    "cut response": cut_response,
    "data": lambda p, stream, content, end, pad: p.data(stream, content, end=end, pad=pad),
    "trailers": lambda p, stream, fields: p.headers(stream, *fields, end=True),
    "settings": lambda p, key, value: p.settings((key, value)),
    "settings ack": lambda p: p.settings_ack(),
    "ping": lambda p, ack: p.ping(ack=ack),
    "goaway": lambda p, last, code: p.goaway(last, code),
    "reset": lambda p, stream, code: p.reset(stream, code),
    "window": lambda p, stream, increment: p.window(stream, increment),
    "priority": lambda p, stream, size: frame(2, 0, stream, bytes(size)),
    "promise": lambda p, stream, promised: p.promise(stream, promised, (":method", "GET")),
    "raw": lambda p, kind, flags, stream, payload: frame(kind, flags, stream, payload),
}


@given(scripts)
def test_the_engines_do_the_same(script: list[Any]) -> None:
    compiled, plain = Play("c"), Play("py")
    traces = compiled.run(script), plain.run(script)
    for number, (fast, slow) in enumerate(zip(*traces, strict=True)):
        note(f"step {number}")
        assert fast == slow


@given(scripts)
def test_what_was_received_is_given_back_and_never_more(script: list[Any]) -> None:
    """RFC 9113 section 6.9: sums of credit against sums of DATA, whatever happens."""
    for engine in ("c", "py"):
        play = Play(engine)
        play.run(script)
        assert play.returned <= play.received


def transcript(rig: Rig) -> bytes:
    """What a server may send to three requests, some of everything."""
    p = rig.peer
    return b"".join(
        [
            p.settings((3, 100), (4, 70_000), (1, 2_000)),
            p.response(1, 103, ("link", "</a>")),
            p.headers(
                1, (":status", "200"), ("content-length", "11"), ("x-a", "b" * 60), pad=5, priority=(0, 1)
            ),
            p.data(1, b"hello "),
            p.ping(b"01234567"),
            p.data(1, b"world", pad=20),
            p.headers(1, ("x-sum", "1"), end=True),
            p.window(0, 1000),
            p.headers(3, block=p.block((":status", "500"), ("x-a", "b" * 60))[:3], end_headers=False),
            p.continuation(3),
            p.continuation(3, p.block(("server", "origin")), end_headers=True),
            p.data(3, b"x" * 300),
            p.priority(3),
            p.reset(3, 2),
            p.goaway(5, 0, b"bye"),
            p.window(5, 9),
            p.response(5, 204, end=True),
        ]
    )


@given(
    st.lists(st.tuples(st.integers(0, 700), st.one_of(st.integers(0, 255), st.none())), max_size=6),
    st.lists(st.integers(1, 200), max_size=5),
)
def test_the_engines_agree_on_damaged_bytes(damage: list[tuple[int, int | None]], cuts: list[int]) -> None:
    """Bytes changed or left out anywhere: the same calls, or the same fault, and never anything else."""
    traces = []
    for engine in ("c", "py"):
        play = Play(engine)
        play.run([("get", b"GET"), ("get", b"HEAD"), ("post", 20_000, False, False), ("take",)], end=False)
        data = bytearray(transcript(play.rig))
        for at, octet in damage:
            at %= len(data)
            data[at : at + 1] = b"" if octet is None else bytes((octet,))
        # One engine sees a fault with a frame's header, the other with its end: let each come to its end.
        data += bytes(20_000)
        fault = None
        for cut in [*cuts, len(data)]:
            try:
                play.rig.serve(bytes(data[:cut]))
            except UpstreamError as error:
                fault = told(error)
                break
            del data[:cut]
        play.note_sent()
        traces.append((fault, play.trace, owner_heard(play.rig), [heard(one) for one in play.streams]))
    assert traces[0] == traces[1]


octets = st.one_of(
    st.binary(max_size=6),
    st.text(alphabet="aZ09-_. \t:\r\n\0", max_size=6).map(str.encode),
    st.sampled_from([b"te", b"trailers", b"upgrade", b"connection", b"keep-alive", b"transfer-encoding"]),
    st.sampled_from([b"content-length", b"0", b"5", b"0" * 19, b"9" * 19, b"9" * 20, b":status", b":path"]),
)


@given(
    st.sampled_from([b"GET", b"HEAD"]),
    st.one_of(st.sampled_from([b"200", b"204", b"304", b"103", b"500"]), octets),
    st.lists(st.tuples(octets, octets), max_size=4),
    st.booleans(),
    st.booleans(),
)
def test_the_engines_agree_on_what_a_response_may_say(
    method: bytes, status: bytes, fields: list[tuple[bytes, bytes]], end: bool, as_trailers: bool
) -> None:
    """RFC 9113 sections 8.1.1, 8.2 and 8.3: any octets in names, values and :status."""
    traces = []
    for engine in ("c", "py"):
        rig = Rig(engine).start()
        ears = rig.open(method=method)
        head = rig.peer.response(1) if as_trailers else b""
        rig.serve(
            head + rig.peer.headers(1, *([] if as_trailers else [(":status", status)]), *fields, end=end)
        )
        traces.append((heard(ears), sent_of(rig.sent()), rig.wire.open_streams))
    assert traces[0] == traces[1]
