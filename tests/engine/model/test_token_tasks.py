"""Tokenizing a conversation with the model's own template, and back."""

import json
from typing import Any

import pytest

from lmx.protocol.errors import RequestError
from lmx.protocol.messages.tasks import (
    DescribeTokenizer,
    Detokenize,
    Detokenized,
    Tokenize,
    TokenizerDescribed,
)
from lmx.worker.engine.values import ModelFacts
from lmx.worker.mlx.model import token_text
from lmx.worker.mlx.model.prompt_encoder import PromptEncoder
from lmx.worker.mlx.model.token_text import MAX_CHARACTERS, TokenTasks
from tests.support.models.tiny_models import make_tokenizer
from tests.support.rigs.one_renderer import renderer

HI = ({"role": "user", "content": "hé"},)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.fixture(scope="module")
def tasks(tokenizer: Any) -> TokenTasks:
    facts = ModelFacts(512, frozenset({256}), len(tokenizer))
    prompts = PromptEncoder(tokenizer, facts, renderer())
    return TokenTasks(tokenizer, len(tokenizer), 512, prompts.encode)


def tokenized(tasks: TokenTasks, **fields: Any) -> Any:
    return tasks.reply(Tokenize(7, "r", 9.0, **fields))


def test_a_conversation_is_rendered_by_its_template(tasks: TokenTasks, tokenizer: Any) -> None:
    reply = tokenized(tasks, messages=HI)
    assert tokenizer.decode(reply.tokens) == "<|user|>hé<|end|><|assistant|>"
    assert (reply.stream_id, reply.context_tokens, reply.pieces_json) == (7, 512, b"")
    shorter = tokenized(tasks, messages=HI, add_generation_prompt=False)
    assert tokenizer.decode(shorter.tokens) == "<|user|>hé<|end|>"


def test_a_text_is_only_counted_however_long(tasks: TokenTasks) -> None:
    assert len(tokenized(tasks, text="x" * 1000).tokens) == 1000
    with pytest.raises(RequestError, match=str(MAX_CHARACTERS)):
        tokenized(tasks, text="x" * (MAX_CHARACTERS + 1))


def test_tokens_have_names(tasks: TokenTasks) -> None:
    names = tokenized(tasks, text="a b", pieces=True).pieces_json
    assert json.loads(names) == ["a", "Ġ", "b"]


def test_the_tokenizer_is_described(tasks: TokenTasks, tokenizer: Any) -> None:
    reply = tasks.reply(DescribeTokenizer(7, "r", 9.0))
    assert isinstance(reply, TokenizerDescribed)
    described = json.loads(reply.text)
    assert described["tokenizer_class"] == type(tokenizer).__name__
    assert described["chat_template"] == tokenizer.chat_template
    assert not any(key.endswith(("_file", "_or_path")) for key in described)


def test_a_text_comes_back_as_it_was(tasks: TokenTasks) -> None:
    text = "naïve 漢字 🌍<|end|>\n"
    reply = tokenized(tasks, text=text, add_special_tokens=False)
    assert tasks.reply(Detokenize(7, "r", 9.0, reply.tokens)) == Detokenized(7, text)


def test_tokens_that_the_model_lacks_are_refused(tasks: TokenTasks, tokenizer: Any) -> None:
    with pytest.raises(RequestError, match=r"tokens\[1\]") as caught:
        tasks.reply(Detokenize(7, "r", 9.0, (1, len(tokenizer))))
    assert caught.value.param == "tokens[1]"


def test_an_answer_that_fits_no_message_is_refused(
    tasks: TokenTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_text, "MAX_REPLY_BYTES", 60)
    tasks.reply(Detokenize(7, "r", 9.0, (1,) * 60))
    with pytest.raises(RequestError, match="61 bytes") as caught:
        tasks.reply(Detokenize(7, "r", 9.0, (1,) * 61))
    assert caught.value.param == "tokens"
    tokenized(tasks, text="x" * 12)
    with pytest.raises(RequestError, match="65 bytes") as caught:
        tokenized(tasks, text="x" * 13)
    assert caught.value.param == "prompt"
    with pytest.raises(RequestError, match="63 bytes"):
        tokenized(tasks, text="x" * 7, pieces=True)


def test_template_errors_are_the_requests(tasks: TokenTasks) -> None:
    with pytest.raises(RequestError) as caught:
        tokenized(tasks, messages=HI, template_kwargs={"tokenize": True})
    assert caught.value.param == "chat_template_kwargs"
