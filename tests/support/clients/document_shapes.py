"""Whether an answer has the shape of a document's example: all its keys, of one type. Pure."""

from typing import Any, Final

SAME_VALUE: Final = frozenset({"object", "role", "type", "success", "index"})
"""Keys whose value is part of the contract, wherever they are."""

NEVER_YET: Final = frozenset({"last_used_at", "loaded_at"})
"""Times of things that may not have happened: null then, though the example has a time."""

_FRACTIONS: Final = ("_percent", "_gb", "_ms", "_seconds", "_mbps", "_tps", "_mb")
"""An example may show a whole number where the quantity has fractions."""


def differences(example: Any, ours: Any, where: str = "", *, strict: bool = True) -> list[str]:
    """Return what an answer lacks beside an example: nothing, where the shape is the same.

    More keys than the example's are allowed. A null says nothing of the type, and its key may be
    left out: that is the same to every client. A list stands for any number of things like its
    first; with ``strict`` there is one at least. ``strict`` also holds values of SAME_VALUE equal.
    """
    if example is None:
        return []
    if isinstance(example, dict):
        if not isinstance(ours, dict):
            return [f"{where}: {ours!r} is no object"]
        found = []
        for key, value in example.items():
            place = f"{where}.{key}".lstrip(".")
            if key not in ours:
                found += [] if value is None else [f"{place} is missing"]
            elif strict and key in SAME_VALUE and ours[key] != value:
                found.append(f"{place} is {ours[key]!r}, not {value!r}")
            elif ours[key] is not None or key not in NEVER_YET:
                found += differences(value, ours[key], place, strict=strict)
        return found
    if isinstance(example, list):
        if not isinstance(ours, list):
            return [f"{where}: {ours!r} is no list"]
        if not example or not ours:
            return [f"{where} is empty"] if strict and example else []
        return [
            fault
            for place, item in enumerate(ours)
            for fault in differences(example[0], item, f"{where}[{place}]", strict=False)
        ]
    return [] if _same_type(example, ours, where) else [f"{where}: {ours!r}, example {example!r}"]


def _same_type(example: Any, ours: Any, where: str) -> bool:
    if isinstance(example, bool) or isinstance(ours, bool):
        return type(example) is type(ours)
    if isinstance(example, int) and not where.endswith(_FRACTIONS):
        return isinstance(ours, int)
    if isinstance(example, (int, float)):
        return isinstance(ours, (int, float))
    return type(example) is type(ours)
