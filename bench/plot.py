"""The plots, as SVG without any library: cost as a share of the Go proxy's, and CPU against open streams."""

from __future__ import annotations

import math
from html import escape
from statistics import median
from typing import Any

from bench.goals import COLUMNS, ratio_of, values

GROUPS = (
    ("h1_to_h2_x64_1kb_1kb", "cpu_us", "CPU, 1 KB / 1 KB"),
    ("h1_to_h2_x64_64kb_34kb", "cpu_us", "CPU, 64 KB / 34 KB"),
    ("bulk_up_x8_8mb", "cpu_s_per_gb", "CPU, 8 MB up"),
    ("bulk_down_x8_8mb", "cpu_s_per_gb", "CPU, 8 MB down"),
    ("sse_x200_20_per_s", "cpu_us", "CPU, server-sent events"),
    ("in_flight_8000_1kb", "kb_per_request", "memory, 8,000 in flight, 1 KB"),
)
OPEN_STREAMS = (1, 100, 1000, 8000)
_SHADES = {"h2ping": "#1a7f37", "go": "#57606a", "envoy": "#8c959f", "nghttpx": "#bf8700"}
_BAR, _GAP, _LEFT, _WIDE, _MOST = 14, 16, 210, 420, 1.6


def bars(results: dict[str, Any]) -> str:
    """Each proxy by Go, the median of the ratios within each round; groups that were not measured are left out."""
    rows: list[str] = []
    top = 40
    for name, figure, title in GROUPS:
        found = {proxy: ratio_of(results, name, proxy, "go", figure) for proxy in _SHADES}
        if found["go"] is None or found["h2ping"] is None:
            continue
        rows.append(_text(_LEFT - 10, top + _BAR * 2 + 4, title, "end"))
        for proxy, share in found.items():
            if share is not None:
                rows.append(_bar(top, share, proxy))
            top += _BAR
        top += _GAP
    line = _LEFT + _WIDE / _MOST
    rows.append(f'<line x1="{line}" y1="34" x2="{line}" y2="{top}" stroke="#57606a" stroke-dasharray="3 3"/>')
    rows.append(_text(line, top + 14, "the Go proxy = 1; shorter is better", "middle"))
    return _picture(top + 20, rows)


def growth(results: dict[str, Any]) -> str:
    """CPU of a request against the requests that wait beside it; a horizontal line is what it should be."""
    top, bottom = 40, 240
    found = {
        proxy: [
            (held, median(measured))
            for held in OPEN_STREAMS
            if (measured := values(results, f"open_streams_{held}", proxy, "cpu_us"))
        ]
        for proxy in _SHADES
    }
    most = max((figure for points in found.values() for _, figure in points), default=1) * 1.1

    def x(held: int) -> float:
        return _LEFT + _WIDE * math.log10(held) / math.log10(OPEN_STREAMS[-1])

    rows = [_text(x(held), bottom + 16, f"{held:,}", "middle") for held in OPEN_STREAMS]
    rows.append(_text(_LEFT + _WIDE / 2, bottom + 34, "requests that wait beside it", "middle"))
    rows.append(_text(_LEFT - 10, (top + bottom) / 2, "CPU us per request", "end"))
    rows.append(f'<path d="M{_LEFT} {top}V{bottom}H{_LEFT + _WIDE}" fill="none" stroke="#57606a"/>')
    for proxy, points in found.items():
        places = [(x(held), bottom - (bottom - top) * figure / most, figure) for held, figure in points]
        line = " ".join(f"{across:.1f},{down:.1f}" for across, down, _ in places)
        rows.append(f'<polyline points="{line}" fill="none" stroke="{_SHADES[proxy]}" stroke-width="2"/>')
        rows += [_text(across, down - 5, f"{figure:.0f}", "middle") for across, down, figure in places]
    return _picture(bottom + 44, rows)


def _picture(height: float, rows: list[str]) -> str:
    legend = "".join(
        f'<rect x="{_LEFT + i * 105}" y="12" width="12" height="12" fill="{shade}"/>'
        + _text(_LEFT + 17 + i * 105, 22, COLUMNS[proxy])
        for i, (proxy, shade) in enumerate(_SHADES.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDE + 60} {height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>'
        f"{legend}{''.join(rows)}</svg>\n"
    )


def _bar(top: int, share: float, proxy: str) -> str:
    width = min(share, _MOST) * _WIDE / _MOST
    shape = f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR - 2}" fill="{_SHADES[proxy]}"/>'
    return shape + _text(_LEFT + width + 5, top + 10, f"{share:.2f}")


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="#24292f">{escape(words)}</text>'
