"""Which address is tried when: h2ping.upstream.reach, RFC 8305."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from h2ping.upstream import reach as reach_module
from h2ping.upstream.reach import NotReachedError, Reach

V6, V4 = socket.AF_INET6, socket.AF_INET
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
NO_ROUTE = OSError(errno.ENETUNREACH, "unreachable")
HANGS = None


class World:
    """A resolver that knows `outcomes`, and connects that end as they say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **outcomes: object) -> None:
        self.outcomes = outcomes
        """Name of an address, `six...` or `four...`: HANGS, an error, or what stands for the socket."""
        self.tried: list[str] = []
        self.reach = Reach()
        self.lookups = 0
        monkeypatch.setattr(reach_module, "_resolve", self.resolve)
        monkeypatch.setattr(reach_module, "_connect", self.attempt)

    def resolve(self, host: str, port: int) -> asyncio.Future[list[Any]]:
        self.lookups += 1
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        answer.set_result(
            [
                (V6 if name.startswith("six") else V4, socket.SOCK_STREAM, 6, "", name)
                for name in self.outcomes
            ]
        )
        return answer

    async def attempt(self, family: int, proto: int, address: str) -> Any:
        self.tried.append(address)
        outcome = self.outcomes[address]
        if outcome is HANGS:
            await asyncio.get_running_loop().create_future()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def connect(self) -> str:
        self.tried.clear()
        _, address = await self.reach.connect("judge.example", 443)
        return str(address)


@pytest.mark.parametrize("first", [HANGS, REFUSED, NO_ROUTE], ids=["hangs", "refuses", "no route"])
async def test_the_other_family_is_tried_when_the_first_does_not_come_about(
    monkeypatch: pytest.MonkeyPatch, first: object
) -> None:
    """RFC 8305 section 5; and from then on it is tried first."""
    monkeypatch.setattr(reach_module, "ATTEMPT_DELAY", 0.01 if first is HANGS else 60)
    world = World(monkeypatch, six1=first, six2=first, four="socket")
    assert await world.connect() == "four"
    assert world.tried == ["six1", "four"], "the families take turns"
    assert await world.connect() == "four"
    assert world.tried == ["four"]


async def test_what_failed_last_is_tried_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that takes TCP and breaks later (TLS, GOAWAY at once) must not get every dial."""
    world = World(monkeypatch, a="socket", b="socket", c="socket")
    chosen = []
    for _ in range(5):
        chosen.append(await world.connect())
        world.reach.on_failed(chosen[-1])
    assert chosen == ["a", "b", "c", "a", "b"]
    world.reach.on_reached("b")
    assert await world.connect() == "b"
    for number in range(200):
        world.reach.on_failed(number)
    assert len(world.reach._failed) == reach_module.MOST_REMEMBERED


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        ({"six": NO_ROUTE, "four": REFUSED}, REFUSED),
        ({"six": REFUSED, "four": NO_ROUTE}, REFUSED),
        ({"six": NO_ROUTE}, NO_ROUTE),
    ],
)
async def test_the_failure_that_tells_most_is_told(
    monkeypatch: pytest.MonkeyPatch, outcomes: dict[str, object], told: OSError
) -> None:
    """That this machine has no IPv6 says nothing of an upstream that refuses."""
    with pytest.raises(NotReachedError) as caught:
        await World(monkeypatch, **outcomes).connect()
    assert caught.value.error is told
    assert outcomes[caught.value.address] is told


async def test_a_dial_that_is_given_up_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, six=HANGS, four=HANGS)
    monkeypatch.setattr(reach_module, "ATTEMPT_DELAY", 0.001)
    with pytest.raises((asyncio.TimeoutError, TimeoutError)):
        await asyncio.wait_for(world.connect(), 0.05)
    assert world.tried == ["six", "four"]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_only_one_of_two_sockets_that_connect_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = socket.socketpair()
    world = World(monkeypatch, six=left, four=right)

    async def both(*way: Any) -> Any:
        world.tried.append(way[2])
        await asyncio.wait_for(gate.wait(), 5)
        return world.outcomes[way[2]]

    gate = asyncio.Event()
    monkeypatch.setattr(reach_module, "_connect", both)
    monkeypatch.setattr(reach_module, "ATTEMPT_DELAY", 0.001)
    asyncio.get_running_loop().call_later(0.05, gate.set)
    sock, _ = await world.reach.connect("judge.example", 443)
    await asyncio.sleep(0)
    assert {left.fileno() == -1, right.fileno() == -1} == {True, False}
    sock.close()


async def test_dials_that_begin_together_share_a_lookup_and_a_later_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A resolver that hangs must not have its next answer wait for the first (seen with a pool of four threads)."""
    asked: list[asyncio.Future[list[Any]]] = []

    def resolve(host: str, port: int) -> asyncio.Future[list[Any]]:
        asked.append(asyncio.get_running_loop().create_future())
        return asked[-1]

    world = World(monkeypatch, four="socket")
    monkeypatch.setattr(reach_module, "_resolve", resolve)
    first, second = (asyncio.ensure_future(world.connect()) for _ in range(2))
    await asyncio.sleep(0)
    monkeypatch.setattr(reach_module, "SHARED_FOR", -1)
    third = asyncio.ensure_future(world.connect())
    await asyncio.sleep(0)
    assert len(asked) == 2
    asked[1].set_result([(V4, socket.SOCK_STREAM, 6, "", "four")])
    assert await third == "four"
    first.cancel()
    asked[0].set_exception(socket.gaierror(socket.EAI_AGAIN, "try again"))
    with pytest.raises(socket.gaierror):
        await second


@pytest.mark.parametrize(("host", "family"), [("127.0.0.1", V4), ("::1", V6), ("localhost", None)])
async def test_names_and_literals_are_looked_up(host: str, family: int | None) -> None:
    found = await reach_module._resolve(host, 443)
    assert family in (None, found[0][0])
    with pytest.raises((OSError, UnicodeError)):
        await reach_module._resolve("a" * 70, 443)
