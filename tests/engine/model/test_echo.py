"""Prompts that are given back: text, tokens and offsets say the same of special tokens."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from lmx.protocol.messages.data import Delta
from lmx.router.rendering.logprobs import TextLogprobs, text_lists
from lmx.worker.engine.values import PrefillFinished, SequenceRequest, SequenceSampling, TokenScores
from lmx.worker.mlx.model.token_text import TokenText
from lmx.worker.scheduling.batch import begin_choice, echo_prompt
from lmx.worker.scheduling.requests import EngineRequest, TextRules

ASKED = "<|im_start|>user\nWie heißt du? 🌍<|im_end|>\n<|im_start|>assistant\n"
BOS = 1


@pytest.fixture(scope="module")
def tokenizer(smollm2_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_dir)


def echoed(
    tokenizer: Any, tokens: Sequence[int], prompt: str | None, answer: str
) -> tuple[str, dict[str, Any]]:
    """Return a completion's text and its logprobs."""
    text = TokenText(tokenizer, frozenset({tokenizer.eos_token_id}), frozenset())
    engine: Any = SimpleNamespace(
        detokenizer=lambda markers, after=(), *, special=False: text.detokenizer(
            markers, after, special=special
        ),
        token_bytes=text.token_bytes,
    )
    end = frozenset({tokenizer.eos_token_id})
    rules = TextRules(end, logprobs=True, echo=True, prompt=prompt)
    row = SequenceRequest(1, tokens, 99, SequenceSampling(0.0), prompt_logprobs=0)
    job = EngineRequest(1, "req", (row,), rules, 1, 0.0)
    made = begin_choice(engine, job, 0)
    out: list[Any] = []
    scores = TokenScores(-0.5, ())
    echo_prompt(engine, job, made, PrefillFinished(1, 0, [scores] * (len(tokens) - 1)), out)
    if not any(made.advance(token, scores, out) for token in tokenizer.encode(answer)):
        made.finish(out)
    pieces = [piece for piece in out if isinstance(piece, Delta)]
    logprobs = [entry for piece in pieces for entry in piece.logprobs]
    return "".join(piece.text for piece in pieces), text_lists(TextLogprobs().entries(logprobs))


@pytest.mark.parametrize("as_text", [True, False])
def test_special_tokens_of_a_prompt_are_kept(tokenizer: Any, as_text: bool) -> None:
    tokens = tokenizer.encode(ASKED)
    text, logprobs = echoed(tokenizer, tokens, ASKED if as_text else None, " I am.")
    assert text == ASKED + " I am."
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or text[offset:].startswith(token)


def test_the_end_token_of_an_echo_is_scored(tokenizer: Any) -> None:
    """Who scores a text asks for a token more, and takes the last entry away."""
    tokens = tokenizer.encode("Hello you")
    text, logprobs = echoed(tokenizer, tokens, None, " I am.<|im_end|>")
    assert text == "Hello you I am."
    assert list(logprobs["tokens"]) == ["Hello", " you", " I", " am", ".", ""]
    assert len(logprobs["token_logprobs"]) == len(tokens) + 4
    assert logprobs["text_offset"][-1] == len(text)


def test_what_a_tokenizer_puts_before_a_text_is_no_text(tokenizer: Any) -> None:
    tokens = [BOS, *tokenizer.encode("Hello you")]
    assert tokenizer.convert_ids_to_tokens(BOS) == "<|im_start|>"
    text, logprobs = echoed(tokenizer, tokens, "Hello you", " there")
    assert text == "Hello you there"
    assert list(logprobs["tokens"]) == ["", "Hello", " you", " there"]
    assert list(logprobs["text_offset"]) == [0, 0, 5, 9]
    assert echoed(tokenizer, tokens, None, " there")[0] == "<|im_start|>Hello you there"
