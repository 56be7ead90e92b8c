"""Bars with their ranges as an SVG: of `lmx bench` and of the documents. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from lmx.supervisor.cli.bench.figures import Figures, Percentiles, Spread

_COLOURS: Final = ("#0a7d5a", "#c2570c", "#3558c9", "#8a3fb0", "#a08400", "#7a7a7a", "#c02050")
_LETTER_PX, _BAR_PX, _VALUE_PX = 6.6, 420, 130
_ROW_PX, _GAP_PX, _HEAD_PX = 16, 10, 30
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#222}.head{font-weight:600;font-size:14px}"
    ".end{text-anchor:end}.range{stroke:#222;stroke-width:1}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.range{stroke:#ddd}.back{fill:#1b1b1b}}"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One value."""

    label: str
    """Whose it is: its colour."""
    value: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars with one scale, in named groups."""

    title: str
    groups: Sequence[tuple[str, Sequence[Bar]]]


def svg(panels: Sequence[Panel], title: str) -> str:
    """Return panels one below the other. A bar's line is its range."""
    labels = list(
        dict.fromkeys(bar.label for panel in panels for _, bars in panel.groups for bar in bars)
    )
    colours = {label: _COLOURS[place % len(_COLOURS)] for place, label in enumerate(labels)}
    drawn: list[str] = []
    longest = max((len(name) for panel in panels for name, _ in panel.groups), default=0)
    left = round(20 + _LETTER_PX * longest)
    top = _HEAD_PX
    for place, label in enumerate(labels):
        x = 10 + place * 120
        drawn.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colours[label]}"/>')
        drawn.append(_text(x + 17, 21, label))
    for panel in panels:
        drawn.append(_text(10, top + 22, panel.title, "head"))
        top += _HEAD_PX
        most = max((bar.most for _, bars in panel.groups for bar in bars), default=0) or 1
        for name, bars in panel.groups:
            drawn.append(_text(left - 8, top + 12, name, "end"))
            for bar in bars:
                drawn += _bar(bar, (left, top), _BAR_PX / most, colours[bar.label])
                top += _ROW_PX
            top += _GAP_PX
    width, height = left + _BAR_PX + _VALUE_PX, top + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}">\n<title>{escape(title)}</title>\n'
        f'<style>{_STYLE}</style>\n<rect class="back" width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _bar(bar: Bar, corner: tuple[int, int], scale: float, colour: str) -> list[str]:
    left, top = corner
    least, most = (left + each * scale for each in (bar.least, bar.most))
    middle = top + _ROW_PX / 2
    return [
        f'<rect x="{left}" y="{top + 2}" width="{bar.value * scale:.1f}" '
        f'height="{_ROW_PX - 4}" fill="{colour}"/>',
        f'<line class="range" x1="{least:.1f}" x2="{most:.1f}" y1="{middle}" y2="{middle}"/>',
        _text(max(most, left + bar.value * scale) + 6, top + 12, number_text(bar.value)),
    ]


def number_text(value: float) -> str:
    """Return a number with three digits, and a large one without a fraction."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{named}>{escape(text)}</text>'


def panels_of(phases: Sequence[tuple[str, dict[str, list[Figures]]]]) -> list[Panel]:
    """Return the panels of `lmx bench`: rates and times of the phases, whose names come with the
    figures of each server."""
    found = []
    for title, spread_of in _PANELS.items():
        groups = []
        for name, servers in phases:
            spreads = {label: spread_of(kinds[0]) for label, kinds in servers.items()}
            bars = [
                Bar(label, spread.median, spread.least, spread.most)
                for label, spread in spreads.items()
                if spread is not None
            ]
            if bars:
                groups.append((name, bars))
        if groups:
            found.append(Panel(title, groups))
    return found


def _in_ms(found: Percentiles | None) -> Spread | None:
    if found is None:
        return None
    spread = found.of_rounds
    return Spread(1000 * spread.median, 1000 * spread.least, 1000 * spread.most)


_PANELS: Final[dict[str, Callable[[Figures], Spread | None]]] = {
    "tokens a second": lambda one: one.tokens_per_s,
    "milliseconds to the first token, median": lambda one: _in_ms(one.first_token_s),
    "milliseconds to the next token, median": lambda one: _in_ms(one.next_token_s),
    "processor milliseconds a token": lambda one: one.cpu_ms_per_token,
}
