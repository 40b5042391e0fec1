"""The plot: each proxy's cost as a share of the Go proxy's, as an SVG without any library."""

from __future__ import annotations

from html import escape
from statistics import median
from typing import Any

from bench.table import COLUMNS, values

GROUPS = (
    ("h1_to_h2_x64_1kb_1kb", "cpu_us", "CPU, 1 KB / 1 KB"),
    ("h1_to_h2_x64_64kb_34kb", "cpu_us", "CPU, 64 KB / 34 KB"),
    ("bulk_up_x8_8mb", "cpu_s_per_gb", "CPU, 8 MB up"),
    ("bulk_down_x8_8mb", "cpu_s_per_gb", "CPU, 8 MB down"),
    ("sse_x200_20_per_s", "cpu_us", "CPU, server-sent events"),
    ("in_flight_8000_1kb", "kb_per_request", "memory, 8,000 in flight, 1 KB"),
)
_SHADES = {"h2ping": "#1a7f37", "go": "#57606a", "envoy": "#8c959f", "nghttpx": "#bf8700"}
_BAR, _GAP, _LEFT, _WIDE, _MOST = 14, 16, 210, 420, 1.6


def svg(results: dict[str, Any]) -> str:
    """The picture; groups that were not measured are left out."""
    rows: list[str] = []
    top = 40
    for name, figure, title in GROUPS:
        found = {proxy: values(results, name, proxy, figure) for proxy in _SHADES}
        if not found["go"] or not found["h2ping"]:
            continue
        base = median(found["go"])
        rows.append(_text(_LEFT - 10, top + _BAR * 2 + 4, title, "end"))
        for proxy, measured in found.items():
            if measured:
                rows.append(_bar(top, median(measured) / base, proxy))
            top += _BAR
        top += _GAP
    legend = "".join(
        f'<rect x="{_LEFT + i * 105}" y="12" width="12" height="12" fill="{shade}"/>'
        + _text(_LEFT + 17 + i * 105, 22, COLUMNS[proxy])
        for i, (proxy, shade) in enumerate(_SHADES.items())
    )
    line = _LEFT + _WIDE / _MOST
    mark = f'<line x1="{line}" y1="34" x2="{line}" y2="{top}" stroke="#57606a" stroke-dasharray="3 3"/>'
    width = _LEFT + _WIDE + 60
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top + 20}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="#ffffff"/>{legend}{"".join(rows)}{mark}'
        + _text(line, top + 14, "the Go proxy = 1; shorter is better", "middle")
        + "</svg>\n"
    )


def _bar(top: int, share: float, proxy: str) -> str:
    width = min(share, _MOST) * _WIDE / _MOST
    shape = f'<rect x="{_LEFT}" y="{top}" width="{width:.1f}" height="{_BAR - 2}" fill="{_SHADES[proxy]}"/>'
    return shape + _text(_LEFT + width + 5, top + 10, f"{share:.2f}")


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" fill="#24292f">{escape(words)}</text>'
