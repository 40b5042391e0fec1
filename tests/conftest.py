"""Options and fixtures of the whole suite: which engine a test runs over, and how hard hypothesis tries."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
from hypothesis import settings

import h2ping
from h2ping._fast import IMPLEMENTATION

# No deadline: on a machine shared with other work a slow example says nothing about the code.
settings.register_profile("h2ping", deadline=None, print_blob=True)
settings.register_profile("fuzz", deadline=None, print_blob=True, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "h2ping"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-c", action="store_true", help="leave out the compiled engine")
    parser.addoption("--only-c", action="store_true", help="leave out the plain engine")


def stale_modules() -> list[str]:
    """Python files of this checkout that run in an older, compiled form."""
    folder = Path(__file__).parents[1] / "src" / "h2ping"
    if folder != Path(h2ping.__file__).parent:
        return []
    built = [(path, path.with_name(path.name.partition(".")[0] + ".py")) for path in folder.rglob("*.so")]
    return [
        source.name
        for path, source in built
        if source.exists() and source.stat().st_mtime > path.stat().st_mtime
    ]


def pytest_configure(config: pytest.Config) -> None:
    """The compiled engine missing where it was built is a failure: skips would hide a broken build."""
    if IMPLEMENTATION == "compiled" and (stale := stale_modules()):
        raise pytest.UsageError(f"newer than what was compiled from it, so pip install -e . : {stale}")
    if os.environ.get("H2PING_EXPECT_C", "") in ("", "0") or IMPLEMENTATION == "compiled":
        return
    try:
        importlib.import_module("h2ping._fast.hpack")
        reason = "H2PING_NO_EXTENSIONS switches it off"
    except ImportError as error:
        reason = str(error)
    raise pytest.UsageError(f"H2PING_EXPECT_C is set, but the compiled engine is not there: {reason}")


REAL_TIME = ("cases", "contract", "e2e", "gym", "node", "peers")
"""Tests of whole processes over real sockets, but for those with the mark `pure`; the few elsewhere that open some
have the mark `sockets`. On a machine that is busy with other work one of hundreds may miss a limit in time."""
LATE = [
    r"^Timeout(Error|Expired)\b",
    r"^AssertionError: no .* within [0-9.e+]+ s;",
    r"^AssertionError: assert \(?-?[0-9]+\.[0-9e-]+( [-+] -?[0-9]+\.[0-9e-]+\))? <=? ",
]
"""What a test that was late ends with: a wait that ran out (also that of `tests.support.bell`), or a measured time, a
float, above its limit. Of the cases such a test, and no other, is run again, twice at most: numbers of executions,
causes and bytes are no floats, and where one is wrong, once is enough to fail. The fault matrix keeps its own times and
is never run again. Tests of starting, signalling and ending whole processes race with the system in more ways and are
run again whatever they failed with. The report tells every second try with its reason."""


def is_in_real_time(item: pytest.Item) -> bool:
    if item.path.relative_to(Path(__file__).parent).parts[0] in REAL_TIME:
        return item.get_closest_marker("pure") is None
    return item.get_closest_marker("sockets") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_in_real_time(item):
            is_case = item.path.parent.name == "cases"
            item.add_marker(pytest.mark.flaky(reruns=2, **({"only_rerun": LATE} if is_case else {})))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Each second chance with its reason: a run that needed one must not look like one that did not."""
    again = terminalreporter.stats.get("rerun", [])
    if again:
        terminalreporter.section(f"{len(again)} tries were made again")
    for report in again:
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = str(crash.message if crash else report.longrepr).partition("\n")[0]
        terminalreporter.line(f"{report.nodeid}: {reason}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `engine` runs once over each twin, with the ids `c` and `py`."""
    if "engine" in metafunc.fixturenames:
        left_out = {"c": "--no-c", "py": "--only-c"}
        engines = [name for name in ("c", "py") if not metafunc.config.getoption(left_out[name])]
        metafunc.parametrize("engine", engines, indirect=True)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """`c` or `py`: which of the twins to test."""
    name: str = request.param
    if name == "c" and IMPLEMENTATION != "compiled":
        pytest.skip("the compiled engine was not built, or is switched off")
    return name
