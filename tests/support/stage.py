"""One test's cast: origins, proxies and clients, built on demand, checked and taken down at the end."""

from __future__ import annotations

import asyncio
import datetime
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
import trustme

from h2ping._fast import IMPLEMENTATION
from tests.support.client import Client, Response
from tests.support.proxy import Proxy
from tests.support.scripted_origin import Manners, Origin, Request, Setting, context_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

ENGINE = "c" if IMPLEMENTATION == "compiled" else "py"
"""The engine at hand, for tests in which it plays no part."""
PROGRAMS = ["h2ping", "h2-ping-sidecar"]

QUICK_FLAGS = {"--shutdown-grace": "3s", "--log-level": "debug"}


@dataclass(frozen=True)
class Certificates:
    """Files: the authority, and chain + key for each kind of server certificate."""

    folder: Path
    ca: Path
    good: tuple[str, str]
    other_name: tuple[str, str]
    judge: tuple[str, str]
    expired: tuple[str, str]
    unknown: tuple[str, str]


def _files(folder: Path, name: str, cert: trustme.LeafCert) -> tuple[str, str]:
    chain, key = folder / f"{name}.pem", folder / f"{name}.key"
    cert.private_key_pem.write_to_path(str(key))
    for number, blob in enumerate(cert.cert_chain_pems):
        blob.write_to_path(str(chain), append=number > 0)
    return str(chain), str(key)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def make_certificates(folder: Path) -> Certificates:
    """All kinds, in files of that folder."""
    authority, stranger = trustme.CA(), trustme.CA()
    ca = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    names = ("localhost", "127.0.0.1", "::1")
    past = [datetime.datetime(year, 1, 1, tzinfo=datetime.timezone.utc) for year in (2020, 2021)]
    return Certificates(
        folder,
        ca,
        good=_files(folder, "good", authority.issue_cert(*names)),
        other_name=_files(folder, "other", authority.issue_cert("other.example")),
        judge=_files(folder, "judge", authority.issue_cert("judge.example")),
        expired=_files(
            folder, "expired", authority.issue_cert(*names, not_before=past[0], not_after=past[1])
        ),
        unknown=_files(folder, "unknown", stranger.issue_cert(*names)),
    )


class Stage:
    """Makes the parts and keeps them for the end. `watched`: the admin pages of its proxies are read for secrets."""

    def __init__(
        self, certificates: Certificates, engine: str, folder: Path, *, watched: bool = True
    ) -> None:
        self.watched = watched
        self.certificates = certificates
        self.engine = engine
        self.folder = folder
        self.origins: list[Origin] = []
        self.proxies: list[Proxy] = []
        self.clients: list[Client] = []

    async def origin(
        self, handler: Callable[[Request], Awaitable[None]] | None = None, *,
        settings: Mapping[Setting, int] | None = None, cert: tuple[str, str] | None = None,
        alpn: Iterable[str] | None = ("h2",), listen: bool = True, address: str = "127.0.0.1", port: int = 0,
        **manners: object,
    ) -> Origin:  # fmt: skip
        context = context_for(cert or self.certificates.good, None if alpn is None else list(alpn))
        origin = Origin(context, manners=Manners(**manners), handler=handler)  # type: ignore[arg-type]
        if settings is not None:
            origin.manners.settings = {int(key): value for key, value in settings.items()}
        self.origins.append(origin)
        await origin.start(address, port)
        if not listen:
            origin.stop_listening()
        return origin

    async def proxy(
        self, upstream: Origin | str, *flags: str, program: str = "h2ping", engine: str = "",
        env: dict[str, str] | None = None, ready_file: bool = False, trust: bool = True, start: bool = True,
        file_limit: int = 0,
    ) -> Proxy:  # fmt: skip
        """A running proxy on a port of its own. `flags` come after the defaults of the tests."""
        url = upstream if isinstance(upstream, str) else upstream.url
        given = {flag.partition("=")[0] for flag in flags}
        defaults = {"--listen": "127.0.0.1:0", "--upstream": url, **QUICK_FLAGS}
        if self.watched:
            defaults["--admin-listen"] = "127.0.0.1:0"
        if trust:
            defaults["--ca-file"] = str(self.certificates.ca)
        ready = self.folder / f"{len(self.proxies)}.ready" if ready_file else None
        proxy = Proxy(
            *(f"{flag}={value}" for flag, value in defaults.items() if flag not in given), *flags,
            program=program, engine=engine or self.engine, env=env, ready_file=ready, file_limit=file_limit,
        )  # fmt: skip
        self.proxies.append(proxy)
        await (proxy.start() if start else proxy.spawn())
        return proxy

    async def client(self, proxy: Proxy, *, receive_buffer_bytes: int = 0) -> Client:
        client = await Client.connect(proxy.port, receive_buffer_bytes=receive_buffer_bytes)
        self.clients.append(client)
        return client

    async def ask(
        self, proxy: Proxy, method: str = "GET", target: str = "/", body: bytes | None = None,
        fields: Iterable[tuple[str, str]] = (),
    ) -> Response:  # fmt: skip
        """One request on a connection of its own."""
        client = await self.client(proxy)
        response = await client.ask(method, target, body, fields)
        await client.gone()
        return response

    async def close(self) -> None:
        # While calls are under way; `finish` looks again after them.
        looks = [proxy.look_for_secrets() for proxy in self.proxies if self.watched]
        failures = await asyncio.gather(*looks, return_exceptions=True)
        for client in self.clients:
            await client.gone()
        failures += await asyncio.gather(*(proxy.finish() for proxy in self.proxies), return_exceptions=True)
        failures += await asyncio.gather(*(origin.close() for origin in self.origins), return_exceptions=True)
        complaints = [str(failure) or repr(failure) for failure in failures if failure is not None]
        for origin in self.origins:
            if not origin.tolerated:
                complaints += origin.faults()
        assert not complaints, "\n".join(complaints)


@pytest_asyncio.fixture
async def stage(certificates: Certificates, engine: str, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on each engine."""
    made = Stage(certificates, engine, tmp_path)
    yield made
    await made.close()


@pytest_asyncio.fixture
async def any_stage(certificates: Certificates, tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage on the engine at hand, where the engine has no part in what is tested."""
    made = Stage(certificates, ENGINE, tmp_path)
    yield made
    await made.close()
