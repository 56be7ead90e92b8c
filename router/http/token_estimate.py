"""How many tokens a request will need, guessed before any model has seen it. Pure."""

from __future__ import annotations

from typing import Any, Final

_CHARACTERS_A_TOKEN: Final = 4.0
"""Of English text; text beyond ASCII is counted by its bytes."""

_MEDIA_TOKENS: Final = 256.0
"""An image or a piece of sound takes some hundred tokens, whatever its bytes."""

_MEDIA_KEYS: Final = frozenset({"data", "url", "image_url", "audio_url", "video_url"})
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_ANSWERS: Final = ("best_of", "n")


def estimated_tokens(body: dict[str, Any]) -> float:
    """Return about how many tokens the request of ``body``, which nobody checked yet, takes: those
    of all its text, and those that it allows each answer. An answer without a limit counts nothing:
    it may be of any length, and is charged when it is there."""
    allowed = next((body[name] for name in _LIMITS if _is_count(body.get(name))), 0)
    answers = next((body[name] for name in _ANSWERS if _is_count(body.get(name))), 1)
    return _text_tokens(body) + float(allowed) * max(1.0, float(answers))


def _text_tokens(body: dict[str, Any]) -> float:
    tokens = 0.0
    left: list[Any] = [body]
    while left:
        value = left.pop()
        if isinstance(value, str):
            size = len(value) if value.isascii() else len(value.encode())
            tokens += size / _CHARACTERS_A_TOKEN
        elif isinstance(value, dict):
            for key, inner in value.items():
                if key in _MEDIA_KEYS and isinstance(inner, str):
                    tokens += _MEDIA_TOKENS
                else:
                    left.append(inner)
        elif isinstance(value, list):
            if value and type(value[0]) is int:
                tokens += len(value)  # a prompt as tokens; never looked at one by one
            else:
                left += value
    return tokens


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**31
