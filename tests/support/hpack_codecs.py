"""Which HPACK codec a test runs over: the compiled one, or the `hpack` package as its oracle."""

from __future__ import annotations

import importlib
from typing import Any

from tests.support import hpack_oracle


def codec_of(engine: str) -> Any:
    """A namespace with Encoder, Decoder, HpackError and FieldSectionTooLarge."""
    return importlib.import_module("h2ping._fast.hpack") if engine == "c" else hpack_oracle
