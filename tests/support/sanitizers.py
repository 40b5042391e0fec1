"""What cannot be measured on a build with sanitizers (`make sanitize`)."""

from __future__ import annotations

import os

import pytest

SANITIZED = "SANITIZED" in os.environ
"""The compiled code is instrumented, in every process that a test starts as well."""

measures_memory = pytest.mark.skipif(SANITIZED, reason="an instrumented process is as large as its shadow")
