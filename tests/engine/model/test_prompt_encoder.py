"""Prompts by chat template, and what a model folder's configuration may say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, dynamic_module_utils

from lmx.protocol.errors import ErrorCode, OperationError, RequestError
from lmx.protocol.messages.data import ToolUse
from lmx.protocol.models.sampling import SamplingParameters
from lmx.worker.engine.values import ModelFacts, PromptSource, ReasoningMarkers
from lmx.worker.mlx.model.folder import effective_context, read_folder
from lmx.worker.mlx.model.guard import forbid_checkpoint_code
from lmx.worker.mlx.model.prompt_encoder import PromptEncoder
from lmx.worker.templates.renderer import Renderer, RenderingEndedError
from tests.support.models.media_models import make_media_model
from tests.support.models.tiny_models import CHAT_TEMPLATE, make_tokenizer
from tests.support.rigs.media_check import MediaModel, picture
from tests.support.rigs.one_renderer import renderer

USER = {"role": "user", "content": "hé"}


def encoder(template: str | None, **facts: Any) -> PromptEncoder:
    facts = {"context_tokens": 1000, "vocabulary_size": 260, **facts}
    return PromptEncoder(
        make_tokenizer(template), ModelFacts(eos_token_ids=frozenset(), **facts), renderer()
    )


def rendered(template: str | None, messages: list[Any], **template_kwargs: Any) -> str:
    return shown(template, PromptSource(messages=messages, template_kwargs=template_kwargs))


def shown(template: str | None, source: PromptSource, **facts: Any) -> str:
    tokens = encoder(template, **facts).encode(source).tokens
    return str(make_tokenizer(template).decode(tokens))


def refusal(template: str | None, messages: list[Any], **template_kwargs: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        rendered(template, messages, **template_kwargs)
    return caught.value


def test_renders_up_to_the_answer() -> None:
    assert rendered(CHAT_TEMPLATE, [USER]) == "<|user|>hé<|end|><|assistant|>"


def test_a_prompt_may_end_with_the_last_message() -> None:
    source = PromptSource(messages=[USER], add_generation_prompt=False)
    assert shown(CHAT_TEMPLATE, source) == "<|user|>hé<|end|>"


@pytest.mark.parametrize("text", ["Once  upon ", "<|end|> a", "a"])
def test_an_answer_may_continue_with_the_last_message(text: str) -> None:
    """Wherever the same text stands elsewhere, and with its white space."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": text}]
    source = PromptSource(
        messages=messages, add_generation_prompt=False, continue_final_message=True
    )
    assert shown(CHAT_TEMPLATE, source) == f"<|user|>a<|end|><|assistant|>{text}"


def test_a_message_that_the_template_hides_can_not_be_continued() -> None:
    source = PromptSource(messages=[USER], continue_final_message=True)
    with pytest.raises(RequestError) as caught:
        shown("{{ messages[0]['role'] }}", source)
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize(
    ("text", "inside", "behind"),
    [("<think>so", True, False), ("<think>so</think>Yes", False, True), ("Yes", False, False)],
)
def test_a_continued_message_may_end_in_the_thinking_or_behind_it(
    text: str, inside: bool, behind: bool
) -> None:
    reasoning = ReasoningMarkers("<think>", "</think>")
    messages = [USER, {"role": "assistant", "content": text}]
    source = PromptSource(messages=messages, continue_final_message=True)
    encoded = encoder(CHAT_TEMPLATE, reasoning=reasoning).encode(source)
    assert (encoded.thinking_open, encoded.thinking_closed) == (inside, behind)


def test_special_tokens_of_the_template_are_single_tokens() -> None:
    tokens = encoder(CHAT_TEMPLATE).encode(PromptSource(messages=[USER])).tokens
    assert tokens[0] == make_tokenizer().convert_tokens_to_ids("<|user|>")
    assert len(tokens) == 1 + len("hé".encode()) + 2


@pytest.mark.parametrize("param", ["messages", "prompt"])
def test_what_can_not_fit_is_refused_before_it_is_tokenized(param: str) -> None:
    tokenizer = make_tokenizer(CHAT_TEMPLATE)
    text = "x" * 101 * max(len(token.encode()) for token in tokenizer.get_vocab())
    tokenizer.encode = None  # Never reached.
    facts = ModelFacts(context_tokens=100, eos_token_ids=frozenset(), vocabulary_size=260)
    messages = [{"role": "user", "content": text}]
    source = PromptSource(messages=messages) if param == "messages" else PromptSource(text=text)
    with pytest.raises(RequestError) as caught:
        PromptEncoder(tokenizer, facts, renderer()).encode(source)
    error = caught.value
    assert (error.code, error.param) == (ErrorCode.CONTEXT_LENGTH_EXCEEDED, param)
    assert "at least 10" in error.message
    assert "context is 100" in error.message


def test_template_kwargs_reach_the_template() -> None:
    assert rendered("{{ mood }}{{ messages[0].content }}", [USER], mood="calm ") == "calm hé"


@pytest.mark.parametrize(
    "name",
    ["chat_template", "tokenize", "add_generation_prompt", "messages", "tools", "conversations"],
)
def test_template_kwargs_do_not_reach_the_tokenizer(name: str) -> None:
    source = PromptSource(messages=[USER], template_kwargs={name: "{{ 1 }}"})
    with pytest.raises(RequestError) as caught:
        encoder(CHAT_TEMPLATE).encode(source)
    error = caught.value
    assert (error.code, error.param) == (ErrorCode.INVALID_VALUE, "chat_template_kwargs")
    assert name in error.message


KEEPS_THINKING = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m.get('reasoning_content') and preserve_thinking is defined and preserve_thinking %}"
    "<think>{{ m['reasoning_content'] }}</think>{% endif %}{{ m['content'] }}<|end|>{% endfor %}"
)
TOOL_USE = ToolUse(({"type": "function", "function": {"name": "f", "parameters": {}}},))


@pytest.mark.parametrize(
    ("tool_use", "kwargs", "kept"),
    [
        (TOOL_USE, {}, True),
        (TOOL_USE, {"preserve_thinking": False}, False),
        (None, {}, False),
        (None, {"preserve_thinking": True}, True),
    ],
)
def test_an_agent_s_turn_begins_with_the_one_before_it(
    tool_use: ToolUse | None, kwargs: dict[str, Any], kept: bool
) -> None:
    thought = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    source = PromptSource(messages=[USER, thought, USER], tool_use=tool_use, template_kwargs=kwargs)
    assert ("<think>hm</think>a" in shown(KEEPS_THINKING, source)) is kept


def test_a_model_without_template_is_refused() -> None:
    error = refusal(None, [USER])
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_VALUE, "messages")


def test_a_template_refuses_in_its_own_words() -> None:
    error = refusal("{{ raise_exception('roles must alternate') }}", [USER])
    assert (error.code, error.param) == (ErrorCode.INVALID_VALUE, "messages")
    assert "roles must alternate" in error.message


@pytest.mark.parametrize(
    "template", ["{{ messages[5].content + 1 }}", "{% if false %}x{% endif %}"]
)
def test_a_template_that_stumbles_is_a_refusal(template: str) -> None:
    assert refusal(template, [USER]).code is ErrorCode.INVALID_VALUE


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("kwargs", [{}, {"mood": "calm"}])
@pytest.mark.parametrize("tools", [False, True])
def test_a_template_that_does_not_end_is_the_models_fault(
    kwargs: dict[str, Any], tools: bool
) -> None:
    """Whether it knows tools is asked for with the first that come, and not by the load."""
    impatient = Renderer(0.3)
    facts = ModelFacts(context_tokens=1000, eos_token_ids=frozenset(), vocabulary_size=260)
    try:
        prompts = PromptEncoder(make_tokenizer(ENDLESS + "{{ tools }}"), facts, impatient)
        assert impatient.pid is None
        use = ToolUse(({"type": "function", "function": {"name": "f"}},)) if tools else None
        for _ in range(2):
            with pytest.raises(RequestError, match=r"after 0\.3 s") as caught:
                prompts.encode(PromptSource(messages=[USER], template_kwargs=kwargs, tool_use=use))
            error = caught.value
            assert error.code is ErrorCode.CHAT_TEMPLATE_FAILED
            assert error.param == ("chat_template_kwargs" if kwargs else "messages")
    finally:
        impatient.close()


# Text and tokens


def test_a_trial_of_the_template_that_was_stopped_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MediaModel(make_media_model(tmp_path, "qwen2_5_vl"))
    assert model.prompts.abilities
    render = Renderer.render

    def stopped(*args: Any) -> str:
        raise RenderingEndedError("had not come to an end after 3 s and was stopped")

    for place in range(3):
        turns: Iterator[Any] = iter([render] * place + [stopped])
        monkeypatch.setattr(Renderer, "render", lambda *args, turns=turns: next(turns)(*args))
        with pytest.raises(RequestError, match="had not come to an end") as caught:
            model.encode("ab", picture(1), "cd")
        assert caught.value.code is ErrorCode.CHAT_TEMPLATE_FAILED
    monkeypatch.undo()
    assert model.encode("ab", picture(1), "cd").media is not None


def test_a_text_gets_what_the_tokenizer_adds() -> None:
    tokenizer = make_tokenizer(None)
    plain = tokenizer.encode("hé")
    assert encoder(None).encode(PromptSource(text="hé")).tokens == plain
    tokenizer.add_special_tokens({"bos_token": "<|user|>"})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|user|> $A", special_tokens=[("<|user|>", 258)]
    )
    facts = ModelFacts(context_tokens=9, eos_token_ids=frozenset(), vocabulary_size=260)
    prompts = PromptEncoder(tokenizer, facts, renderer())
    assert prompts.encode(PromptSource(text="hé")).tokens == [258, *plain]
    assert prompts.encode(PromptSource(text="")).tokens == [258]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (PromptSource(text=""), "empty"),
        (PromptSource(tokens=[]), "no tokens"),
        (PromptSource(tokens=[0, 260]), "token 260.*0 to 259"),
        (PromptSource(tokens=[-1]), "token -1"),
    ],
)
def test_prompts_that_can_not_be(source: PromptSource, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        encoder(None).encode(source)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "prompt")


def test_tokens_are_taken_as_they_are() -> None:
    assert encoder(None).encode(PromptSource(tokens=(0, 259))).tokens == (0, 259)


def test_a_model_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "model_file": "evil.py"}')
    with pytest.raises(OperationError, match="model_file") as caught:
        read_folder(tmp_path)
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID


def test_a_checkpoints_code_is_never_run_whoever_trusts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ``auto_map`` that nothing needs is harmless; one that is followed is refused."""
    monkeypatch.setattr(
        dynamic_module_utils, "get_class_in_module", dynamic_module_utils.get_class_in_module
    )
    forbid_checkpoint_code()
    (tmp_path / "evil.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Evil: pass\n"
    )
    auto_map = {"AutoTokenizer": ["evil.Evil", None], "AutoConfig": "evil.Evil"}
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps({"model_type": "nobody", "auto_map": auto_map}))
    with pytest.raises(OperationError, match="code of its own"):
        AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)
    assert not list(tmp_path.rglob("ran"))
    assert read_folder(tmp_path).context_tokens is None


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_a_folder_without_a_config_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(OperationError) as caught:
        read_folder(tmp_path)
    assert caught.value.code is ErrorCode.MODEL_SOURCE_INVALID


@pytest.mark.parametrize(
    ("text", "temperature"),
    [
        ('{"do_sample": false, "temperature": 0.6}', 0.0),
        ('{"do_sample": true, "temperature": 0.6}', 0.6),
        ('{"temperature": NaN}', None),
        ('{"temperature": true}', None),
    ],
)
def test_how_a_checkpoint_wants_to_be_sampled(
    tmp_path: Path, text: str, temperature: float | None
) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": true}')
    (tmp_path / "generation_config.json").write_text(text)
    config = read_folder(tmp_path)
    assert (config.sampling.temperature, config.context_tokens) == (temperature, None)


def test_generation_defaults_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text('{"top_k": 7}', encoding="utf-8-sig")
    assert read_folder(tmp_path).sampling.top_k == 7


def test_generation_defaults_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 99}')
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_p": null}')
    config = read_folder(tmp_path)
    assert config.context_tokens == 99
    assert config.sampling == SamplingParameters(temperature=0.6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repetition_penalty", "0"),
        ("top_k", "1e20"),
        ("top_k", "1" * 400),
        ("typical_p", "0"),
        ("top_p", "1.5"),
        ("presence_penalty", "-Infinity"),
    ],
)
def test_generation_defaults_that_no_request_may_have_are_left_out(
    tmp_path: Path, name: str, value: str
) -> None:
    (tmp_path / "config.json").write_text("{}")
    text = f'{{"temperature": 0.6, "{name}": {value}}}'
    (tmp_path / "generation_config.json").write_text(text)
    with capture_logs() as logs:
        sampling = read_folder(tmp_path).sampling
    assert sampling == SamplingParameters(temperature=0.6)
    assert [(one["event"], one["parameter"]) for one in logs] == [("model.sampling_ignored", name)]


def test_context_is_the_smaller_of_both() -> None:
    assert effective_context(100, None) == 100
    assert effective_context(None, 50) == 50
    assert effective_context(100, 50) == 50
    for declared, configured in ((100, 101), (None, None)):
        with pytest.raises(OperationError, match="context_length"):
            effective_context(declared, configured)
