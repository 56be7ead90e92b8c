"""What a benchmark found, and the page that it is written to."""

import ctypes.util
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Section:
    """One table: what it shows, how it was measured, its rows (the first is the head)."""

    title: str
    text: str
    rows: Sequence[Sequence[str]]


def write_page(sections: Sequence[Section], model: str) -> None:
    """Write all of ``docs/benchmarks.md``."""
    blas = ", OpenBLAS" if ctypes.util.find_library("openblas") else ""
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench` in one run: run it on your own machine, and compare ratios, not "
        "machines. Where a text does not say otherwise, the figures are medians of turns. What a "
        "text says of other versions was measured when they were made.",
        "",
        f"Machine: {platform.system()} {platform.machine()}, {os.cpu_count()} cores; "
        f"mlx {version('mlx')}, mlx-vlm {version('mlx-vlm')}{blas}; model: {model}.",
        "",
        "Compared with other servers: [benchmarks-peers.md](benchmarks-peers.md), by `make "
        "bench-peers`; on a GPU: [benchmarks-gpu.md](benchmarks-gpu.md), by `make bench-device`. "
        "Of your own machine and models: `lmx bench` ([measuring.md](measuring.md)).",
    ]
    for section in sections:
        lines += section_lines(section)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines) + "\n")


def section_lines(section: Section) -> list[str]:
    """Return a section as Markdown."""
    head, *body = section.rows
    lines = ["", f"## {section.title}", "", section.text, ""]
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in body]
