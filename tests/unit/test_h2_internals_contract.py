"""What the compiled engine takes from h2 beyond its documentation, pinned: a change of it fails here."""

from __future__ import annotations

import random

import pytest
from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import H2StreamStateMachine, StreamInputs

from h2ping.upstream.wire import Machines, StreamRules, WireLimits, h2_machines


def frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + bytes(4) + payload


@pytest.fixture
def machines() -> Machines:
    """Past both prefaces."""
    made = h2_machines(WireLimits(), RULES)
    made.connection.initiate_connection()
    made.connection.data_to_send()
    made.connection.receive_data(frame(4))
    made.connection.data_to_send()
    return made


@pytest.fixture
def stream(machines: Machines) -> H2StreamStateMachine:
    """A stream whose request was sent whole."""
    made = H2StreamStateMachine(1)
    made.process_input(StreamInputs.SEND_HEADERS)
    made.process_input(StreamInputs.SEND_END_STREAM)
    return made


STEPS = {
    "send_headers": StreamInputs.SEND_HEADERS,
    "send_end_stream": StreamInputs.SEND_END_STREAM,
    "send_reset": StreamInputs.SEND_RST_STREAM,
    "receive_headers": StreamInputs.RECV_HEADERS,
    "receive_interim": StreamInputs.RECV_INFORMATIONAL_HEADERS,
    "receive_end_stream": StreamInputs.RECV_END_STREAM,
    "receive_reset": StreamInputs.RECV_RST_STREAM,
}
INPUTS = list(STEPS.values())
REFUSED = 255
RULES = StreamRules(tuple(step.name for step in INPUTS), REFUSED)


def test_the_compiled_engine_walks_the_same_steps() -> None:
    mux = pytest.importorskip("h2ping._fast.mux", reason="the compiled engine is not built")
    assert {StreamInputs[name] for name in mux.STREAM_STEPS} == set(INPUTS)
    assert mux.REFUSED_STEP == REFUSED


def test_after_one_request_requests_responses_and_resets_leave_the_connections_state(
    machines: Machines,
) -> None:
    """So the compiled engine tells h2's connection of the first request only."""
    machine = machines.connection.state_machine
    machine.process_input(machines.connection_send_headers)
    state = machine.state
    for step in (
        ConnectionInputs.SEND_HEADERS, ConnectionInputs.RECV_HEADERS, ConnectionInputs.SEND_RST_STREAM,
        ConnectionInputs.RECV_RST_STREAM,
    ):  # fmt: skip
        assert machine.process_input(step) == []
        assert machine.state == state


@pytest.mark.parametrize("seed", range(500))
def test_the_table_takes_and_refuses_what_h2s_machine_does(seed: int) -> None:
    machine, state = H2StreamStateMachine(7), 0
    for number in random.Random(seed).choices(range(len(INPUTS)), k=12):
        following = RULES.moves[state * len(INPUTS) + number]
        if following == REFUSED:
            with pytest.raises(ProtocolError) as expected:
                machine.process_input(INPUTS[number])
            with pytest.raises(type(expected.value)) as caught:
                RULES.refuse(state, number, 7)
            assert str(caught.value) == str(expected.value)
            return
        machine.process_input(INPUTS[number])
        state = following


@pytest.mark.parametrize(
    "steps",
    [
        ("receive_headers", "receive_end_stream"),
        ("receive_interim", "receive_interim", "receive_headers", "receive_headers", "receive_end_stream"),
        ("receive_reset",),
        ("send_reset",),
        ("receive_headers", "receive_reset"),
        ("receive_headers", "send_reset"),
    ],
    ids=" ".join,
)
def test_a_streams_machine_lets_every_legal_response_pass(
    stream: H2StreamStateMachine, steps: tuple[str, ...]
) -> None:
    for step in steps:
        stream.process_input(STEPS[step])


@pytest.mark.parametrize(
    "steps",
    [
        ("receive_end_stream", "receive_headers"),
        ("receive_headers", "receive_interim"),
        ("receive_headers", "receive_headers", "receive_headers"),
        ("send_headers",),
    ],
    ids=" ".join,
)
def test_a_streams_machine_refuses_what_comes_out_of_turn(
    stream: H2StreamStateMachine, steps: tuple[str, ...]
) -> None:
    *legal, illegal = steps
    for step in legal:
        stream.process_input(STEPS[step])
    with pytest.raises(ProtocolError):
        stream.process_input(STEPS[illegal])


def test_an_upload_may_end_after_the_response() -> None:
    stream = H2StreamStateMachine(1)
    for step in ("send_headers", "receive_headers", "receive_end_stream", "send_headers", "send_end_stream"):
        stream.process_input(STEPS[step])


def test_initial_settings_survive_initiate_connection() -> None:
    """`update_settings` before it would not."""
    limits = WireLimits(stream_window_bytes=123_456, max_field_section_bytes=7890)
    connection = h2_machines(limits, RULES).connection
    connection.initiate_connection()
    sent = connection.data_to_send()
    assert (4).to_bytes(2, "big") + (123_456).to_bytes(4, "big") in sent
    assert (6).to_bytes(2, "big") + (7890).to_bytes(4, "big") in sent
    assert (2).to_bytes(2, "big") + bytes(4) in sent


def test_settings_are_read_from_remote_settings_and_acknowledged(machines: Machines) -> None:
    connection = machines.connection
    pairs = ((3, 7), (4, 99), (0x99, 5))
    connection.receive_data(
        frame(4, 0, b"".join(key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in pairs))
    )
    assert connection.remote_settings.max_concurrent_streams == 7
    assert connection.remote_settings.initial_window_size == 99
    assert connection.data_to_send() == frame(4, 1)


def test_no_setting_means_no_limit_of_streams(machines: Machines) -> None:
    assert machines.connection.remote_settings.max_concurrent_streams > 2**31


@pytest.mark.parametrize(
    ("setting", "value", "code"),
    [(4, 2**31, 3), (5, 16_383, 1), (5, 2**24, 1)],
    ids=["window", "small", "large"],
)
def test_a_setting_out_of_range_raises_with_its_code(
    machines: Machines, setting: int, value: int, code: int
) -> None:
    with pytest.raises(ProtocolError) as caught:
        machines.connection.receive_data(frame(4, 0, setting.to_bytes(2, "big") + value.to_bytes(4, "big")))
    assert caught.value.error_code == code


def test_ping_is_answered_and_sent(machines: Machines) -> None:
    connection = machines.connection
    connection.receive_data(frame(6, 0, b"12345678"))
    assert connection.data_to_send() == frame(6, 1, b"12345678")
    connection.ping(b"abcdefgh")
    assert connection.data_to_send() == frame(6, 0, b"abcdefgh")
    connection.receive_data(frame(6, 1, b"abcdefgh"))
    assert connection.data_to_send() == b""


def test_any_goaway_closes_h2s_machine_which_is_why_it_never_sees_one(machines: Machines) -> None:
    """When this fails, h2 may have learnt to drain: look whether the detour can go."""
    connection = machines.connection
    connection.receive_data(frame(7, 0, bytes(8)))
    with pytest.raises(ProtocolError):
        connection.ping(b"abcdefgh")


def test_local_settings_may_be_replaced() -> None:
    connection = H2Connection(H2Configuration(client_side=True))
    connection.local_settings = Settings(client=True, initial_values={SettingCodes.ENABLE_PUSH: 0})
    connection.initiate_connection()
