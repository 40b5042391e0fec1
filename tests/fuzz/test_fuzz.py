"""Every target over its corpus, which holds an input for each way through the code that was ever found.

New ones are looked for by `make fuzz` and in CI (`python -m tests.fuzz`), on Linux on x86-64, all that atheris has
wheels for; what was found there is run here everywhere.
"""

from __future__ import annotations

import pytest

from tests.fuzz.targets import CORPUS, TARGETS, fails


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_clean(name: str) -> None:
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    failed = {path.name: error for path in inputs if (error := fails(name, path.read_bytes()))}
    assert not failed, "\n".join(f"{path}\n{error}" for path, error in failed.items())
