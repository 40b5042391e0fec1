"""Flow control against a strict peer: no byte beyond a window, no byte lost, no upload that stands still.

The peer here keeps its own books (RFC 9113 section 6.9) and breaks off on the first byte too many.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from h2ping.upstream.wire import WireLimits
from tests.support.frames import DATA, INITIAL_WINDOW_SIZE, WINDOW_UPDATE
from tests.support.wires import Ears, Rig

sizes = st.sampled_from([0, 1, 100, 1083, 5000, 16_374, 16_375, 16_376, 33_000, 120_000, 300_000])
numbers = st.integers(0, 4)
# The fixture is the engine's name and nothing else.
over_both = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), sizes, st.sampled_from(["whole", "kept", "streamed"])),
        st.tuples(st.just("arrive"), numbers, st.integers(1, 100_000)),
        st.tuples(st.just("window"), numbers, st.sampled_from([1, 50, 9_000, 70_000])),
        st.tuples(st.just("connection"), st.sampled_from([1, 50, 9_000, 70_000])),
        st.tuples(st.just("setting"), st.sampled_from([0, 1, 500, 65_535, 200_000])),
        st.tuples(st.just("hold"), st.booleans()),
        st.tuples(st.just("cancel"), numbers),
        st.tuples(st.just("again"), numbers),
        st.tuples(st.just("take")),
    ),
    min_size=5,
    max_size=40,
)


class Upload:
    """One request body and what the peer has of it."""

    def __init__(self, ears: Ears, content: bytes, window: int) -> None:
        self.ears = ears
        self.content = content
        self.window = window
        self.got = b""
        self.ended = False
        self.cancelled = False

    def arrive(self, size: int) -> None:
        """More of it comes from the client."""
        body = self.ears.body
        if body.complete or self.cancelled:
            return
        body.append(self.content[body.received : body.received + size])
        if body.received == len(self.content):
            body.finish()
        self.ears.stream.body_ready()


class Peer:
    """A server that counts."""

    def __init__(self, engine: str) -> None:
        self.rig = Rig(engine).start()
        self.window = 65_535
        self.initial = 65_535
        self.uploads: list[Upload] = []
        self.held: list[tuple[Any, bytes]] = []
        """Output the transport has not written yet, with what it must still be."""

    def open(self, size: int, how: str) -> None:
        content = bytes([len(self.uploads) + 1]) * (size // 2) + b"\0" * (size - size // 2)
        if how == "whole":
            body = self.rig.body(content)
        else:
            body = self.rig.body(size=size, complete=size == 0, kept=how == "kept")
        self.start(body, content)

    def start(self, body: Any, content: bytes) -> None:
        ears = self.rig.open(body, method=b"POST")
        self.uploads.append(Upload(ears, content, self.initial))

    def again(self, number: int) -> None:
        """A second attempt with a kept body, while the first may still be sending."""
        for upload in self.uploads[number : number + 1]:
            if upload.ears.body.kept and upload.ears.body.complete:
                self.start(upload.ears.body, upload.content)

    def arrive(self, number: int, size: int) -> None:
        for upload in self.uploads[number : number + 1]:
            upload.arrive(size)

    def grant(self, number: int, size: int) -> None:
        for upload in self.uploads[number : number + 1]:
            upload.window += size
            self.rig.serve(self.rig.peer.window(upload.ears.stream.id, size))

    def connection(self, size: int) -> None:
        self.window += size
        self.rig.serve(self.rig.peer.window(0, size))

    def setting(self, size: int) -> None:
        for upload in self.uploads:
            upload.window += size - self.initial
        self.initial = size
        self.rig.serve(self.rig.peer.settings((INITIAL_WINDOW_SIZE, size)))

    def hold(self, held: bool) -> None:
        self.rig.wire.hold_data(held)

    def cancel(self, number: int) -> None:
        for upload in self.uploads[number : number + 1]:
            upload.cancelled = True
            upload.ears.stream.reset(8)

    def take(self) -> None:
        while output := self.rig.wire.take_output():
            data = b"".join(bytes(piece) for piece in output)
            self.held.append((output, data))
            for one in self.rig.reader.read(data):
                if one.kind == DATA:
                    self.receive(one)

    def receive(self, one: Any) -> None:
        (upload,) = [item for item in self.uploads if item.ears.stream.id == one.stream]
        size = len(one.payload)
        assert not upload.ended, "DATA after END_STREAM"
        assert size == 0 or size <= min(upload.window, self.window), "a byte beyond a window"
        upload.window -= size
        self.window -= size
        upload.got += one.payload
        assert upload.content.startswith(upload.got)
        upload.ended = one.end

    def finish(self) -> None:
        """Everything is granted and everything arrives: every upload must end."""
        self.hold(False)
        self.take()
        self.connection(1 << 30)
        for number, upload in enumerate(self.uploads):
            if not upload.cancelled:
                self.grant(number, 1 << 20)
        for _ in range(100):
            for upload in self.uploads:
                upload.arrive(1 << 20)
            self.take()
        for upload in self.uploads:
            if not upload.cancelled:
                assert upload.got == upload.content
                assert upload.ended
                assert upload.ears.calls == ["upload_done"]
        for output, data in self.held:
            assert b"".join(bytes(piece) for piece in output) == data, "output was written to while it waited"


STEPS: dict[str, Any] = {
    "open": Peer.open,
    "arrive": Peer.arrive,
    "window": Peer.grant,
    "connection": Peer.connection,
    "setting": Peer.setting,
    "hold": Peer.hold,
    "cancel": Peer.cancel,
    "again": Peer.again,
    "take": Peer.take,
}


@over_both
@given(script=steps)
def test_uploads_keep_to_the_windows_and_come_to_their_end(engine: str, script: list[Any]) -> None:
    peer = Peer(engine)
    for name, *details in script:
        STEPS[name](peer, *details)
    peer.finish()
    for upload in peer.uploads:
        upload.ears.body.release()
    peer.held.clear()
    del peer.uploads[:]
    assert peer.rig.arena.used == 0
    assert peer.rig.arena.live == 0


@over_both
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 16_000), st.integers(0, 255), st.integers(0, 20_000)),
        min_size=10,
        max_size=120,
    )
)
def test_downloads_never_stall_when_bytes_are_credited(engine: str, pieces: list[Any]) -> None:
    """RFC 9113 section 6.9: a peer that fills each window gets it back as the receiver credits."""
    limits = WireLimits(stream_window_bytes=70_000, connection_window_bytes=150_000)
    rig = Rig(engine, limits).start()
    ears = [rig.open() for _ in range(3)]
    windows = {one.stream.id: 70_000 for one in ears}
    connection, owed = 150_000, dict.fromkeys(windows, 0)
    rig.serve(*[rig.peer.response(one.stream.id) for one in ears])
    for number, size, pad, credited in pieces:
        stream = ears[number].stream
        size = min(size, windows[stream.id] - pad - 1, connection - pad - 1)
        if size >= 0:
            rig.serve(rig.peer.data(stream.id, bytes(size), pad=pad))
            windows[stream.id] -= size + pad + 1
            connection -= size + pad + 1
            owed[stream.id] += size
        credited = min(credited, owed[stream.id])
        stream.credit(credited)
        owed[stream.id] -= credited
        for one in rig.sent(WINDOW_UPDATE):
            assert one.code > 0
            if one.stream:
                windows[one.stream] += one.code
            else:
                connection += one.code
        assert connection <= 150_000
        assert max(windows.values()) <= 70_000
    for ear in ears:
        ear.stream.credit(owed[ear.stream.id])
    for update in rig.sent(WINDOW_UPDATE):
        if update.stream:
            windows[update.stream] += update.code
        else:
            connection += update.code
    assert connection >= 75_000, "half a window at most is held back"
    assert min(windows.values()) >= 35_000
