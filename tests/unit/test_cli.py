"""The commands: flag grammar, exit codes, phrases, help, version, config; and the generated documents."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h2ping import cli, show
from h2ping.arguments import parse_arguments
from h2ping.config import FLAGS, PROGRAM, SIDECAR
from h2ping.errors import CAUSES, ConfigError
from h2ping.sources import load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from h2ping.config import Settings

ROOT = Path(__file__).parents[2]
UPSTREAM = ["-upstream", "https://api.example"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("H2PING_") or name in ("GOMEMLIMIT", "GOMAXPROCS"):
            monkeypatch.delenv(name)


# --- flag grammar ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        (["-listen", "h:1"], {"listen": "h:1"}),
        (["--listen", "h:1"], {"listen": "h:1"}),
        (["-listen=h:1"], {"listen": "h:1"}),
        (["--listen=h:1"], {"listen": "h:1"}),
        (["--max-conn-age=0"], {"max_conn_age": "0"}),
        (["-ca-file", "-listen"], {"ca_file": "-listen"}),
        (["-ca-file="], {"ca_file": ""}),
        (["-ca-file=a=b"], {"ca_file": "a=b"}),
        (["-name", "a", "-name", "b"], {"name": "b"}),
        (["-insecure-skip-verify"], {"insecure_skip_verify": "true"}),
        (["-insecure-skip-verify=true"], {"insecure_skip_verify": "true"}),
        (["--insecure-skip-verify=F", "-name", "a"], {"insecure_skip_verify": "F", "name": "a"}),
        ([], {}),
    ],
)
def test_flags_are_read_as_go_reads_them(argv: list[str], values: dict[str, str]) -> None:
    assert parse_arguments(argv).values == values


@pytest.mark.parametrize("after", ["-nope", "word", "-listen"])
def test_nothing_behind_the_help_flag_is_read(after: str) -> None:
    assert parse_arguments(["-h", after]).help


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-nope", "1"], "flag provided but not defined: -nope"),
        (["--nope=1"], "flag provided but not defined: -nope"),
        (["-lis", "h:1"], "flag provided but not defined: -lis"),
        (["-ping_interval", "1s"], "flag provided but not defined: -ping_interval"),
        (["-listen"], "flag needs an argument: -listen"),
        (["-insecure-skip-verify", "true"], 'unexpected argument "true"'),
        (["-insecure-skip-verify=maybe"], 'invalid boolean value "maybe" for -insecure-skip-verify'),
        (["-nope", "-h"], "flag provided but not defined: -nope"),
        (["-h=2"], 'invalid boolean value "2" for -h'),
        (["word"], 'unexpected argument "word"'),
        (["-"], 'unexpected argument "-"'),
        (["--"], 'unexpected argument "--"'),
        (["---listen"], "bad flag syntax: ---listen"),
        (["-=x"], "bad flag syntax: -=x"),
        (["https://u:p4ss@h"], 'unexpected argument "***@h"'),
        (["-up\x1b[m"], "flag provided but not defined: -up\\x1b[m"),
    ],
)
def test_a_command_line_that_cannot_be_read_ends_with_code_2(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_arguments(argv)
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


@given(st.lists(st.text(max_size=12) | st.sampled_from(["-listen", "--name=x", "-access-log"]), max_size=5))
def test_any_command_line_is_read_or_refused_in_one_line(argv: list[str]) -> None:
    message = ""
    try:
        parse_arguments(argv)
    except ConfigError as error:
        message = str(error)
    assert message.isprintable()


# --- exit codes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [cli.main, cli.main_sidecar])
@pytest.mark.parametrize(
    ("argv", "code", "phrase"),
    [
        (["-listen", "127.0.0.1:1"], 1, "-upstream is required"),
        (["-upstream", "http://localhost:1"], 1, "-upstream must be an https:// URL"),
        (["-nope", "1"], 2, "flag provided but not defined: -nope"),
        ([*UPSTREAM, "-ping-interval", "60"], 2, 'invalid value "60" for flag -ping-interval'),
        ([*UPSTREAM, "-ping-interval", "5m40s"], 1, "-ping-interval 5m40s must be below 340s"),
        ([*UPSTREAM, "-config", "/nonexistent.yaml"], 1, "cannot read -config /nonexistent.yaml"),
    ],
)
def test_a_wrong_command_line_ends_at_once_with_one_line(
    command: Callable[[Sequence[str]], int],
    argv: list[str],
    code: int,
    phrase: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(argv) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert phrase in err
    assert err.count("\n") == 1
    assert err.startswith((f"{PROGRAM}: ", f"{SIDECAR}: "))


def test_only_h2ping_has_sub_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config"]) == 0
    assert cli.main_sidecar(["config"]) == 2
    assert 'unexpected argument "config"' in capsys.readouterr().err
    assert cli.main(["nonsense"]) == 2
    assert 'unknown command "nonsense"' in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_a_sub_command_exists(name: str) -> None:
    assert callable(cli._command(name))


# --- serving --------------------------------------------------------------------------------------


class Server:
    """Stands in for h2ping.server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: int | BaseException = 0) -> None:
        self.instances: list[Settings] = []
        self._result = result
        module = type(sys)("h2ping.server")
        module.serve = self.serve  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "h2ping.server", module)

    def serve(self, instances: list[Settings], on_listening: Callable[[], None]) -> int:
        self.instances = instances
        on_listening()
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def test_the_drop_ins_command_line_is_served(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The launcher's own words, in its order: contract of the drop-in."""
    monkeypatch.setenv("GOMEMLIMIT", "256MiB")
    monkeypatch.setenv("GOMAXPROCS", "2")
    server = Server(monkeypatch)
    code = cli.main_sidecar([
        "-listen", "127.0.0.1:1250", *UPSTREAM, "-ping-interval", "1m0s", "-ping-timeout", "15s",
        "-shutdown-grace", "1m0s", "-retry-body-limit", "16777216", "-max-conn-age", "50m0s",
        "-ready-file", "/tmp/x.ready", "-insecure-skip-verify",
    ])  # fmt: skip
    assert code == 0
    (settings,) = server.instances
    assert settings.program == SIDECAR
    assert settings.max_memory == 256 << 20
    assert settings.insecure_skip_verify
    err = capfd.readouterr().err
    assert "GOMAXPROCS=2 has no effect" in err
    assert "the upstream's certificate is not verified" in err


def test_other_spellings_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch)
    argv = ["--listen=127.0.0.1:1", "-upstream=https://h", "--ping-interval", "1.5s", "-max-conn-age=0",
            "-insecure-skip-verify=true", "-shutdown-grace=1m30s"]  # fmt: skip
    assert cli.main(argv) == 0
    (settings,) = server.instances
    assert (settings.ping_interval, settings.max_conn_age, settings.shutdown_grace) == (1.5, 0.0, 90.0)


@pytest.mark.parametrize(
    ("result", "code", "last"),
    [
        (ConfigError("", "cannot bind 127.0.0.1:1: address already in use"), 1, "cannot bind 127.0.0.1:1: "),
        (RuntimeError("odd\nthing"), 1, "stopped by a defect: RuntimeError: odd\\nthing"),
        (KeyboardInterrupt(), 0, "interrupted before it was ready"),
    ],
)
def test_the_last_line_says_why_it_ended(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    result: BaseException,
    code: int,
    last: str,
) -> None:
    """The launcher shows the tail of the log when the program dies."""
    Server(monkeypatch, result)
    assert cli.main(UPSTREAM) == code
    assert last in capfd.readouterr().err.splitlines()[-1]


def test_sigterm_before_the_server_has_taken_it_over_ends_it_well(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Slow(Server):
        def serve(self, instances: list[Settings], on_listening: Callable[[], None]) -> int:
            signal.raise_signal(signal.SIGTERM)
            return 1

    Slow(monkeypatch)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert cli.main(UPSTREAM) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "interrupted before it was ready" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_certificates_that_are_not_where_a_variable_says_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    """OpenSSL says nothing, and each dial would fail with `certificate`."""
    missing = tmp_path / "missing"
    monkeypatch.setenv(name, str(missing))
    Server(monkeypatch)
    assert cli.main(UPSTREAM) == 0
    assert f"{name}={missing}: it is not there" in capfd.readouterr().err
    assert cli.main([*UPSTREAM, "-ca-file", __file__]) == 0
    assert "it is not there" not in capfd.readouterr().err
    monkeypatch.setenv(name, str(tmp_path) if name == "SSL_CERT_DIR" else __file__)
    assert cli.main(UPSTREAM) == 0
    assert "it is not there" not in capfd.readouterr().err


def test_a_misspelt_variable_and_an_open_listener_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("H2PING_PING_INTERVALL", "1s")
    Server(monkeypatch)
    assert cli.main_sidecar([*UPSTREAM, "-listen", "0.0.0.0:1"]) == 0
    err = capfd.readouterr().err
    assert "H2PING_PING_INTERVALL is not one of h2ping's; is H2PING_PING_INTERVAL meant?" in err
    assert "-listen 0.0.0.0:1 is not a loopback address" in err


# --- what it tells about itself -------------------------------------------------------------------


@pytest.mark.parametrize("program", [PROGRAM, SIDECAR])
@pytest.mark.parametrize("spelling", ["-h", "--help", "-help", "--h"])
def test_help_shows_every_flag_at_the_start_of_a_line(
    capsys: pytest.CaptureFixture[str], program: str, spelling: str
) -> None:
    command = cli.main if program == PROGRAM else cli.main_sidecar
    assert command([*UPSTREAM, "-listen", "nonsense", spelling]) == 0
    text = capsys.readouterr().out
    for flag in FLAGS.values():
        assert re.search(rf"(?m)^\s+-{flag.name}\b", text), flag.name
    assert max(map(len, text.splitlines())) <= 100
    assert ("Commands" in text) == (program == PROGRAM)
    assert ("(default 127.0.0.1:1250)" in text) == (program == PROGRAM)
    assert ("(default 15m)" in text.split("-shutdown-grace")[1][:150]) == (program == SIDECAR)


def test_the_version_names_what_a_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    text = capsys.readouterr().out
    assert re.match(r"h2ping \S+ \((compiled|plain)\)\nPython 3\.", text)
    assert re.search(r"(?m)^OpenSSL 3\.|^LibreSSL", text)
    assert re.search(r"(?m)^h2 4\.", text)
    assert re.search(r"(?m)^uvloop 0\.", text)


def test_config_prints_each_value_and_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("max_conns: 3\n")
    monkeypatch.setenv("H2PING_MAX_QUEUE", "9")
    monkeypatch.setenv("GOMEMLIMIT", "64MiB")
    assert cli.main(["config", "-ping-interval", "90s", "-config", str(file), *UPSTREAM]) == 0
    text = capsys.readouterr().out
    lines = dict(re.split(r" +# ", line) for line in text.splitlines() if re.match(r"[a-z_]+: ", line))
    assert lines["upstream: https://api.example"] == "command line"
    assert lines["ping_interval: 1m30s"] == "command line"
    assert lines["max_queue: 9"] == "environment H2PING_MAX_QUEUE"
    assert lines["max_conns: 3"] == f"file {file}:1"
    assert lines["max_memory: 64MiB"] == "GOMEMLIMIT"
    assert lines["first_byte_timeout: 0s"] == "default"
    assert "# memory_pressure: all bodies together stay under max_memory." in text
    assert "# first_byte_timeout: 0s means that the response may take as long as it takes." in text


TWO = "instances:\n- {name: a, upstream: 'https://h', listen: '127.0.0.1:1'}\n" + (
    "- {name: b, upstream: 'https://h/v1', listen: '[::1]:2', server_name: x}\n"
)


@pytest.mark.parametrize("content", ["upstream: https://h\nready_file: '/tmp/a #b'\nmax_memory: off\n", TWO])
def test_what_config_prints_is_a_file_for_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    before.write_text(content)
    assert cli.main(["config", "-config", str(before)]) == 0
    after.write_text(capsys.readouterr().out)
    seen = [[each.settings for each in load({}, {}, PROGRAM, str(path))] for path in (before, after)]
    assert seen[0] == seen[1]


def test_config_without_an_upstream_shows_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config"]) == 0
    upstream = capsys.readouterr().out.splitlines()[0]
    assert upstream.startswith("upstream: https://upstream.invalid ")
    assert upstream.endswith("# a placeholder: it is required and not given")
    assert cli.main(["config", "-max-conns", "0"]) == 1
    assert "-max-conns 0 must be above 0" in capsys.readouterr().err
    assert cli.main(["config", "-h"]) == 0
    assert "Usage: h2ping config" in capsys.readouterr().out


def test_causes_explains_what_stands_in_a_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["causes", "alpn", "flood"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("alpn (421, permanent)\n  The upstream did not choose h2 by ALPN")
    assert "\nflood (502)\n" in text
    assert cli.main(["causes"]) == 0
    assert all(f"{token} (" in text + capsys.readouterr().out for token in ("alpn", "flood"))
    assert cli.main(["causes", "-h"]) == 0
    assert cli.main(["causes", "nonsense"]) == 2
    assert 'no cause is named "nonsense"' in capsys.readouterr().err


# --- generated documents --------------------------------------------------------------------------

MAKE = "run `python -m h2ping.show .` in the root of the repository"


def test_the_documents_are_those_that_the_code_makes() -> None:
    assert (ROOT / "docs" / "flags.md").read_text(encoding="utf-8") == show.flags_document(), MAKE
    assert (ROOT / "docs" / "causes.md").read_text(encoding="utf-8") == show.causes_document(), MAKE


def test_the_readme_has_the_table_of_flags() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert show.with_flags(readme) == readme, MAKE


def test_the_documents_have_every_flag_and_every_cause() -> None:
    assert all(f"| `-{flag.name}" in show.flags_table() for flag in FLAGS.values())
    assert all(f"| `{token}` |" in show.causes_document() for token in CAUSES)


def test_the_file_in_the_documents_works(tmp_path: Path) -> None:
    file = tmp_path / "h2ping.yaml"
    file.write_text(show.FILE_EXAMPLE)
    judge, policy = (each.settings for each in load({}, {}, PROGRAM, str(file)))
    assert (judge.streams_per_conn, policy.streams_per_conn) == (16, 32)
    assert show.FILE_EXAMPLE in (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")


def test_documents_are_written_and_the_rest_of_the_readme_is_kept(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    show.write_documents(str(tmp_path))
    readme.write_text("no table here\n")
    show.write_documents(str(tmp_path))
    assert readme.read_text() == "no table here\n"
    readme.write_text("before\n<!-- flags -->\nold\n<!-- /flags -->\nafter\n")
    show.write_documents(str(tmp_path))
    text = readme.read_text()
    assert text.startswith("before\n<!-- flags -->\n\n**Where**")
    assert text.endswith("<!-- /flags -->\nafter\n")
    assert "old\n" not in text
    assert show.with_flags(text) == text
    with pytest.raises(ValueError, match="the README has no"):
        show.with_flags("nothing")


# --- as a process ---------------------------------------------------------------------------------


def run(*argv: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "h2ping", *argv],
        capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, **(environment or {})},
    )  # fmt: skip


@pytest.mark.sockets
def test_the_module_is_the_command() -> None:
    done = run("-upstream", "http://h")
    assert done.returncode == 1
    assert (
        done.stderr
        == "h2ping: -upstream must be an https:// URL: HTTP/2 is negotiated via ALPN, inside TLS\n"
    )


@pytest.mark.sockets
def test_a_reader_that_goes_away_is_no_error() -> None:
    with subprocess.Popen(
        [sys.executable, "-c",
        "import sys; sys.stdin.read(); from h2ping.cli import main; sys.exit(main(['-h']))"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the device is Linux's")
@pytest.mark.parametrize("words", [["-h"], ["-version"], ["causes"], ["config", "-upstream", "https://h"]])
def test_output_that_cannot_be_written_is_told_in_one_line(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", "import sys; from h2ping.cli import main; sys.exit(main(sys.argv[1:]))", *words],
            stdout=full, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        1, "h2ping: cannot write to standard output: No space left on device\n",
    )  # fmt: skip


@pytest.mark.sockets
def test_nothing_heavy_is_imported_before_it_is_known_what_to_do() -> None:
    """The time until the listener stands is part of the product."""
    script = (
        "import sys\nfrom h2ping.cli import main\nmain(['-upstream', 'http://h'])\n"
        "heavy = {'asyncio', 'ssl', 'yaml', 'h2', 'uvloop', 'argparse', 'logging', 'h2ping.show'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "[]\n"
