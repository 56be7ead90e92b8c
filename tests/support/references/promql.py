"""The metrics and labels that a PromQL expression names, compared with what an exposition has.

It reads names and does not parse the language: whether an expression is one, Prometheus says itself
where a test can start it.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_GROUPING: Final = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_RANGE: Final = re.compile(r"\[[^\]]*\]")
_SELECTOR: Final = re.compile(rf"([a-z_]\w*)\s*(\{{(?:[^}}\"]|{_STRING})*\}}|(?!\w|\s*\())")
_MATCHER: Final = re.compile(rf"(\w+)\s*(=~|!~|!=|=)\s*({_STRING})")
_WORDS: Final = frozenset({"and", "or", "unless", "bool", "offset"})
_PARTS: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}
_OF_PROMETHEUS: Final = {"up": {"instance", "job"}}
_ADDED: Final = frozenset({"instance", "job"})
"""The labels that a scrape puts on every series."""


class Known:
    """The series of an exposition: their names, labels and labels' values."""

    def __init__(self, text: str) -> None:
        self.labels: dict[str, set[str]] = {name: set(of) for name, of in _OF_PROMETHEUS.items()}
        self._values: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._seen: set[str] = set()
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            for part in _PARTS.get(family.type, ("",)):
                self.labels.setdefault(name + part, set(_ADDED))
            for sample in family.samples:
                self._seen.add(sample.name)
                self.labels[sample.name] |= set(sample.labels)
                for label, value in sample.labels.items():
                    self._values[sample.name, label].add(value)

    def faults(self, expression: str) -> Iterator[str]:
        """Yield what ``expression`` names that there is not, one sentence each. Labels and their
        values are compared where the exposition has a series of the metric."""
        names: set[str] = set()
        bare = _RANGE.sub("", _GROUPING.sub("", expression))
        for name, matchers in _SELECTOR.findall(re.sub(rf"(?<![=~\s]){_STRING}", "", bare)):
            if name in _WORDS:
                continue
            names.add(name)
            if name not in self.labels:
                yield f"there is no {name}"
                continue
            for label, _, value in _MATCHER.findall(matchers):
                if name in self._seen and label not in self.labels[name]:
                    yield f"{name} has no label {label}"
                elif name in self._seen and label not in _ADDED and "$" not in value:
                    known = self._values[name, label]
                    for one in set(value.strip('"').split("|")) - known:
                        yield f"{label} of {name} is never {one}"
        if not names:
            yield "it names no metric"
        if names <= self._seen:
            grouped = {
                one.strip() for each in _GROUPING.findall(expression) for one in each.split(",")
            }
            for label in grouped - set().union(*(self.labels[name] for name in names)):
                yield f"it groups by {label}, which none of {sorted(names)} has"
