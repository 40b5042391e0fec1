"""Both engines, the same random story: the same calls on receivers and owner, the same frames to the peer.

A story is a list of actions: what the server sends (well-formed or not, whole or in pieces), what our side
does, and how a receiver reacts inside a call. What may differ is left out of the comparison: where DATA is
cut, the order of frames of different streams, and when WINDOW_UPDATE is sent (tests/wire has its rules).

`H2PING_STORIES` sets how many are told (`make stories`: 100,000, weekly; a few hundred otherwise).
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from h2ping._fast import IMPLEMENTATION
from h2ping.errors import CONNECTION_LOST, UpstreamError
from h2ping.upstream.wire import WireLimits
from tests.support import frames
from tests.support.frames import DATA, GOAWAY, HEADERS, WINDOW_UPDATE, frame
from tests.support.wires import Ears, Rig

STORIES = int(os.environ.get("H2PING_STORIES", "400"))
SHARDS = 8

Action = tuple[Any, ...]

LIMITS = WireLimits(
    max_field_section_bytes=4096,
    max_continuations=4,
    max_idle_frames=40,
    max_queued_control_bytes=400,
)
NAMES = ("server", "x-id", "content-type", "set-cookie", "X-Upper", "", "connection", "te", "sp ace")
VALUES = ("", "v", "text/event-stream", " leading", "trailing ", "new\nline", "nul\0", "v" * 300, "\x80")
STATUSES = ("200", "204", "304", "404", "500", "100", "103", "101", "99", "1000", "20x", "")
CODES = (0, 1, 2, 7, 8, 11, 0xFFFF)
OURS, MORE, THEIRS = (
    bytes(i * step % prime for i in range(prime)) * 800 for step, prime in ((1, 251), (7, 251), (1, 253))
)
"""Contents of bodies, longer than any; their periods are no size of anything."""


class Story:
    """Makes one story from a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.opened = 0
        self.calm = self.dice.random()
        """How rarely the server breaks a rule."""

    def tell(self) -> list[Action]:
        """The actions."""
        return [self._action() for _ in range(self.dice.randrange(4, 40))]

    def _odd(self, chance: float = 0.05) -> bool:
        return self.dice.random() < chance * (1 - self.calm)

    def _stream(self) -> int:
        if self._odd():
            return self.dice.choice((0, 2, 4, 99, 2**31 - 1))
        return 2 * self.dice.randrange(max(self.opened, 1)) + 1

    def _action(self) -> Action:
        dice = self.dice
        roll = dice.random()
        if self.opened == 0 or roll < 0.15:
            self.opened += 1
            return self._open()
        if roll < 0.70:
            sent = [self._frame() for _ in range(dice.choice((1, 1, 1, 2, 3, 6)))]
            return ("serve", tuple(sent), dice.choice((None, None, 1, 7, 1000)))
        if roll < 0.80:
            return (
                "more",
                dice.randrange(self.opened),
                dice.choice((0, 1, 3000, 20_000, 90_000)),
                dice.random() < 0.4,
            )
        if roll < 0.86:
            return ("credit", dice.randrange(self.opened), dice.choice((1, 100, 70_000, 10**9)))
        if roll < 0.92:
            return ("reset", dice.randrange(self.opened), dice.choice(CODES))
        if roll < 0.95:
            return ("hold", dice.random() < 0.5)
        if roll < 0.96:
            return ("goaway", dice.choice(CODES))
        if roll < 0.97:
            return ("ping", bytes(dice.randrange(256) for _ in range(8)))
        return ("take",)

    def _open(self) -> Action:
        dice = self.dice
        size = dice.choice((None, None, 0, 1, 5000, 16_375, 16_376, 70_000, 200_000))
        more = dice.random() < 0.4
        hooks = tuple(
            (name, dice.choice(("reset", "credit", "open", "reset other", "more")))
            for name in ("response", "data", "end", "failed", "interim", "upload_done")
            if dice.random() < 0.12
        )
        trailers = dice.random() < 0.2
        return (
            "open",
            dice.choice((b"GET", b"POST", b"HEAD")),
            size,
            more,
            dice.random() < 0.5,
            trailers,
            hooks,
        )

    def _fields(self) -> tuple[tuple[str, str], ...]:
        dice = self.dice
        good = [(n, v) for n in ("server", "x-id", "etag") for v in ("", "v", "gzip")]
        bad = [(dice.choice(NAMES), dice.choice(VALUES))] if self._odd(0.3) else []
        return tuple(dice.sample(good, dice.randrange(3)) + bad)

    def _frame(self) -> Action:
        dice = self.dice
        stream = self._stream()
        end = dice.random() < 0.4
        roll = dice.random()
        pad = dice.choice((None, None, None, 0, 1, 255))
        if roll < 0.35:
            status = dice.choice(STATUSES) if self._odd(0.5) else dice.choice(("200", "200", "103", "204"))
            fields: tuple[tuple[str, str], ...] = ((":status", status), *self._fields())
            if dice.random() < 0.4:
                length = dice.choice(("0", "5", "10", "20000", "-1", "5, 5", "1" * 19, "1" * 20))
                fields += (("content-length", length),)
            if self._odd(0.2):
                fields += ((":status", "200"),)
            if status == "103" and not self._odd():
                end = False
            cut = dice.choice((None, None, 1, 10, 3))
            return ("headers", stream, fields, end, pad if cut is None else None, cut)
        if roll < 0.42:
            return ("headers", stream, self._fields(), end or not self._odd(), None, None)
        if roll < 0.75:
            return ("data", stream, dice.choice((0, 1, 5, 5, 10, 3000, 16_000)), end, pad)
        if roll < 0.80:
            return ("window", self._stream() if dice.random() < 0.7 else 0, self._increment())
        if roll < 0.84:
            return ("reset", stream, dice.choice(CODES))
        if roll < 0.87:
            return ("settings", self._settings())
        if roll < 0.90:
            return ("ping", dice.random() < 0.3)
        if roll < 0.92:
            return ("goaway", dice.choice((0, 1, 3, 5, 2**31 - 1)), dice.choice(CODES))
        if roll < 0.94:
            return ("priority", stream, dice.choice((0, 1, 3)))
        if roll < 0.96 or not self._odd(0.5):
            kind, flags, payload = dice.randrange(10, 256), dice.randrange(256), b"?" * dice.randrange(20)
            return ("raw", frame(kind, flags, stream, payload))
        return ("raw", self._broken())

    def _increment(self) -> int:
        return self.dice.choice((0, 2**31 - 1) if self._odd(0.4) else (1, 1000, 65_535, 10**6))

    def _settings(self) -> tuple[tuple[int, int], ...]:
        dice = self.dice
        choices = [
            (frames.HEADER_TABLE_SIZE, dice.choice((0, 100, 4096, 65_536))),
            (frames.MAX_CONCURRENT_STREAMS, dice.choice((0, 1, 100, 2**32 - 1))),
            (frames.INITIAL_WINDOW_SIZE, dice.choice((0, 100, 65_535, 10**6, 2**31 - 1))),
            (frames.MAX_FRAME_SIZE, dice.choice((16_384, 2**24 - 1))),
            (0x99, dice.randrange(2**32)),
        ]
        if self._odd(0.3):
            choices += [(frames.ENABLE_PUSH, 1), (frames.INITIAL_WINDOW_SIZE, 2**31)]
            choices += [(frames.MAX_FRAME_SIZE, 1)]
        return tuple(dice.sample(choices, dice.randrange(3)))

    def _broken(self) -> bytes:
        dice = self.dice
        return frame(
            dice.randrange(11),
            dice.choice((0, 1, 4, 8, 0x20, 0x2D)),
            self._stream() if dice.random() < 0.7 else 0,
            bytes(dice.randrange(256) for _ in range(dice.choice((0, 1, 3, 4, 5, 6, 8, 9)))),
            length=dice.choice((None, None, None, 16_385)),
        )


class Stage:
    """One engine, on which a story is played."""

    def __init__(self, engine: str) -> None:
        self.rig = Rig(engine, LIMITS, (frames.INITIAL_WINDOW_SIZE, 40_000)).start()
        self.rig.serve(self.rig.peer.window(0, 2**31 - 1 - 65_535))
        self.ears: list[Ears] = []
        self.over = False

    def play(self, action: Action) -> Any:
        """Do it; what was to be seen of it."""
        self.rig.log.clear()
        try:
            getattr(self, "_" + action[0])(*action[1:])
            error = None
        except UpstreamError as fault:
            error = (fault.cause.token, fault.code)
        sent = self._sent() if action[0] == "take" or error else {}
        if error:
            self.rig.wire.abandon(UpstreamError(CONNECTION_LOST))
            self.over = True
        wire = self.rig.wire
        # A frame of settings that is the connection's end may have been applied up to where it was wrong.
        max_streams = None if error else wire.max_streams
        return error, self._calls(), sent, (wire.open_streams, wire.can_open, max_streams)

    # --- what was to be seen
    def _calls(self) -> dict[Any, list[Any]]:
        calls: dict[Any, list[Any]] = {}
        for who, name, *details in self.rig.log:
            heard = calls.setdefault(who, [])
            if name == "data" and heard and heard[-1][0] == "data":
                heard[-1] = ("data", heard[-1][1] + details[0])
            elif name == "failed":
                error = details[0]
                heard.append((name, error.cause.token, error.processed, error.code))
            else:
                heard.append((name, *details))
        return calls

    def _sent(self) -> dict[int, list[Any]]:
        seen: dict[int, list[Any]] = {}
        for sent in self.rig.sent():
            if sent.kind == WINDOW_UPDATE:
                continue
            line = seen.setdefault(sent.stream, [])
            if sent.kind == DATA:
                if line and line[-1][0] == DATA:
                    line[-1] = (DATA, line[-1][1] + sent.payload, sent.end)
                elif sent.payload or sent.end:
                    line.append((DATA, sent.payload, sent.end))
            elif sent.kind == HEADERS:
                line.append((HEADERS, sent.fields, sent.end, sorted(sent.never_indexed)))
            elif sent.kind == GOAWAY:
                line.append((GOAWAY, sent.code))
            else:
                line.append((sent.kind, sent.flags, sent.payload))
        return seen

    # --- our side
    def _open(
        self, method: bytes, size: int | None, more: bool, kept: bool, trailers: bool, hooks: Any
    ) -> None:
        if not self.rig.wire.can_open or self.rig.wire.open_streams >= self.rig.wire.max_streams:
            return
        body = None
        if size is not None:
            body = self.rig.arena.open(None if more else size, kept)
            taken = body.append(OURS[:size])
            if trailers:
                body.trailers = [(b"x-sum", b"1")]
            if not more and taken == size:
                body.finish()
        ears = Ears(self.rig)
        ears.body = body
        ears.stream = self.rig.wire.open(
            [
                (b":method", method),
                (b":path", b"/"),
                (b"authorization", b"secret"),
                (b"x-n", b"%d" % len(self.ears)),
            ],
            body,
            ears,
        )
        for name, reaction in hooks:
            ears.hooks[name] = lambda ears, reaction=reaction: self._react(ears, reaction)
        self.ears.append(ears)

    def _react(self, ears: Ears, reaction: str) -> None:
        if reaction == "reset":
            ears.stream.reset(8)
        elif reaction == "credit":
            ears.stream.credit(1000)
        elif reaction == "reset other" and self.ears:
            self.ears[0].stream.reset(5)
        elif reaction == "more":
            self._more(0, 3000, True)
        elif reaction == "open" and len(self.ears) < 30:
            self._open(b"GET", None, False, True, False, ())

    def _more(self, index: int, size: int, finish: bool) -> None:
        body = self.ears[index].body if index < len(self.ears) else None
        if body is None or body.complete:
            return
        body.append(MORE[:size])
        if finish:
            body.finish()
        self.ears[index].stream.body_ready()

    def _credit(self, index: int, size: int) -> None:
        if index < len(self.ears):
            self.ears[index].stream.credit(size)

    def _reset(self, index: int, code: int) -> None:
        if index < len(self.ears):
            self.ears[index].stream.reset(code)

    def _hold(self, held: bool) -> None:
        self.rig.wire.hold_data(held)

    def _goaway(self, code: int) -> None:
        self.rig.wire.goaway(code)

    def _ping(self, payload: bytes) -> None:
        self.rig.wire.ping(payload)

    def _take(self) -> None:
        """What there is to send is read after every action of this name."""

    # --- the server's side
    def _serve(self, sent: tuple[Action, ...], piece: int | None) -> None:
        data = b"".join(self._bytes(*one) for one in sent)
        if any("data" in ears.hooks for ears in self.ears):
            piece = (
                None  # the compiled engine hands out pieces of a frame, so the reaction would come earlier
            )
        for at in range(0, len(data), piece or len(data) or 1):
            self.rig.wire.receive(data[at : at + (piece or len(data))])

    def _bytes(self, kind: str, *details: Any) -> bytes:
        peer = self.rig.peer
        if kind == "headers":
            stream, fields, end, pad, cut = details
            if cut is None:
                return peer.headers(stream, *fields, end=end, pad=pad)
            block = peer.block(*fields)
            return peer.headers(stream, block=block[:cut], end=end, end_headers=False) + peer.continuation(
                stream, block[cut:], end_headers=True
            )
        if kind == "data":
            stream, size, end, pad = details
            return peer.data(stream, THEIRS[:size], end=end, pad=pad)
        if kind == "ping":
            return peer.ping(ack=details[0])
        if kind == "settings":
            return peer.settings(*details[0])
        if kind == "raw":
            raw: bytes = details[0]
            return raw
        made: bytes = getattr(peer, kind)(*details)
        return made


def difference(story: list[Action]) -> str:
    """Where the engines part in this story; empty when they do not."""
    compiled, plain = Stage("c"), Stage("py")
    for step, action in enumerate(story):
        one, other = compiled.play(action), plain.play(action)
        if one != other:
            return f"step {step} {action}\n c: {one}\npy: {other}"
        if compiled.over:
            return ""
    one, other = compiled.play(("take",)), plain.play(("take",))
    if one != other:
        return f"at the end\n c: {one}\npy: {other}"
    for stage in (compiled, plain):
        stage.rig.wire.abandon(UpstreamError(CONNECTION_LOST))
    one, other = compiled.play(("take",)), plain.play(("take",))
    return "" if one == other else f"abandoned\n c: {one}\npy: {other}"


def shortest(story: list[Action]) -> list[Action]:
    """The story without the actions that do not matter to its difference."""
    at = 0
    while at < len(story):
        shorter = story[:at] + story[at + 1 :]
        if difference(shorter):
            story = shorter
        else:
            at += 1
    return story


@pytest.mark.skipif(
    IMPLEMENTATION != "compiled", reason="the compiled engine was not built, or is switched off"
)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_engines_agree_on_every_story(shard: int) -> None:
    """Whatever the peer sends and whatever we do: same calls, same faults, equivalent frames."""
    first = int(os.environ.get("H2PING_FIRST_STORY", "0"))
    for seed in range(first + shard, first + STORIES, SHARDS):
        story = Story(seed).tell()
        if difference(story):
            story = shortest(story)
            lines = "\n".join(map(repr, story))
            raise AssertionError(f"seed {seed}\n{lines}\n{difference(story)}")
