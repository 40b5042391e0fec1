"""One server of each kind for all tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.peers.servers import CHAT_PEERS, Peer, running
from tests.support.stage import any_stage, certificates, stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.stage import Certificates

__all__ = ["any_stage", "certificates", "stage"]


@pytest.fixture(scope="session", params=CHAT_PEERS)
def peer(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Peer]:
    """Each server that runs the OpenAI-like application."""
    name = str(request.param)
    with running(name, certificates, tmp_path_factory.mktemp(name)) as started:
        yield started


@pytest.fixture(scope="session")
def nghttpd(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Serves one file and echoes uploads."""
    with running("nghttpd", certificates, tmp_path_factory.mktemp("nghttpd")) as started:
        yield started
