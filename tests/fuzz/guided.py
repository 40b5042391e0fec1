"""One target under libFuzzer, which atheris joins to Python: `python -m tests.fuzz.guided TARGET [its arguments]`.

Within `.ci/sanitized` only: that build counts the branches taken in the compiled modules, and those counts lead the
fuzzer to new inputs. The plain modules are counted by atheris.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["h2ping"]):
    from tests.fuzz.targets import TARGETS

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    itself = f"{sys.executable} -m tests.fuzz.guided {name}"  # how libFuzzer starts it again, when it merges
    atheris.Setup([itself, *arguments], TARGETS[name])
    atheris.Fuzz()
