"""From what was counted of requests to metrics in Prometheus' terms. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from lmx.router.measures import DURATION, GAPS, MEASURES
from lmx.router.request_metrics import REASONS, ModelTally, Reading

_TOKENS: Final = (
    ("prompt_tokens", "Tokens of prompts, cached ones among them.", "prompt_tokens"),
    ("prompt_tokens_cached", "Tokens of prompts that were in a cache.", "cached_tokens"),
    (
        "generation_tokens",
        "Tokens of answers, also of those that were cut off.",
        "completion_tokens",
    ),
)


def request_families(reading: Reading) -> Iterator[Metric]:
    """Yield the metrics of requests. The labels are the models that there are and one for none
    of them, kinds of ends, codes of errors, routes and classes of status: as many as there are,
    and no more. A histogram begins with a model's first value."""
    totals, models = reading.totals, reading.models
    yield CounterMetricFamily(
        "lmx_requests", "Requests for models that have ended.", value=totals.requests
    )
    yield CounterMetricFamily(
        "lmx_errors", "Requests for models that ended with an error.", value=totals.errors
    )
    yield CounterMetricFamily(
        "lmx_stream_requests", "Requests for models that asked for a stream.", value=totals.streams
    )
    yield from _outcomes(models)
    for name, help_text, field in _TOKENS:
        tokens = CounterMetricFamily(f"lmx_{name}", help_text, labels=["model"])
        for model_id, tally in models.items():
            tokens.add_metric([model_id], getattr(tally, field))
        yield tokens
    for measure in (DURATION, *MEASURES, GAPS):
        family = HistogramMetricFamily(f"lmx_{measure.name}", measure.help_text, labels=["model"])
        for model_id, tally in models.items():
            histogram = tally.histograms[measure.name]
            if histogram.count:
                family.add_metric([model_id], histogram.buckets(), histogram.total)
        yield family
    http = CounterMetricFamily(
        "lmx_http_requests",
        "Requests by route, polls of health and metrics left out.",
        labels=["method", "route", "status"],
    )
    for key, count in sorted(reading.http.items()):
        http.add_metric(key, count)
    yield http
    limited = CounterMetricFamily(
        "lmx_rate_limited_requests",
        "Requests that a limit refused, by whose it is (`key`, `total`) and what it limits.",
        labels=["scope", "limit"],
    )
    for reason, count in sorted(reading.limited.items()):
        limited.add_metric(reason, count)
    yield limited


def _outcomes(models: Mapping[str, ModelTally]) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "lmx_request_success",
        "Requests that ended without an error, by why; `abort`: their client left.",
        labels=["model", "finished_reason"],
    )
    failed = CounterMetricFamily(
        "lmx_request_errors", "Requests that ended with an error.", labels=["model", "code"]
    )
    for model_id, tally in models.items():
        for reason in REASONS:
            ended.add_metric([model_id, reason], tally.reasons[reason])
        for code, count in sorted(tally.errors.items()):
            failed.add_metric([model_id, code], count)
    yield ended
    yield failed
