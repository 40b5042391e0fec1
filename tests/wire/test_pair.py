"""A Wire and h2's server machine joined in memory: two implementations that have to understand each other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from h2ping.upstream.wire import WireLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.wires import Ears, Rig


class Server:
    """Echoes each request's body, as far as the windows allow, with the request's fields in front."""

    def __init__(self, settings: dict[Any, int]) -> None:
        self.machine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.machine.local_settings = h2.settings.Settings(client=False, initial_values=settings)
        self.machine.initiate_connection()
        self.waiting: dict[int, bytearray] = {}
        self.ended: set[int] = set()

    def receive(self, data: bytes) -> None:
        events = self.machine.receive_data(data)
        gone = {event.stream_id for event in events if isinstance(event, h2.events.StreamReset)}
        for event in events:
            stream = getattr(event, "stream_id", None)
            if stream in gone:
                self.waiting.pop(stream, None)
                continue
            if isinstance(event, h2.events.RequestReceived):
                names = [name for name, _ in event.headers if name.startswith(b"x-")]
                self.machine.send_headers(
                    event.stream_id, [(":status", "200"), ("x-names", b",".join(names))]
                )
                self.waiting[event.stream_id] = bytearray()
            elif isinstance(event, h2.events.DataReceived):
                self.waiting[event.stream_id] += event.data
                self.machine.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            if isinstance(event, h2.events.StreamEnded):
                self.ended.add(event.stream_id)
        self.send()

    def send(self) -> None:
        for stream, content in list(self.waiting.items()):
            while content:
                size = min(len(content), self.machine.local_flow_control_window(stream), 16_384)
                if size <= 0:
                    break
                self.machine.send_data(stream, bytes(content[:size]), pad_length=None)
                del content[:size]
            if not content and stream in self.ended:
                self.machine.send_headers(stream, [("x-sum", "done")], end_stream=True)
                del self.waiting[stream]


class Pair:
    """Both ends, and bytes that travel in pieces of any size."""

    def __init__(self, rig: Rig, server: Server, dice: random.Random) -> None:
        self.rig = rig
        self.server = server
        self.dice = dice

    def travel(self) -> bool:
        """Bytes both ways; False when there were none."""
        moved = False
        output = b"".join(bytes(piece) for piece in self.rig.wire.take_output())
        for piece in self.cut(output):
            self.server.receive(piece)
            moved = True
        for piece in self.cut(self.server.machine.data_to_send()):
            self.rig.wire.receive(piece)
            moved = True
        return moved

    def cut(self, data: bytes) -> list[bytes]:
        pieces, at = [], 0
        while at < len(data):
            size = self.dice.choice([1, 9, 100, 5_000, 70_000])
            pieces.append(data[at : at + size])
            at += size
        return pieces

    def settle(self) -> None:
        while self.travel():
            pass


SETTINGS: list[dict[Any, int]] = [
    {},
    {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1_000},
    {h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 24, h2.settings.SettingCodes.MAX_FRAME_SIZE: 1 << 20},
    {h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0},
    {h2.settings.SettingCodes.HEADER_TABLE_SIZE: 65_536},
]


@pytest.mark.parametrize(
    "settings", SETTINGS, ids=["default", "small windows", "large", "no table", "large table"]
)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_sent_comes_back(new_rig: Callable[..., Rig], settings: dict[Any, int], seed: int) -> None:
    """RFC 9113 from end to end: bodies of many sizes at once, in both directions, with trailers."""
    dice = random.Random(seed)
    rig = new_rig(WireLimits(stream_window_bytes=90_000, connection_window_bytes=120_000))
    rig.wire.start()
    pair = Pair(rig, Server(settings), dice)
    pair.settle()
    assert rig.wire.settled
    sizes = [0, 1, 1_000, 16_375, 16_384, 40_000, 150_000, 400_000]
    sent: list[tuple[Ears, bytes]] = []
    for turn in range(20):
        content = dice.randbytes(dice.choice(sizes))
        fields = [(f"x-{turn % 7}".encode(), dice.randbytes(5).hex().encode())] * dice.randrange(3)
        kind = dice.choice(["none", "whole", "trailers"])
        body = None
        if kind == "none":
            content = b""
        else:
            body = rig.body(content, complete=False, size=len(content))
            if kind == "trailers":
                body.trailers = [(b"x-request-sum", b"1")]
            body.finish()
        ears = rig.open(body, fields, method=b"POST")
        ears.hooks["data"] = lambda one: one.stream.credit(len(one.heard[-1][1]))
        sent.append((ears, content))
        if dice.random() < 0.5:
            pair.travel()
        if dice.random() < 0.2:
            rig.wire.ping(b"12345678")
    pair.settle()
    for ears, content in sent:
        assert ears.data == content
        assert ears.heard[-1] == ("end", [(b"x-sum", b"done")])
    assert rig.wire.open_streams == 0


@pytest.mark.parametrize("seed", range(3))
def test_cancelled_exchanges_leave_the_rest_alone(new_rig: Callable[..., Rig], seed: int) -> None:
    """RFC 9113 section 5.4.2: after any number of cancels the windows and tables still agree."""
    dice = random.Random(seed)
    rig = new_rig(WireLimits(stream_window_bytes=70_000, connection_window_bytes=100_000))
    rig.wire.start()
    pair = Pair(rig, Server({}), dice)
    pair.settle()
    for _ in range(60):
        ears = rig.open(rig.body(dice.randbytes(60_000)), method=b"POST")
        for _ in range(dice.randrange(4)):
            pair.travel()
        ears.stream.reset(8)
        ears.body.release()
    content = dice.randbytes(500_000)
    last = rig.open(rig.body(content), method=b"POST")
    last.hooks["data"] = lambda one: one.stream.credit(len(one.heard[-1][1]))
    pair.settle()
    assert last.data == content
    assert last.calls[-1] == "end"
    assert rig.arena.live == 1
