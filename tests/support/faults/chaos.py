"""A stormy day for one lmx, drawn from a seed: who asks what and when, and what goes wrong.

Values only; who carries it out is ``chaos_run.py``, who watches is ``chaos_watch.py``.
"""

import random
from dataclasses import dataclass
from typing import Any

from tests.support.rigs.rig import scripted

MIB = 1024**2
SIZES_MIB = {
    "pinned": 128, "tiny": 128, "small": 160, "medium": 192,
    "large": 224, "larger": 256, "huge": 320, "vast": 384,
}  # fmt: skip
"""224 MiB in the mean. A worker of the scripted engine takes some 60 MiB, so that no estimate is
ever too low: what is under test are the decisions, not the figures."""

BUDGET_MIB = 704
"""Three models of the mean size, and a little."""

_WEIGHTS = (4, 30, 20, 14, 12, 9, 7, 4)
BAD_LOADS = {"medium": (1, 5, 9, 14, 20), "huge": (2, 3, 4, 5, 6)}
"""Which of a model's loads fail, by their number: now and then, and until it is quarantined."""

_DEADLY: tuple[dict[str, Any], ...] = (
    {"crash_at": 2}, {"abort_at": 2}, {"step_raise_at": 2}, {"memory_error_at": 2}, {"hang_at": 2},
)  # fmt: skip
"""They take down every request that their worker has at the time."""

_FAILING: tuple[dict[str, Any], ...] = ({"raise_at": 2}, {"fail_at": 2})
"""They fail alone."""

_KEEP_ALIVES: tuple[Any, ...] = (0, 0.3, "2s", "1m", -1)


@dataclass(frozen=True)
class Asked:
    """One request: when it comes, in seconds from the start, and whether its client leaves
    before the end. ``content`` is the scripted engine's directive."""

    at_s: float
    model: str
    content: dict[str, Any]
    stream: bool
    keep_alive: Any = None
    leaves_after_s: float | None = None

    @property
    def text(self) -> str:
        """The whole answer."""
        return "word " * int(self.content["tokens"])


@dataclass(frozen=True)
class Blow:
    """Something done to a model from outside: ``sigkill`` its process, or ``kill``, ``reset``
    by the CLI."""

    at_s: float
    kind: str
    model: str


@dataclass(frozen=True)
class Day:
    """All that happens. ``config`` is what lmx runs with."""

    config: dict[str, Any]
    requests: tuple[Asked, ...]
    blows: tuple[Blow, ...]


def make_day(seed: int, requests: int, rate_per_s: float) -> Day:
    """Draw a day of so many requests, of which so many come in a second in the mean."""
    draw = random.Random(seed)
    troubles = [*_DEADLY * max(1, requests // 400), *_FAILING * (requests // 100)]
    contents = [*troubles, *({} for _ in range(requests - len(troubles)))]
    draw.shuffle(contents)
    at_s, asked = 0.0, []
    for trouble in contents:
        at_s += draw.expovariate(rate_per_s)
        asked.append(_request(draw, at_s, trouble))
    blows = [
        Blow(draw.uniform(0, at_s), kind, draw.choice([*models]))
        for kind, count, models in (
            ("sigkill", requests // 100, SIZES_MIB),
            ("kill", max(1, requests // 400), SIZES_MIB),
            ("reset", requests // 200, ("tiny", "small", *BAD_LOADS)),
        )
        for _ in range(count)
    ]
    return Day(_config(), tuple(asked), tuple(sorted(blows, key=lambda blow: blow.at_s)))


def _request(draw: random.Random, at_s: float, trouble: dict[str, Any]) -> Asked:
    (model,) = draw.choices([*SIZES_MIB], _WEIGHTS)
    content: dict[str, Any] = {"tokens": draw.choice((3, 5, 8, 20))}
    if draw.random() < 0.25:
        content = {"tokens": draw.randint(10, 60), "step_s": 0.02}
    return Asked(
        at_s,
        model,
        content | trouble,
        stream=draw.random() < 0.6,
        keep_alive=draw.choice(_KEEP_ALIVES) if draw.random() < 0.1 else None,
        leaves_after_s=draw.uniform(0, 1.5) if not trouble and draw.random() < 0.08 else None,
    )


def _config() -> dict[str, Any]:
    models = [
        scripted(
            name,
            memory_bytes=f"{size} MiB",
            preload=name == "pinned",
            pinned=name == "pinned",
            options={"load_s": 0.1, "bad_loads": list(BAD_LOADS.get(name, ()))},
        )
        for name, size in SIZES_MIB.items()
    ]
    return {
        "models": models,
        "server": {"load_wait_s": 40, "ping_interval_s": 1},
        "memory": {
            "budget_bytes": f"{BUDGET_MIB} MiB", "min_residency_s": 1.0, "fair_wait_s": 3.0,
        },
        "timing": {"term_grace_s": 1.0, "abort_grace_s": 0.5},
        # A model that is hit so often is quarantined now and then; an operator resets it.
        "restart": {"backoff_base_s": 0.1, "backoff_max_s": 1.0, "max_failures": 3,
                    "window_s": 30},
    }  # fmt: skip
