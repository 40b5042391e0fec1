"""A Wire of either engine between a scripted server and receivers that write down what they hear."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from h2ping.errors import UpstreamError
from h2ping.upstream.wire import WireLimits, compiled_wire
from tests.support.frames import (
    DATA,
    GOAWAY,
    HEADERS,
    RST_STREAM,
    WINDOW_UPDATE,
    FrameFactory,
    FrameReader,
    Sent,
)

REQUEST = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"origin.test"), (b":path", b"/v1")]


def new_wire(engine: str, owner: Any, limits: WireLimits) -> Any:
    """A Wire of the engine `c` or `py`."""
    if engine == "py":
        return importlib.import_module("h2ping.upstream.plain").PlainWire(owner, limits)
    return compiled_wire(owner, limits)


def new_arena(engine: str, limit: int = 0) -> Any:
    """An Arena of the same engine."""
    name = {"c": "h2ping._fast.arena", "py": "h2ping._fast.arena_py"}[engine]
    return importlib.import_module(name).Arena(limit)


class Ears:
    """A receiver; every call goes to the rig's log with the stream's id."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.stream: Any = None
        self.body: Any = None
        self.heard: list[tuple[Any, ...]] = []
        self.data = b""
        self.hooks: dict[str, Any] = {}
        """Called with these ears after the call of that name was written down."""

    def _hear(self, name: str, *details: Any) -> None:
        assert not self.over, f"{name} after the last call"
        self.heard.append((name, *details))
        self.rig.log.append((self.stream.id if self.stream else None, name, *details))
        if name in self.hooks:
            self.hooks[name](self)

    @property
    def calls(self) -> list[str]:
        """Names of the calls, without DATA."""
        return [call[0] for call in self.heard if call[0] != "data"]

    @property
    def over(self) -> bool:
        """The last call has come."""
        return bool(self.heard) and (
            self.heard[-1][0] in ("end", "failed") or (self.heard[-1][0] == "response" and self.heard[-1][3])
        )

    @property
    def failure(self) -> UpstreamError:
        """The error of `on_failed`."""
        assert self.heard, "heard nothing"
        assert self.heard[-1][0] == "failed", self.heard
        error: UpstreamError = self.heard[-1][-1]
        return error

    def on_interim(self, status: int, fields: Any) -> None:
        self._hear("interim", status, list(fields))

    def on_response(self, status: int, fields: Any, end: bool) -> None:
        self._hear("response", status, list(fields), end)

    def on_data(self, data: Any) -> None:
        self.data += bytes(data)
        self._hear("data", bytes(data))

    def on_end(self, trailers: Any) -> None:
        self._hear("end", trailers)

    def on_failed(self, error: UpstreamError) -> None:
        self._hear("failed", error)

    def on_upload_done(self) -> None:
        self._hear("upload_done")


class Rig:
    """The Wire, its owner, and the server's side of it."""

    def __init__(self, engine: str, limits: WireLimits | None = None, *settings: tuple[int, int]) -> None:
        self.engine = engine
        self.log: list[tuple[Any, ...]] = []
        self.output_calls = 0
        self.peer = FrameFactory()
        self.reader = FrameReader()
        self.arena = new_arena(engine)
        self.wire = new_wire(engine, self, limits or WireLimits())
        self.hooks: dict[str, Any] = {}
        self.settings = settings

    # --- WireOwner
    def _told(self, name: str, *details: Any) -> None:
        self.log.append((0, name, *details))
        if name in self.hooks:
            self.hooks[name]()

    def on_settings(self) -> None:
        self._told("settings")

    more_frames = 0
    """What time has brought to limits.max_idle_frames since the Wire last asked."""

    def more_idle_frames(self) -> int:
        more, self.more_frames = self.more_frames, 0
        return more

    def on_ping_ack(self, payload: Any) -> None:
        self._told("ping_ack", bytes(payload))

    def on_goaway(self, last_stream_id: int, code: int, debug: Any) -> None:
        self._told("goaway", last_stream_id, code, bytes(debug))

    def on_stream_closed(self) -> None:
        self._told("stream_closed")

    def on_output(self) -> None:
        self.output_calls += 1

    # --- the script
    def start(self) -> Rig:
        """Both prefaces, each acknowledged."""
        self.wire.start()
        self.first = self.sent()
        self.serve(self.peer.settings(*self.settings), self.peer.settings_ack())
        self.sent()
        self.log.clear()
        return self

    def serve(self, *frames: bytes) -> None:
        """The server's bytes arrive, in one piece."""
        self.wire.receive(b"".join(frames))

    def fault(self, *frames: bytes) -> tuple[UpstreamError, int]:
        """They arrive and are the connection's end: the error raised, and the code of the GOAWAY that was
        queued."""
        with pytest.raises(UpstreamError) as caught:
            self.serve(*frames)
        assert not self.wire.can_open
        sent = self.sent()
        assert sent, "no GOAWAY"
        assert sent[-1].kind == GOAWAY, sent
        self.serve(self.peer.ping())  # a dead Wire takes what still comes and does nothing
        assert self.sent() == []
        return caught.value, sent[-1].code

    def body(
        self, content: bytes = b"", *, size: int | None = None, complete: bool = True, kept: bool = True
    ) -> Any:
        """A request body that holds `content`; `size` when more will come."""
        body = self.arena.open(size if size is not None else (len(content) if complete else None), kept)
        assert body.append(content) == len(content)
        if complete:
            body.finish()
        return body

    def open(self, body: Any = None, fields: Any = (), method: bytes = b"GET") -> Ears:
        """Send a request."""
        ears = Ears(self)
        ears.body = body
        ears.stream = self.wire.open([(b":method", method), *REQUEST[1:], *fields], body, ears)
        return ears

    def take(self) -> list[Sent]:
        """Frames of one `take_output`."""
        return self.reader.read(b"".join(bytes(piece) for piece in self.wire.take_output()))

    def sent(self, *kinds: int) -> list[Sent]:
        """All frames there are to send; only those of the given kinds."""
        frames: list[Sent] = []
        for _ in range(10_000):
            output = self.wire.take_output()
            if not output:
                break
            frames += self.reader.read(b"".join(bytes(piece) for piece in output))
        else:
            raise AssertionError("take_output never comes to an end")
        return [one for one in frames if not kinds or one.kind in kinds]

    def resets(self) -> list[tuple[int, int]]:
        """RST_STREAM frames there are to send: (stream, code)."""
        return [(one.stream, one.code) for one in self.sent(RST_STREAM)]

    def uploaded(self) -> dict[int, int]:
        """Bytes of DATA there are to send, by stream."""
        sizes: dict[int, int] = {}
        for one in self.sent(DATA):
            sizes[one.stream] = sizes.get(one.stream, 0) + len(one.payload)
        return sizes

    def credit(self) -> dict[int, int]:
        """Sums of the WINDOW_UPDATE frames there are to send, by stream."""
        sums: dict[int, int] = {}
        for one in self.sent(WINDOW_UPDATE):
            sums[one.stream] = sums.get(one.stream, 0) + one.code
        return sums

    def requests(self) -> list[Sent]:
        """HEADERS there are to send."""
        return self.sent(HEADERS)
