"""What is measured of each request: the names, buckets and values of the histograms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from lmx.router.http.outcome import Outcome

# fmt: off
_FIRST_TOKEN_S: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)
_GAP_S: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0,
    2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_REQUEST_S: Final = (
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)
_TOKENS: Final = (
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0,
    20000.0, 50000.0, 100000.0, 200000.0,
)
_AUDIO_S: Final = (
    1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0,
    14400.0,
)
_REAL_TIME: Final = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0,
)
# fmt: on


@dataclass(frozen=True, slots=True)
class Measure:
    """One histogram."""

    name: str
    help_text: str
    bounds: Sequence[float]
    of: Callable[[Outcome, float], float | None]
    """Returns the value of a request that has ended, from its outcome and its duration in seconds;
    None if the request has no such value."""


GAPS: Final = Measure(
    "inter_token_latency_seconds",
    "Between one output of a request and the next.",
    _GAP_S,
    lambda *_: None,  # a request has many: they are added from its outcome all at once
)

MEASURES: Final = (
    Measure(
        "request_duration_seconds",
        "From a request's first byte to the end of its answer, whatever became of it.",
        _REQUEST_S,
        lambda _, duration_s: duration_s,
    ),
    Measure(
        "time_to_first_token_seconds",
        "From a request's first byte to its first output.",
        _FIRST_TOKEN_S,
        lambda outcome, _: outcome.ttft_s,
    ),
    Measure(
        "e2e_request_latency_seconds",
        "From a request's first byte to the end of its answer, of those that ended well.",
        _REQUEST_S,
        lambda outcome, duration_s: (
            duration_s if outcome.finish_reason and not outcome.error else None
        ),
    ),
    Measure(
        "request_model_wait_seconds",
        "How long a request waited for its model to be in memory.",
        _REQUEST_S,
        lambda outcome, _: outcome.load_s,
    ),
    Measure(
        "request_queue_time_seconds",
        "How long a request waited in its model's worker before its prompt was begun.",
        _REQUEST_S,
        lambda outcome, _: outcome.queue_s,
    ),
    Measure(
        "request_prefill_time_seconds",
        "How long a request's prompt took.",
        _REQUEST_S,
        lambda outcome, _: outcome.prefill_s,
    ),
    Measure(
        "request_decode_time_seconds",
        "From a request's first token to its last.",
        _REQUEST_S,
        lambda outcome, _: outcome.decode_s,
    ),
    Measure(
        "request_prompt_tokens",
        "Tokens of a request's prompt.",
        _TOKENS,
        lambda outcome, _: outcome.prompt_tokens,
    ),
    Measure(
        "request_generation_tokens",
        "Tokens that a request was answered with.",
        _TOKENS,
        lambda outcome, _: outcome.completion_tokens,
    ),
    Measure(
        "request_audio_seconds",
        "The length of the sound that a request had transcribed, or that it was answered with.",
        _AUDIO_S,
        lambda outcome, _: outcome.audio_s,
    ),
    Measure(
        "request_audio_real_time_factor",
        "How long a transcript or a spoken text took, for each second of its sound.",
        _REAL_TIME,
        lambda outcome, duration_s: duration_s / outcome.audio_s if outcome.audio_s else None,
    ),
)
"""Each gets one value from a request, at the request's end."""

HISTOGRAMS: Final = (*MEASURES, GAPS)
