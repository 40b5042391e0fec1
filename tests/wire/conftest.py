"""Fixtures of the wire tests: a Wire of each engine, before and after the prefaces."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from tests.support.wires import Rig

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def new_rig(engine: str) -> Callable[..., Rig]:
    """Make a rig that was not started: limits, then pairs of the server's settings."""
    if engine == "c" and importlib.util.find_spec("h2ping._fast.mux") is None:
        pytest.skip("the compiled engine has no mux")
    return lambda limits=None, *settings: Rig(engine, limits, *settings)


@pytest.fixture
def rig(new_rig: Callable[..., Rig]) -> Rig:
    """A rig whose connection is settled, with the server's default settings."""
    return new_rig().start()
