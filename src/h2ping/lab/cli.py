"""The commands `h2ping demo` and `h2ping lab [trace|proof|memory|soak]`. Exit code 0: it held."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, TypeVar

from h2ping import lifecycle
from h2ping.address import Address
from h2ping.lab import crowd, proof, rollout, soak
from h2ping.lab.demo import Board, Plan, as_json, verdict
from h2ping.lab.demo import run as run_demo
from h2ping.lab.loop import new_loop
from h2ping.lab.origin import LabOrigin
from h2ping.lab.proxy import ProxyDied
from h2ping.lab.relay import MODES, Relay
from h2ping.lab.script import Script
from h2ping.lab.trace import FAST, JUDGE, Scale
from h2ping.options import Parser, count, count_or_none, duration, factor, option, port, share, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Sequence

    from h2ping.lab.report import Report

Result = TypeVar("Result")

INTERRUPTED = 130
TERMINATED = 143


def demo(argv: Sequence[str]) -> int:
    """`h2ping demo`."""
    parser = Parser(
        prog="h2ping demo",
        description="The same slow calls straight and through h2ping, over a simulated path that cuts what "
        "is silent for 3 s. No network, no account, about ten seconds. Exit code 0: every straight call died "
        "and every call through h2ping lived.",
    )
    parser.add_argument("--calls", type=count, default=8, help="calls on each side (default 8)")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the picture")
    options = parser.parse_args(argv)

    async def work() -> int:
        state = await run_demo(Plan(calls=options.calls), Board(sys.stdout, quiet=options.json))
        print(as_json(state) if options.json else "\n".join(verdict(state)), flush=True)
        return 0 if state.held else 1

    return _run(work())


def lab(argv: Sequence[str]) -> int:
    """`h2ping lab`, alone or with a command."""
    parser = Parser(
        prog="h2ping lab",
        description="The path, simulated: an HTTP/2 origin with an OpenAI-like endpoint behind a relay with "
        "the timers of the real path. Without a command it runs in the foreground. Times are seconds of the "
        "path.",
    )
    _add_foreground(parser)
    commands = parser.add_subparsers(dest="command", metavar="trace|proof|memory|soak")
    _add_trace(
        commands.add_parser("trace", help="a run of judge calls in scaled time: none lost, none twice")
    )
    _add_proof(commands.add_parser("proof", help="a 400 s silent call through a relay that cuts at 340 s"))
    _add_memory(commands.add_parser("memory", help="2,000 calls of 512 KiB under a limit of 256 MiB"))
    _add_soak(commands.add_parser("soak", help="minutes of judge calls while everything breaks at random"))
    options = parser.parse_args(argv)
    lifecycle.raise_file_limit()  # sockets of thousands of calls on both sides of everything
    if options.command == "trace":
        return _report(options, lambda tell: rollout.run(_trace_plan(options), tell))
    if options.command == "proof":
        plan = proof.Plan(options.silence, options.cut, options.ping_interval, options.mode)
        return _report(options, lambda tell: proof.run(plan, tell))
    if options.command == "memory":
        crowd_plan = crowd.Plan(
            calls=options.calls,
            body_bytes=options.body,
            limit_bytes=options.limit,
            keep=not options.skip_keep,
            quoted=options.quoted,
            compress=options.compress,
            go_on=options.go_on,
        )
        return _report(options, lambda tell: crowd.run(crowd_plan, tell))
    if options.command == "soak":
        soak_plan = soak.Plan(
            minutes=options.minutes, callers=options.callers, scale=Scale(options.scale), seed=options.seed
        )
        return _report(options, lambda tell: soak.run(soak_plan, tell))
    return _run(_foreground(options))


def _add_foreground(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port, default=0, help="port of the relay (default: a free one)")
    parser.add_argument(
        "--idle-cut",
        type=duration,
        default=340.0,
        metavar="D",
        help="the relay cuts a connection silent for so long (340s; 0 never)",
    )
    parser.add_argument("--mode", choices=MODES, default="rst", help="how the relay cuts (default rst)")
    parser.add_argument(
        "--max-age",
        type=duration,
        default=3600.0,
        metavar="D",
        help="GOAWAY at this age of a connection (3600s)",
    )
    parser.add_argument(
        "--max-requests",
        type=count_or_none,
        default=10_000,
        metavar="N",
        help="GOAWAY after N requests on one (10000)",
    )
    parser.add_argument(
        "--max-streams", type=count, default=128, metavar="N", help="streams per connection (128)"
    )
    parser.add_argument(
        "--goaway-every",
        type=count_or_none,
        default=0,
        metavar="N",
        help="refuse every n-th request by GOAWAY",
    )
    parser.add_argument(
        "--refuse-every",
        type=count_or_none,
        default=0,
        metavar="N",
        help="refuse every n-th request by REFUSED_STREAM",
    )
    parser.add_argument("--ignore-pings", action="store_true", help="never answer a PING")
    parser.add_argument("--http1", action="store_true", help="speak HTTP/1.1 to clients that offer only that")
    parser.add_argument(
        "--delay",
        type=option(_delay),
        default="0",
        metavar="D|judge|fast",
        help="time until an answer begins, or a distribution",
    )
    parser.add_argument("--scale", type=factor, default=1.0, metavar="N", help="divide every time by N")


def _add_trace(parser: argparse.ArgumentParser) -> None:
    plan = rollout.Plan()
    parser.add_argument("--calls", type=count, default=plan.calls, help="how many calls (600)")
    parser.add_argument(
        "--scale", type=factor, default=100.0, metavar="N", help="divide every time by N (100)"
    )
    parser.add_argument(
        "--fast", type=count_or_none, default=0, metavar="N", help="how many of them are of about 1 s"
    )
    parser.add_argument(
        "--rush",
        type=count_or_none,
        default=0,
        metavar="N",
        help="how many of those come first, over one connection",
    )
    parser.add_argument("--at-once", type=count, default=plan.at_once, help="calls of the first burst (300)")
    parser.add_argument(
        "--spread", type=duration, default=None, metavar="D", help="time for the others to come"
    )
    parser.add_argument("--max-conns", type=count, default=plan.max_conns, help="connections of h2ping (2)")
    parser.add_argument(
        "--ping-timeout", type=duration, default=plan.ping_timeout, metavar="D", help="h2ping's (300s)"
    )
    parser.add_argument("--without-ping", action="store_true", help="the control: it should not hold")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def _trace_plan(options: argparse.Namespace) -> rollout.Plan:
    plan = rollout.Plan()
    # As many calls in flight as the first burst has, however long the run.
    spread = max(plan.spread, (options.calls - options.rush) * 310.0 / options.at_once)
    return rollout.Plan(
        calls=options.calls,
        fast=min(options.fast, options.calls),
        rush=min(options.rush, options.fast, options.calls),
        scale=Scale(options.scale),
        at_once=min(options.at_once, options.calls),
        spread=spread if options.spread is None else options.spread,
        max_conns=options.max_conns,
        pings=not options.without_ping,
        ping_timeout=options.ping_timeout,
    )


def _add_proof(parser: argparse.ArgumentParser) -> None:
    plan = proof.Plan()
    parser.add_argument(
        "--silence", type=duration, default=plan.silence, metavar="D", help="until the answer begins (400s)"
    )
    parser.add_argument(
        "--cut",
        type=duration,
        default=plan.cut,
        metavar="D",
        help="the relay cuts a connection silent for so long (340s)",
    )
    parser.add_argument(
        "--ping-interval", type=duration, default=plan.ping_interval, metavar="D", help="h2ping's (60s)"
    )
    parser.add_argument("--mode", choices=MODES[:2], default=plan.mode, help="how the relay cuts (rst)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def _add_memory(parser: argparse.ArgumentParser) -> None:
    plan = crowd.Plan()
    parser.add_argument("--calls", type=count, default=plan.calls, help="how many calls (2000)")
    parser.add_argument(
        "--body", type=size, default=plan.body_bytes, metavar="BYTES", help="size of a body (512KiB)"
    )
    parser.add_argument(
        "--limit", type=size, default=plan.limit_bytes, metavar="BYTES", help="h2ping's -max-memory (256MiB)"
    )
    parser.add_argument("--skip-keep", action="store_true", help="leave out -memory-pressure keep")
    parser.add_argument(
        "--quoted", type=share, default=None, metavar="X",
        help="bodies are conversations with this share of repeats (0.5: like prose, 0.7: like code) instead of x",
    )  # fmt: skip
    parser.add_argument("--compress", action="store_true", help="with -compress-waiting-bodies")
    parser.add_argument(
        "--go-on", type=factor, default=None, metavar="SECONDS",
        help="one client calls this often while memory goes back, three calls at a time (none)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def _add_soak(parser: argparse.ArgumentParser) -> None:
    plan = soak.Plan()
    parser.add_argument("--minutes", type=factor, default=plan.minutes, metavar="N", help="how long (5)")
    parser.add_argument(
        "--callers", type=count, default=plan.callers, metavar="N", help="calls at a time (120)"
    )
    parser.add_argument(
        "--scale", type=factor, default=100.0, metavar="N", help="divide every time by N (100)"
    )
    parser.add_argument("--seed", type=int, default=plan.seed, metavar="N", help="of everything random")
    parser.add_argument("--json", action="store_true", help="one line of JSON")


def _report(
    options: argparse.Namespace, start: Callable[[Callable[[str], None]], Coroutine[object, object, Report]]
) -> int:
    def tell(line: str) -> None:
        if not options.json:
            print(line, flush=True)

    async def work() -> int:
        report = await start(tell)
        print(report.json() if options.json else report.text(), flush=True)
        return 0 if report.held else 1

    return _run(work())


async def _foreground(options: argparse.Namespace) -> int:
    scale = Scale(options.scale)
    script = Script(
        alpn=("h2", "http/1.1") if options.http1 else ("h2",),
        max_age=options.max_age,
        max_requests=options.max_requests,
        max_streams=options.max_streams,
        goaway_every=options.goaway_every,
        refuse_every=options.refuse_every,
        ignore_pings=options.ignore_pings,
        delay=options.delay,
        keep_records=False,
    )
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with LabOrigin(script, scale=scale) as origin:
        relay = Relay(
            origin.port, port=options.port, idle_cut=options.idle_cut, mode=options.mode, scale=scale
        )
        try:
            await relay.accept()
        except OSError as error:
            raise lifecycle.cannot_bind(Address(relay.host, options.port), error) from None
        async with relay:
            cut = scale.of(options.idle_cut)
            print(f"upstream  {relay.url}   cut after {cut:g} s of silence ({options.mode})")
            print(f"CA file   {origin.ca_file}   (gone when the lab stops)")
            print(
                f"paste     h2ping -upstream {relay.url} -ca-file {origin.ca_file}{_timers(options, scale)}"
            )
            print("then      curl -H 'x-lab-delay: 5' http://127.0.0.1:1250/v1/models", flush=True)
            await stopped.wait()
        print(
            f"{origin.executed} requests executed ({len(origin.twice)} ids twice) on {origin.connections} "
            f"connections, {origin.pings} PINGs, {origin.goaways} GOAWAYs, {relay.cuts} cut by the relay"
        )
        for breach in origin.violations[:10]:
            print(f"client broke HTTP/2: {breach}")
    return 0


def _timers(options: argparse.Namespace, scale: Scale) -> str:
    """Flags for a path that cuts earlier than the real one."""
    cut = scale.of(options.idle_cut)
    if not 0 < cut < 340:
        return ""
    return f" -idle-limit {cut * 1000:.0f}ms -ping-interval {cut * 1000 * 60 / 340:.0f}ms"


def _delay(text: str) -> float | Callable[[], float]:
    for delays in (JUDGE, FAST):
        if text == delays.name:
            samples = iter(delays.samples(100_000))
            return lambda: next(samples)
    return duration(text)


def _run(work: Coroutine[object, object, int]) -> int:
    """On uvloop where it can be had. Ctrl-C is 130; SIGTERM is 143, and leaves no CA file behind either."""
    loop = new_loop()
    task = loop.create_task(work)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        return TERMINATED
    except KeyboardInterrupt:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        return INTERRUPTED
    except ProxyDied as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
