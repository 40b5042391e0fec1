"""Sans-IO HTTP/2, the client's half: bytes in -> calls on receivers, calls -> bytes out.

This file names what a Wire is. `plain` holds the plain engine (h2 through its public API), `h2ping._fast.mux` the
compiled one; `make_wire` picks one. Both answer the same bytes with the same calls and equivalent frames.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import H2StreamStateMachine, StreamInputs

from h2ping._fast import IMPLEMENTATION
from h2ping.headers import is_sensitive, is_volatile

if TYPE_CHECKING:
    from h2ping.errors import UpstreamError

Fields: TypeAlias = "list[tuple[bytes, bytes]]"
"""Header or trailer fields: lower-case names, order kept."""


@dataclass(frozen=True)
class WireLimits:
    """What a Wire grants its peer and bears from it. Sizes in bytes."""

    stream_window_bytes: int = 128 << 10
    """First receive window of one stream: what a client that never reads can make us hold, so not much; a judge's
    answer fits. A stream whose client reads gets more by `WireStream.widen`: 64 KB for good would ruin downloads."""
    connection_window_bytes: int = 1 << 30
    """Receive window of the connection, what Go's client grants: a thousand streams that nobody reads, each with its
    window full, stall themselves only. What bounds memory is the stream's window."""
    max_field_section_bytes: int = 64 << 10
    """SETTINGS_MAX_HEADER_LIST_SIZE (RFC 9113 section 6.5.2): names + values + 32 a field, of one field section."""
    max_field_block_bytes: int = 256 << 10
    """One field section as it comes, compressed. More than a section may hold, so that one which is too large costs
    its stream only (RFC 9113 section 10.5.1); past this it is not even decoded, and the connection is lost."""
    max_continuations: int = 64
    """CONTINUATION frames in one field section."""
    max_idle_frames: int = 4000
    """An account of the connection's whole life: each frame of the peer takes one off, and `frame_worth_bytes` of a
    body, sent or received, bring one back. PINGs, SETTINGS, windows that open byte by byte, DATA of one byte and
    frames that say nothing wear it down; server-sent events do not, the smallest is 8 bytes. It never holds more
    than this, and `frames_a_stream` for each open stream; once spent, the owner says what time has brought."""
    frame_worth_bytes: int = 4
    content_worth_bytes: int = 2
    """What DATA brings beside its own bytes: models send what they say in tokens of two bytes and more. A short one of
    ours, because the client has sent no more, brings as much as the two WINDOW_UPDATEs cost that answer it."""
    frames_a_stream: int = 16
    """What a request brings to the account: its head, trailers, 1xx responses, RST_STREAM, WINDOW_UPDATEs."""
    max_queued_control_bytes: int = 64 << 10
    """Answers to the peer's PING and SETTINGS that it does not read."""


class Receiver(Protocol):
    """One request's ears (upstream.stream and exchange implement it). Exactly one of `on_response(end=True)`,
    `on_end` and `on_failed` is the last call."""

    def on_interim(self, status: int, fields: Fields) -> None:
        """A 1xx response, never 101 (RFC 9110 section 15.2)."""

    def on_response(self, status: int, fields: Fields, end: bool) -> None:
        """The final response head, pseudo-fields taken off; `end`: no body and no trailers follow."""

    def on_data(self, data: Any) -> None:
        """Body bytes (a buffer that stays valid while referenced). Owed to `WireStream.credit`."""

    def on_end(self, trailers: Fields | None) -> None:
        """The response is complete."""

    def on_failed(self, error: UpstreamError) -> None:
        """The stream is over without a complete response."""

    def on_upload_done(self) -> None:
        """END_STREAM was handed out (`take_output`): the request was sent whole. Called once, and not when `open`
        had no body. May come before, between or after the response calls, never after the last of them."""


class WireOwner(Protocol):
    """Who drives a Wire (upstream.connection)."""

    def on_settings(self) -> None:
        """The peer's SETTINGS were applied; read `max_streams`."""

    def on_ping_ack(self, payload: bytes) -> None:
        """An acknowledgement of one of our PINGs."""

    def more_idle_frames(self) -> int:
        """`max_idle_frames` are spent: how many more the peer may send, for the time since this was last asked."""

    def on_goaway(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """GOAWAY: streams above the id have got `on_failed` (goaway-refused), the rest go on; `can_open` is False."""

    def on_stream_closed(self) -> None:
        """`open_streams` went down by one."""

    def on_output(self) -> None:
        """There are bytes to send where there were none: call `take_output` soon."""


class WireStream(Protocol):
    """Handle on one stream."""

    id: int
    upload_done: bool
    """END_STREAM was handed out (or the stream is over)."""
    sent: int
    """Bytes of the request's body that were handed out."""

    def body_ready(self) -> None:
        """The body has more bytes, or is complete."""

    def credit(self, size: int) -> None:
        """`size` bytes of response body reached the client: give the peer the window back (RFC 9113 section 6.9)."""

    def widen(self, size: int) -> None:
        """Grant `size` bytes more than what was credited: the stream's window is larger from now on."""

    def reset(self, code: int) -> None:
        """RST_STREAM, and no further call to the receiver. A stream whose HEADERS were not yet taken by
        `take_output` still puts HEADERS first. Nothing if the stream is over in both directions."""


class RequestBody(Protocol):
    """What a Wire needs of a request body (h2ping._fast.arena). Offsets count from the body's first byte."""

    received: int
    complete: bool
    trailers: Fields | None
    """Set before the body is complete: sent as HEADERS with END_STREAM after the last DATA (RFC 9113 section 8.1)."""

    def peek(self, offset: int, size: int) -> memoryview:
        """At most `size` bytes from `offset` on, contiguous, valid until `release`."""

    def sent_to(self, offset: int) -> None:
        """Bytes below `offset` were handed to the transport."""


class Wire(Protocol):
    """One HTTP/2 connection, client side (RFC 9113)."""

    limits: WireLimits
    max_streams: int
    """The peer's SETTINGS_MAX_CONCURRENT_STREAMS, 2**31 - 1 when it sent none."""
    open_streams: int
    settled: bool
    """The peer's first SETTINGS arrived."""

    @property
    def can_open(self) -> bool:
        """False before `settled`, after a GOAWAY in either direction, after a connection error, and when stream ids
        ran out. `max_streams` is not part of it: the pool keeps count (both may be asked)."""

    def start(self) -> None:
        """Queue the connection preface and SETTINGS (RFC 9113 section 3.4)."""

    def receive_buffer(self, least: int = 0) -> memoryview:
        """Where the transport writes next: room for `least` bytes, or more."""

    def received(self, size: int) -> None:
        """`size` bytes were written there. Raises UpstreamError (protocol-error, flood) after queueing GOAWAY."""

    def receive(self, data: bytes) -> None:
        """The same for bytes at hand (tests, replays)."""

    def open(self, fields: Fields, body: RequestBody | None, receiver: Receiver) -> WireStream:
        """Send a request: pseudo-fields first; `body` None sets END_STREAM on HEADERS."""

    def ping(self, payload: bytes) -> None:
        """Queue PING with 8 bytes (RFC 9113 section 6.7)."""

    def goaway(self, code: int) -> None:
        """Queue our GOAWAY; open streams go on."""

    def abandon(self, error: UpstreamError) -> None:
        """The connection is gone: every open stream gets `on_failed(error)`; one whose HEADERS `take_output` never
        gave gets the same as NEVER_SENT. What a receiver raises comes out once all have heard."""

    def hold_data(self, held: bool) -> None:
        """While held, `take_output` gives control frames and HEADERS, no DATA (the transport is full)."""

    def take_output(self) -> list[memoryview | bytes]:
        """Bytes for the transport: control frames and HEADERS first, then DATA, at most `OUTPUT_BYTES` of it, fairly
        from the streams that may send. Call again (on_output) while there is more."""


class StreamRules:
    """h2's state machine of a stream as a table: walked once, through every state that `steps` lead to.

    `steps` are names of h2's inputs, in the order of the table's columns; `refused` is no state's number. The states
    are numbered from the new stream, 0. h2 itself takes a microsecond for each step of each stream.
    """

    def __init__(self, steps: tuple[str, ...], refused: int) -> None:
        self._inputs = [StreamInputs[step] for step in steps]
        self._machines = [H2StreamStateMachine(0)]
        numbers = {_state(self._machines[0]): 0}
        moves = bytearray()
        for machine in self._machines:  # grows meanwhile
            for step in self._inputs:
                after = copy.copy(machine)
                try:
                    after.process_input(step)
                except ProtocolError:
                    moves.append(refused)
                    continue
                number = numbers.setdefault(_state(after), len(self._machines))
                if number == len(self._machines):
                    self._machines.append(after)
                moves.append(number)
        self.moves = bytes(moves)
        """At state * len(steps) + step: the next state, or `refused`."""

    def refuse(self, state: int, step: int, stream_id: int) -> None:
        """Raise what h2 raises for such a step."""
        machine = copy.copy(self._machines[state])
        machine.stream_id = stream_id
        machine.process_input(self._inputs[step])


def _state(machine: H2StreamStateMachine) -> tuple[object, ...]:
    return tuple(value for name, value in sorted(vars(machine).items()) if name != "stream_id")


stream_rules = functools.cache(StreamRules)
"""The one table of the process."""


class Machines(NamedTuple):
    """What the compiled engine takes of h2."""

    connection: H2Connection
    stream_rules: StreamRules
    protocol_error: type[ProtocolError]
    connection_send_headers: ConnectionInputs = ConnectionInputs.SEND_HEADERS


def h2_machines(limits: WireLimits, rules: StreamRules) -> Machines:
    """h2's part of a compiled Wire. Its machines are undocumented: tests/unit/test_h2_internals_contract.py."""
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    # As initial values: h2 overwrites what `update_settings` says before `initiate_connection`.
    connection.local_settings = Settings(
        client=True,
        initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_field_section_bytes,
        },
    )
    return Machines(connection, rules, ProtocolError)


def classify_field(name: bytes) -> int:
    """How HPACK writes a field of that name: 0 into the table, 1 not, 2 never (RFC 7541 section 6.2)."""
    return 2 if is_sensitive(name) else 1 if is_volatile(name) else 0


def compiled_wire(owner: WireOwner, limits: WireLimits) -> Wire:
    """A Wire of the compiled engine."""
    from h2ping._fast.mux import REFUSED_STEP, STREAM_STEPS, Mux  # type: ignore[import-not-found]

    rules = stream_rules(STREAM_STEPS, REFUSED_STEP)
    wire: Wire = Mux(owner, limits, h2_machines(limits, rules), classify_field)
    return wire


def make_wire(owner: WireOwner, limits: WireLimits | None = None) -> Wire:
    """A Wire of the engine this process runs."""
    limits = WireLimits() if limits is None else limits
    if IMPLEMENTATION == "compiled":
        return compiled_wire(owner, limits)
    from h2ping.upstream.plain import PlainWire

    return PlainWire(owner, limits)
