"""The load client tells a whole answer from a death. Its server here is the origin's HTTP/1.1 face."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from h2ping.lab.certificate import Certificate
from h2ping.lab.client import LoadClient
from h2ping.lab.origin import LabOrigin
from h2ping.lab.relay import Relay
from h2ping.lab.script import Script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(scope="module")
def certificate() -> Iterator[Certificate]:
    made = Certificate()
    yield made
    made.close()


@pytest.fixture
async def origin(certificate: Certificate) -> AsyncIterator[LabOrigin]:
    async with LabOrigin(Script(alpn=("http/1.1",)), certificate=certificate) as started:
        yield started


@pytest.fixture
async def client(origin: LabOrigin) -> AsyncIterator[LoadClient]:
    tls = origin.certificate.client_context(("http/1.1",))
    async with LoadClient(origin.port, tls=tls) as opened:
        yield opened


async def test_a_whole_answer_lives_and_its_connection_is_used_again(
    origin: LabOrigin, client: LoadClient
) -> None:
    for name in ("a", "b"):
        outcome = await client.call(name, body=b"{}")
        assert outcome.lived
        assert outcome.executions == 1
        assert outcome.words == "200"
    assert origin.turns == 1


async def test_calls_at_the_same_time_have_connections_of_their_own(
    origin: LabOrigin, client: LoadClient
) -> None:
    outcomes = await asyncio.gather(*(client.call(str(index), body=b"{}") for index in range(20)))
    assert all(outcome.lived for outcome in outcomes)
    assert len(origin.executions) == 20


async def test_events_are_one_answer(origin: LabOrigin, client: LoadClient) -> None:
    outcome = await client.call("events", body=b'{"stream":true}', fields=[("x-lab-event-gap", "0")])
    assert outcome.lived
    assert outcome.body.startswith(b"data: ")


async def test_an_error_status_is_no_life(origin: LabOrigin, client: LoadClient) -> None:
    outcome = await client.call("a", body=b"{}", fields=[("x-lab-status", "503")])
    assert not outcome.lived
    assert outcome.words == "503"


@pytest.mark.parametrize("mode", ["fin", "rst"])
async def test_half_an_answer_with_status_200_is_a_death(
    origin: LabOrigin, client: LoadClient, mode: str
) -> None:
    outcome = await client.call(
        "half", fields=[("x-lab-size", "100"), ("x-lab-half", "10"), ("x-lab-cut", mode)]
    )
    assert not outcome.lived
    assert outcome.words.startswith("connection ")


async def test_a_refused_connection_is_on_record(origin: LabOrigin) -> None:
    async with Relay(origin.port) as relay:
        relay.refuse()
        outcome = await LoadClient(relay.port).call("nobody")
    assert outcome.error == "refused"


async def test_silence_past_the_relays_cut_is_a_death(origin: LabOrigin) -> None:
    async with Relay(origin.port, idle_cut=0.2) as relay:
        tls = origin.certificate.client_context(("http/1.1",))
        async with LoadClient(relay.port, tls=tls) as client:
            outcome = await client.call("slow", fields=[("x-lab-delay", "5")])
    assert outcome.error in ("reset", "closed")
    assert outcome.elapsed < 5


async def test_patience_that_runs_out_is_on_record(origin: LabOrigin, client: LoadClient) -> None:
    outcome = await client.call("slow", fields=[("x-lab-delay", "30")], patience=0.05)
    assert outcome.error == "timeout"
    await origin.until(lambda: origin.outcomes["lost"] == 1)
