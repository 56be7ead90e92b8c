"""How a model was quantized on this machine, and what that costs, in words. This module is pure."""

from collections.abc import Mapping
from typing import Any, Final

_MUCH_WORSE: Final = 1.1
"""From this ratio of the perplexities on, people are warned. 4 bits cost a model of 135 million
weights a third, and large ones far less."""


def quantized_words(source: str, result: Mapping[str, Any]) -> str | None:
    """Return what `lmx show` says of a folder that was made from ``source`` with this result. None
    for what is no result, as in a folder that somebody else has made."""
    try:
        before, after = result["perplexity_before"], float(result["perplexity_after"])
        words = f"{bits_words(str(result['bits']))} by lmx, from {source}"
        tokens, width = int(result["tokens"]), float(result["bits_a_weight"])
        words += f" ({width:.2f} bits a weight); perplexity on {tokens} tokens of text: "
        if before is None:
            return f"{words}{after:.2f}, and the original computes nonsense"
        ratio = after / float(before)
        words += f"{before:.2f} before, {after:.2f} after ({100 * (ratio - 1):+.1f} %)"
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return None
    if ratio < _MUCH_WORSE:
        return words
    less = {"4": ": `--bits 8` costs less, `--bits mixed` a little less", "8": ""}
    advice = less.get(str(result["bits"]), ": `--bits 8` costs less")
    return f"{words}. WARNING: it predicts text much worse than the original{advice}"


def bits_words(bits: str) -> str:
    """Return how a choice of bits is called."""
    return "quantized to 4 and 6 bits" if bits == "mixed" else f"quantized to {bits} bits"
