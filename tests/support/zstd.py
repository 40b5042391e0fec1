"""The extra `h2ping[zstd]` in tests: skipped without it, except where nothing may be missing."""

import os

import pytest


def need_zstd() -> None:
    if not os.environ.get("H2PING_REQUIRE_PEERS"):
        pytest.importorskip("zstandard", reason="the extra h2ping[zstd] is not installed")
