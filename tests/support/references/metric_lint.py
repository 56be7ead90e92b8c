"""promtool's rules for an exposition, and stricter ones, in Python: for machines without it.

Reads the text itself, so that what the client library's own parser forgives is seen.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)\Z")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|\Z)')
_SUFFIXES = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
}
_OTHER_UNITS = re.compile(
    r"_(ms|us|ns|milliseconds|microseconds|minutes|hours|days|kb|mb|gb|kib|mib|gib|kilobytes"
    r"|megabytes|gigabytes|percent)(_|\Z)"
)
_Series = tuple[str, tuple[tuple[str, str], ...]]


def problems(text: str) -> list[str]:
    """Return all that is wrong with an exposition, one sentence each."""
    return list(_problems(text))


def _problems(text: str) -> Iterator[str]:
    helps: dict[str, str] = {}
    types: dict[str, str] = {}
    series: dict[_Series, float] = {}
    closed: set[str] = set()
    current: str | None = None
    if not text.endswith("\n"):
        yield "the last line has no end"
    for line in text.splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            _, what, name, rest = (
                line.split(" ", 3) if line.count(" ") > 2 else (*line.split(" "), "")
            )
            known = helps if what == "HELP" else types
            if name in known:
                yield f"{name} has two {what} lines"
            known[name] = rest
            if name != current:
                if name in closed:
                    yield f"{name} is in several pieces"
                closed.add(name)
                current = name
            continue
        match = _SAMPLE.match(line)
        if match is None:
            yield f"not a sample: {line!r}"
            continue
        name, labels_text, value_text = match.groups()
        labels = tuple(sorted(_LABEL.findall(labels_text or "")))
        if _LABEL.sub("", labels_text or ""):
            yield f"labels of {line!r} can't be read"
        if len({key for key, _ in labels}) != len(labels):
            yield f"a label is there twice: {line!r}"
        value = float(value_text)
        if math.isnan(value):
            yield f"not a number: {line!r}"
        if (name, labels) in series:
            yield f"twice: {name} {labels}"
        series[name, labels] = value
        if current is None or name not in _members(current, types.get(current, "")):
            yield f"{name} stands outside of its family"
    for name, kind in types.items():
        yield from _of_family(name, kind, helps.get(name, ""))
        if kind == "histogram":
            yield from _of_histogram(name, series)


def _members(name: str, kind: str) -> set[str]:
    return {f"{name}{suffix}" for suffix in _SUFFIXES.get(kind, ("",))}


def _of_family(name: str, kind: str, help_text: str) -> Iterator[str]:
    if not _NAME.match(name):
        yield f"{name} is no plain name"
    if not help_text.strip():
        yield f"{name} has no help text"
    if kind not in ("counter", "gauge", "histogram", "summary"):
        yield f"{name} is of type {kind!r}"
    if (kind == "counter") is not name.endswith("_total"):
        yield f"{name} is a {kind}: counters end in _total, and nothing else does"
    if kind == "gauge" and name.endswith(("_count", "_sum", "_bucket")):
        yield f"{name} looks like a part of a histogram"
    if re.search(rf"_{kind}(_|\Z)", name):
        yield f"{name} names its type"
    if _OTHER_UNITS.search(name):
        yield f"{name} is not in a base unit"


def _of_histogram(name: str, series: dict[_Series, float]) -> Iterator[str]:
    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for (member, labels), value in series.items():
        if member == f"{name}_bucket":
            rest = tuple(pair for pair in labels if pair[0] != "le")
            buckets[rest].append((float(dict(labels)["le"]), value))
    for labels, found in buckets.items():
        bounds, counts = zip(*found, strict=True)
        if list(bounds) != sorted(set(bounds)) or bounds[-1] != math.inf:
            yield f"{name}{labels}: bounds {bounds}"
        if list(counts) != sorted(counts):
            yield f"{name}{labels}: counts go down: {counts}"
        if series.get((f"{name}_count", labels)) != counts[-1]:
            yield f"{name}{labels}: _count is not that of +Inf"
        if (f"{name}_sum", labels) not in series:
            yield f"{name}{labels}: no _sum"
