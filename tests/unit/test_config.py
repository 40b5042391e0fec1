"""Settings: defaults, grammar, checks; and where values come from."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from h2ping import config
from h2ping.address import Address, Upstream
from h2ping.config import FLAGS, PROGRAM, SIDECAR, Settings, parse, warnings_of
from h2ping.errors import ConfigError
from h2ping.sources import Effective, load, misspelt_variables

if TYPE_CHECKING:
    from pathlib import Path

UPSTREAM = {"upstream": "https://api.example"}


def refusal(texts: dict[str, str], program: str = PROGRAM) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse({**UPSTREAM, **texts}, program)
    return caught.value


# --- the two ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "host", "port", "prefix", "authority", "url"),
    [
        ("https://h", "h", 443, "", b"h", "https://h"),
        ("https://H.Example:8443/", "h.example", 8443, "", b"h.example:8443", "https://h.example:8443"),
        ("HTTPS://h:443/v1", "h", 443, "/v1", b"h", "https://h/v1"),
        ("https://[::1]:8443/base/", "::1", 8443, "/base", b"[::1]:8443", "https://[::1]:8443/base"),
        ("https://[::1]", "::1", 443, "", b"[::1]", "https://[::1]"),
        ("https://127.0.0.1:1/a/b%20c/", "127.0.0.1", 1, "/a/b%20c", b"127.0.0.1:1",
        "https://127.0.0.1:1/a/b%20c"),
        ("https://bücher.example", "xn--bcher-kva.example", 443, "", b"xn--bcher-kva.example",
         "https://xn--bcher-kva.example"),
    ],
)  # fmt: skip
def test_an_upstream_is_read(
    text: str, host: str, port: int, prefix: str, authority: bytes, url: str
) -> None:
    """upstream-url-validation: the last of its values works, and a joined path has no double slash."""
    assert Upstream.parse(text) == Upstream(host, port, prefix, authority, url)


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        ("http://h", 1, "-upstream must be an https:// URL"),
        ("h:443", 1, "-upstream must be an https:// URL"),
        ("", 1, "-upstream must be an https:// URL"),
        ("https://", 2, "the host is missing"),
        ("https://u:p4ss@h", 2, "must not hold a user or password"),
        ("https://u:p4ss@h//x/?a=p4ss", 2, "must not hold a user or password"),
        ("http://u:p4ss@h", 1, "-upstream must be an https:// URL"),
        ("https://h/base?x=p4ss", 2, "must not hold a query"),
        ("https://h/base#x", 2, "must not hold a query or a fragment"),
        ("https://h/a//b", 2, "empty segments"),
        ("https://h/a/../b", 2, "empty segments"),
        ("https://h:0", 2, "from 1 to 65535"),
        ("https://h:65536", 2, "from 1 to 65535"),
        ("https://h:x", 2, "from 1 to 65535"),
        ("https://[::1", 2, "not a"),
        ("https://[nope]:1", 2, "not a"),
        ("https://[::1]x", 2, "not a"),
        ("https://h/a b", 2, "blank"),
        ("https://h\t/a", 2, "blank or a control"),
        ("https://h\n.evil", 2, "blank or a control"),
        ("https://h/\u00e9", 2, "outside ASCII"),
        ("https://h_!x", 2, "not a host name"),
        ("https://" + "a" * 300, 2, "not a host name"),
    ],
)  # fmt: skip
def test_an_upstream_that_cannot_work_is_refused_and_no_secret_is_echoed(
    text: str, code: int, reason: str
) -> None:
    """upstream-url-validation"""
    error = refusal({"upstream": text})
    assert error.exit_code == code
    assert reason in str(error)
    assert "-upstream" in str(error)
    assert "p4ss" not in str(error)
    assert str(error).isprintable()


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:1250", "127.0.0.1", 1250, True), ("localhost:0", "localhost", 0, True),
        ("[::1]:80", "::1", 80, True), ("127.9.9.9:1", "127.9.9.9", 1, True),
        ("0.0.0.0:1", "0.0.0.0", 1, False),
        (":8080", "", 8080, False), ("[::]:1", "::", 1, False), ("node7:1", "node7", 1, False),
    ],
)  # fmt: skip
def test_an_address_is_read(text: str, host: str, port: int, is_loopback: bool) -> None:
    address = Address.parse(text)
    assert (address.host, address.port, address.is_loopback) == (host, port, is_loopback)
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "h", "8080", "h:", "h:x", "h:-1", "h:70000", "::1:80", "a b:1", "[x]:1", "h:+1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    error = refusal({"listen": text})
    assert error.exit_code == 2
    assert f'invalid value "{text}" for flag -listen' in str(error)


# --- defaults -------------------------------------------------------------------------------------


def test_the_two_programs_differ_in_few_defaults_only() -> None:
    ours, sidecar = parse(UPSTREAM), parse(UPSTREAM, SIDECAR)
    differing = {name for name in FLAGS if getattr(ours, name) != getattr(sidecar, name)}
    assert differing == {"listen", "shutdown_grace", "permanent_status", "streams_per_conn"}
    assert (str(ours.listen), str(sidecar.listen)) == ("127.0.0.1:1250", "127.0.0.1:8080")
    assert (ours.shutdown_grace, sidecar.shutdown_grace) == (60.0, 900.0)
    assert (ours.permanent_status, sidecar.permanent_status) == (421, 502)
    assert (ours.streams_per_conn, sidecar.streams_per_conn) == (16, 32)


def test_settings_alone_have_the_defaults_of_h2ping() -> None:
    assert Settings(upstream=Upstream.parse("https://api.example")) == parse(UPSTREAM)


def test_the_defaults_of_the_drop_in_are_those_of_the_contract() -> None:
    settings = parse(UPSTREAM, SIDECAR)
    assert settings.ping_interval == 60
    assert settings.ping_timeout == 15
    assert settings.retry_body_limit == 16777216
    assert settings.max_conn_age == 3000
    assert settings.ready_file == ""
    assert settings.insecure_skip_verify is False


def test_no_limit_on_the_first_byte_by_default() -> None:
    """judge-silence-default-timeout: waiting minutes is the normal case."""
    assert parse(UPSTREAM).first_byte_timeout == 0


def test_every_field_is_a_flag_except_the_program() -> None:
    assert {each.name for each in fields(Settings)} - set(FLAGS) == {"program"}
    assert all(flag.help and flag.group in config.GROUPS for flag in FLAGS.values())


@pytest.mark.parametrize("name", [name for name in FLAGS if name != "upstream"])
@pytest.mark.parametrize("program", [PROGRAM, SIDECAR])
def test_a_default_that_is_shown_can_be_read_back(name: str, program: str) -> None:
    text = FLAGS[name].show_default(program)
    if text:
        assert config.read(name, text) == FLAGS[name].default_of(program)


# --- checks ---------------------------------------------------------------------------------------


def test_the_upstream_is_required() -> None:
    with pytest.raises(ConfigError, match="-upstream is required") as caught:
        parse({})
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("texts", "phrases"),
    [
        ({"ping_interval": "5m40s"}, ["-ping-interval 5m40s", "340s"]),
        ({"ping_interval": "3s", "idle_limit": "3s"}, ["-ping-interval 3s", "below 3s"]),
        ({"ping_interval": "-1s"}, ["-ping-interval -1s", "must not be below 0"]),
        ({"ping_timeout": "0"}, ["-ping-timeout 0s", "must be above 0"]),
        ({"idle_limit": "0"}, ["-idle-limit 0s"]),
        ({"connect_timeout": "0"}, ["-connect-timeout 0s"]),
        ({"max_conn_age": "1h"}, ["-max-conn-age 1h0m0s", "3600s"]),
        ({"max_conn_age": "-1s"}, ["-max-conn-age -1s"]),
        ({"shutdown_grace": "-1s"}, ["-shutdown-grace -1s"]),
        ({"retry_body_limit": "1"}, []),
        ({"streams_per_conn": "0"}, ["-streams-per-conn 0"]),
        ({"max_conns": "0"}, ["-max-conns 0"]),
        ({"max_queue": "-1"}, ["-max-queue -1"]),
        ({"max_header_bytes": "10"}, ["-max-header-bytes 10"]),
        ({"max_memory": "1000"}, ["-max-memory 1000", "at least 1MiB, or off"]),
        ({"max_memory": "7MiB", "workers": "8"}, ["-max-memory 7MiB", "at least 1MiB for each of -workers"]),
        ({"max_conns": "3", "workers": "4"}, ["-max-conns 3", "at least -workers"]),
        ({"workers": "65"}, ["-workers 65", "must be from 1 to 64"]),
        ({"permanent_status": "200"}, ["-permanent-status 200"]),
        ({"server_name": "a b"}, ["-server-name"]),
        ({"ca_file": "/nonexistent/ca.pem"}, ["-ca-file /nonexistent/ca.pem cannot be read"]),
        ({"listen": "0.0.0.0:1"}, ["-listen 0.0.0.0:1", "not a loopback address"]),
        ({"listen": ":1"}, ["-listen :1", "not a loopback address"]),
        ({"admin_listen": "0.0.0.0:1"}, ["-admin-listen 0.0.0.0:1"]),
    ],
    ids=lambda value: next(iter(value.items())) if isinstance(value, dict) else "",
)  # fmt: skip
def test_values_that_cannot_work_end_with_code_1(texts: dict[str, str], phrases: list[str]) -> None:
    if not phrases:
        parse({**UPSTREAM, **texts})
        return
    error = refusal(texts)
    assert error.exit_code == 1
    assert all(phrase in str(error) for phrase in phrases), str(error)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ping_interval", "60"), ("max_conns", "x"), ("max_conns", "1__0"), ("max_conns", " 1"),
        ("max_conns", "1.0"), ("retry_body_limit", "16MB"), ("memory_pressure", "maybe"),
        ("half_close", "Wait"),
        ("log_level", "trace"), ("name", "a b"), ("name", ""), ("max_memory", "much"),
        ("access_log", "yes"), ("ca_file", "a\0b"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_read_end_with_code_2(name: str, text: str) -> None:
    error = refusal({name: text})
    assert error.exit_code == 2
    assert f"for flag -{name.replace('_', '-')}: " in str(error)
    assert str(error).isprintable()


def test_an_idle_limit_of_another_path_moves_the_check() -> None:
    assert parse({**UPSTREAM, "idle_limit": "10m", "ping_interval": "9m"}).ping_interval == 540


def test_only_the_drop_in_takes_an_open_listener_without_a_word() -> None:
    refusal({"listen": "0.0.0.0:1"})
    for settings in (
        parse({**UPSTREAM, "listen": "0.0.0.0:1", "unsafe_listen": "true"}),
        parse({**UPSTREAM, "listen": "0.0.0.0:1"}, SIDECAR),
    ):
        assert any("not a loopback" in line for line in warnings_of(settings))


def test_dangerous_settings_warn() -> None:
    assert warnings_of(parse(UPSTREAM)) == []
    assert "for tests only" in warnings_of(parse({**UPSTREAM, "insecure_skip_verify": "true"}))[0]
    assert "no PING" in warnings_of(parse({**UPSTREAM, "ping_interval": "0"}))[0]


@given(st.sampled_from(sorted(FLAGS)), st.text(max_size=30))
def test_any_text_is_read_or_refused_with_a_printable_message(name: str, text: str) -> None:
    message = ""
    try:
        config.read(name, text)
    except ConfigError as error:
        message = str(error)
    assert message.isprintable()


# --- where values come from -----------------------------------------------------------------------


def one(
    flags: dict[str, str], environment: dict[str, str] | None = None, file: Path | None = None
) -> Effective:
    (found,) = load(flags, environment or {}, PROGRAM, str(file) if file else "")
    return found


def write(folder: Path, text: str) -> Path:
    path = folder / "h2ping.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_command_line_beats_the_environment_beats_the_file_beats_gomemlimit(tmp_path: Path) -> None:
    file = write(tmp_path, "upstream: https://file\nmax_memory: 3MiB\nmax_conns: 3\nmax_queue: 3\n")
    environment = {"GOMEMLIMIT": "4MiB", "H2PING_MAX_CONNS": "2", "H2PING_MAX_QUEUE": "2"}
    found = one({"max_queue": "1"}, environment, file)
    settings = found.settings
    assert (settings.max_queue, settings.max_conns, settings.max_memory) == (1, 2, 3 << 20)
    assert found.origins["max_queue"] == "command line"
    assert found.origins["max_conns"] == "environment H2PING_MAX_CONNS"
    assert found.origins["max_memory"] == f"file {file}:2"
    assert found.origins["ping_interval"] == "default"


@pytest.mark.parametrize(
    ("text", "limit"), [("256MiB", 256 << 20), ("off", 0), ("134217728", 128 << 20), ("", 1 << 30)]
)
def test_gomemlimit_is_the_limit_when_nothing_else_gives_one(text: str, limit: int) -> None:
    found = one(UPSTREAM, {"GOMEMLIMIT": text})
    assert found.settings.max_memory == limit
    assert found.origins["max_memory"] == ("GOMEMLIMIT" if text else "default")


def test_a_bad_gomemlimit_is_named() -> None:
    with pytest.raises(ConfigError, match='invalid value "lots" for GOMEMLIMIT') as caught:
        load(UPSTREAM, {"GOMEMLIMIT": "lots"}, SIDECAR)
    assert caught.value.exit_code == 2


def test_every_setting_is_an_environment_variable() -> None:
    found = one({}, {"H2PING_UPSTREAM": "https://h", "H2PING_ACCESS_LOG": "true", "H2PING_NAME": ""})
    assert found.settings.access_log is True
    assert found.origins["name"] == "default"
    with pytest.raises(ConfigError, match='invalid value "60" for H2PING_PING_INTERVAL'):
        one(UPSTREAM, {"H2PING_PING_INTERVAL": "60"})
    with pytest.raises(ConfigError, match=r"-ping-interval 1h0m0s .*from environment H2PING_PING_INTERVAL"):
        one(UPSTREAM, {"H2PING_PING_INTERVAL": "1h"})


def test_a_variable_that_is_nearly_one_of_ours_is_noticed() -> None:
    environment = {"H2PING_PING_INTERVALL": "1s", "H2PING_NO_EXTENSIONS": "1", "H2PING_MAX_CONNS": "1"}
    assert misspelt_variables(environment) == [("H2PING_PING_INTERVALL", "H2PING_PING_INTERVAL")]


def test_yaml_guesses_are_not_used_but_a_number_is_seconds(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "upstream: https://h\nmax-memory: off\nping_interval: 20\nping_timeout: 1.5\nmax_body_bytes: 1KiB\n"
        "access_log: yes\nlisten: 127.0.0.1:1250\nexit_with_parent: off\nname: ~\n",
    )
    settings = one({}, {}, file).settings
    assert settings.max_memory == 0
    assert (settings.ping_interval, settings.ping_timeout) == (20.0, 1.5)
    assert settings.max_body_bytes == 1024
    assert (settings.access_log, settings.exit_with_parent) == (True, False)
    assert settings.name == ""


def test_a_text_in_quotes_is_no_number(tmp_path: Path) -> None:
    file = write(tmp_path, 'upstream: https://h\nping_interval: "20"\n')
    with pytest.raises(ConfigError, match=re.escape(f'invalid value "20" for {file}:2: ping_interval')):
        one({}, {}, file)


TWO = """\
max_memory: 64MiB
ping_interval: 10s
instances:
  - name: judge
    upstream: https://judge.example
    listen: 127.0.0.1:1250
  - name: policy
    upstream: https://policy.example/v1
    listen: 127.0.0.1:1251
    ping_interval: 20s
"""


def test_a_file_has_several_instances_and_what_stands_beside_them_holds_for_all(tmp_path: Path) -> None:
    judge, policy = (each.settings for each in load({}, {}, PROGRAM, str(write(tmp_path, TWO))))
    assert (judge.label, policy.label) == ("judge", "policy")
    assert (judge.ping_interval, policy.ping_interval) == (10.0, 20.0)
    assert judge.max_memory == policy.max_memory == 64 << 20
    assert policy.upstream.prefix == "/v1"


def test_a_flag_cannot_give_several_instances_one_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-listen is for one instance"):
        load({"listen": "127.0.0.1:1"}, {}, PROGRAM, str(write(tmp_path, TWO)))
    with pytest.raises(ConfigError, match="H2PING_UPSTREAM is for one instance"):
        load({}, {"H2PING_UPSTREAM": "https://h"}, PROGRAM, str(write(tmp_path, TWO)))
    found = load({"ping_interval": "5s"}, {}, PROGRAM, str(write(tmp_path, TWO)))
    assert [each.settings.ping_interval for each in found] == [5.0, 5.0]


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("pign_interval: 1s\n", 1, 'unknown key "pign_interval" in the file; did you mean ping_interval?'),
        ("upstream: https://h\nupstream: https://i\n", 2, 'the key "upstream" stands twice in the file'),
        ("a: [\n", 2, "not YAML"),
        ("- 1\n", 1, "the file must be a mapping"),
        ("upstream: [https://h]\n", 1, 'the value of "upstream" must be one word'),
        ("instances: []\n", 1, "instances must be a list of at least one mapping"),
        ("instances: {a: 1}\n", 1, "instances must be a list"),
        ("instances:\n- 3\n", 2, "instances[0] must be a mapping"),
        ("instances:\n- name: a\n  max_memory: 1GiB\n", 3, '"max_memory" is for the whole process'),
        ("instances:\n- name: a\n  instances: []\n", 3, 'unknown key "instances" in instances[0]'),
        ("instances:\n- nmae: a\n", 2, 'unknown key "nmae" in instances[0]; did you mean name?'),
        ("? [a]\n: 1\n", 1, "unknown key"),
        ("!!python/object/apply:os.system ['true']\n", 1, "must be a mapping"),
        ("max_conns: !!python/name:os.system x\n", 1, "max_conns: not a whole number"),
        ("upstream: https://u:p4ss@h\n", 1, "must not hold a user or password"),
        ("\x01", None, "not YAML"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_an_error_in_the_file_names_its_place(
    tmp_path: Path, text: str, line: int | None, reason: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load({}, {}, PROGRAM, str(file))
    place = f"{file}:{line}: " if line else f"{file}"
    assert place in str(caught.value)
    assert reason in str(caught.value)
    assert "p4ss" not in str(caught.value)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ("{name: a, upstream: 'https://i', listen: '127.0.0.1:2'}", 'the name "a" is used twice'),
        ("{name: b, upstream: 'https://i', listen: '127.0.0.1:1'}", "the address 127.0.0.1:1 is used twice"),
        ("{upstream: 'https://i', listen: '127.0.0.1:2'}", "instances[1] needs a name"),
        ("{name: b, upstream: 'https://i', listen: '127.0.0.1:9'}", "the address 127.0.0.1:9 is used twice"),
        ("{name: b, listen: '127.0.0.1:2'}", "-upstream is required"),
    ],
)
def test_instances_do_not_get_in_each_others_way(tmp_path: Path, second: str, reason: str) -> None:
    first = "{name: a, upstream: 'https://h', listen: '127.0.0.1:1'}"
    file = write(tmp_path, f"admin_listen: 127.0.0.1:9\ninstances:\n  - {first}\n  - {second}\n")
    with pytest.raises(ConfigError) as caught:
        load({}, {}, PROGRAM, str(file))
    assert reason in str(caught.value)


def test_several_instances_may_each_take_a_free_port(tmp_path: Path) -> None:
    text = "".join(f"  - {{name: {name}, upstream: 'https://h', listen: '127.0.0.1:0'}}\n" for name in "ab")
    assert len(load({}, {}, PROGRAM, str(write(tmp_path, "instances:\n" + text)))) == 2


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path):
        with pytest.raises(ConfigError, match=f"cannot read -config {re.escape(str(path))}") as caught:
            load({}, {}, PROGRAM, str(path))
        assert caught.value.exit_code == 1
    big = write(tmp_path, "#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load({}, {"H2PING_CONFIG": str(big)}, PROGRAM)


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    assert one(UPSTREAM, {}, write(tmp_path, "# nothing\n")).settings == parse(UPSTREAM)


@given(st.text(max_size=200))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    try:
        found: Any = load(UPSTREAM, {}, PROGRAM, str(file))
    except ConfigError:
        return
    assert found
