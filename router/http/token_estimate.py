"""Estimates how many tokens a request needs, before any model has seen it. Pure."""

from collections.abc import Iterator
from typing import Any, Final

_CHARACTERS_A_TOKEN: Final = 4.0
"""The average for English text. Text beyond ASCII is counted by its bytes."""

_IMAGE_TOKENS: Final = 256.0
_SOUND_TOKENS: Final = 256.0
_VIDEO_TOKENS: Final = 4096.0
"""What media take depends on the model, their size and their length, none of which is known here:
these are an image of usual size, ten seconds of sound, and some ten frames. The tokens that an
answer really took are charged at its end."""

_MEDIA: Final = {
    # Inside a part, and in Anthropic's sources.
    **dict.fromkeys(("data", "url", "image_url"), _IMAGE_TOKENS),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), _SOUND_TOKENS),
    **dict.fromkeys(("input_video", "video", "video_url"), _VIDEO_TOKENS),
}
"""The names of fields whose content is no text, and about how many tokens it takes."""

_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_ANSWERS: Final = ("best_of", "n")

_WITH_TEXT: Final = frozenset({str, list, dict})
"""Types of parsed values in which there may be text."""

_STEP_VALUES: Final = 2**14
"""How many values are counted in one step: a millisecond's work or two."""


def estimated_tokens(body: dict[str, Any]) -> float:
    """Return about how many tokens the request of ``body`` takes: those of all its text, and those
    that it allows each answer. Nobody has checked ``body`` yet. An answer without a limit counts
    nothing: it may have any length, and is charged when it has ended."""
    return sum(estimate_in_steps(body))


def estimate_in_steps(body: dict[str, Any]) -> Iterator[float]:
    """Yield numbers whose sum is :func:`estimated_tokens`; each step is a millisecond's work or
    two."""
    allowed = next((body[name] for name in _LIMITS if _is_count(body.get(name))), 0)
    answers = next((body[name] for name in _ANSWERS if _is_count(body.get(name))), 1)
    tokens, looked = float(allowed) * max(1.0, float(answers)), 0
    left: list[Any] = [body]
    while left:
        value = left.pop()
        looked += 1
        if isinstance(value, str):
            size = len(value) if value.isascii() else len(value.encode())
            tokens += size / _CHARACTERS_A_TOKEN
        elif isinstance(value, dict):
            for key, inner in value.items():
                if key in _MEDIA and _is_media(key, inner, value):
                    tokens += _MEDIA[key]
                elif type(inner) in _WITH_TEXT:
                    left.append(inner)
            looked += len(value)
        elif value and type(value[0]) is int:
            tokens += len(value)  # a prompt as tokens; never looked at one by one
        else:
            for start in range(0, len(value), _STEP_VALUES):
                piece = value[start : start + _STEP_VALUES]
                left += [inner for inner in piece if type(inner) in _WITH_TEXT]
                looked += len(piece)
                if looked >= _STEP_VALUES:
                    yield tokens
                    tokens, looked = 0.0, 0
        if looked >= _STEP_VALUES:
            yield tokens
            tokens, looked = 0.0, 0
    yield tokens


def _is_media(key: str, inner: Any, owner: dict[str, Any]) -> bool:
    if isinstance(inner, dict):
        return "url" in inner or "data" in inner
    # The data of one of Anthropic's documents is a text.
    return isinstance(inner, str) and not (key == "data" and owner.get("type") == "text")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31
