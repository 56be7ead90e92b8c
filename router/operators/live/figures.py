"""The topic ``figures``: how fast the models are, and how many requests they have."""

import time
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Final

from lmx.protocol.messages.status import ModelStatus
from lmx.protocol.token_rates import TokenRates
from lmx.router.http.responses import Answer
from lmx.router.metrics.requests import Ended
from lmx.router.operators.live.feed import Topic, event_text

_LAST_MINUTES_S: Final = 300.0


class LiveModelFigures(Answer):
    """The figures of one model."""

    tokens_per_s: float
    """The tokens that its worker makes, of all requests together, in the last seconds."""
    ttft_s: float | None
    """The median of the times to the first token, of this router's requests that ended in the last
    five minutes, a hundred at most. Null if there are none."""
    prefix_hit_share: float | None
    """The share of those requests' prompt tokens that did not have to be computed. Null if there
    are none."""
    running: int
    """Requests that its worker works on."""
    waiting: int
    """Requests that wait in its worker, and in this router until it is loaded."""


class LiveFigures(Answer):
    """An event `figures` of GET /admin/live. It has all figures each time."""

    at_s: float
    tokens_per_s: float
    """Of all models together, and so are the next two."""
    running: int
    waiting: int
    models: dict[str, LiveModelFigures]
    """The models that have a worker or a request; other ones have no figures."""


def live_figures(
    models: Sequence[ModelStatus],
    rates: TokenRates,
    latest: Callable[[str], Iterable[Ended]],
    waiting: Callable[[str], int],
    now_s: float,
) -> LiveFigures:
    """Return the figures from what is known already: a status, the latest requests of a model, and
    those that wait for it in this router. ``now_s`` is Unix time. Pure."""
    found: dict[str, LiveModelFigures] = {}
    for model in models:
        queued = model.requests_queued + waiting(model.model)
        if model.instance is None and not queued:
            continue
        ended = [one for one in latest(model.model) if one.at_s > now_s - _LAST_MINUTES_S]
        firsts_s = [one.ttft_s for one in ended if one.ttft_s is not None]
        prompt_tokens = sum(one.prompt_tokens for one in ended)
        cached_tokens = sum(one.cached_tokens for one in ended)
        found[model.model] = LiveModelFigures(
            tokens_per_s=round(rates.of(model.instance) or 0.0, 1),
            ttft_s=round(median(firsts_s), 4) if firsts_s else None,
            prefix_hit_share=round(cached_tokens / prompt_tokens, 4) if prompt_tokens else None,
            running=model.requests_active,
            waiting=queued,
        )
    return LiveFigures(
        at_s=round(now_s, 3),
        tokens_per_s=round(sum(one["tokens_per_s"] for one in found.values()), 1),
        running=sum(one["running"] for one in found.values()),
        waiting=sum(one["waiting"] for one in found.values()),
        models=found,
    )


class FiguresTopic(Topic):
    """Makes figures of the models that ``models`` returns; the others are those of
    :func:`live_figures`."""

    def __init__(
        self,
        models: Callable[[], Sequence[ModelStatus]],
        latest: Callable[[str], Iterable[Ended]],
        waiting: Callable[[str], int],
    ) -> None:
        self._models = models
        self._latest = latest
        self._waiting = waiting
        self._rates = TokenRates()
        self._counted: Sequence[ModelStatus] | None = None
        self._sent: LiveFigures | None = None

    async def look(self) -> bytes:
        models = self._models()
        if models is not self._counted:
            self._counted = models
            self._rates.take(models, time.monotonic())
        found = live_figures(models, self._rates, self._latest, self._waiting, time.time())
        if self._sent is not None and {**found, "at_s": 0} == {**self._sent, "at_s": 0}:
            return b""
        self._sent = found
        return event_text("figures", found)

    def whole(self) -> bytes:
        return b"" if self._sent is None else event_text("figures", self._sent)
