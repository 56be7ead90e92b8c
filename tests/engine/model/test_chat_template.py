"""Chat templates as we render them, held against transformers' own ``apply_chat_template``."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from lmx.worker.mlx.model import library
from lmx.worker.templates import environment
from lmx.worker.templates.chat_template import ChatTemplate
from lmx.worker.templates.renderer import Renderer, TemplateRefusedError
from tests.support.models.tiny_models import CHAT_TEMPLATE, make_tokenizer

AMPLE_BYTES = 1 << 20


@pytest.fixture(scope="module")
def renderer() -> Iterator[Renderer]:
    made = Renderer(20.0)
    yield made
    made.close()


CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- elif '</think>' in message.content %}
            {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>' }}
        {{- message.content.lstrip('\\n') }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string
                else tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

HEADERS = """{{- bos_token }}{{ eos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}{% set date_string = strftime_now("%Y") %}{% endif %}
{%- macro header(role) -%}<|start_header_id|>{{ role }}<|end_header_id|>

{% endmacro -%}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif -%}
    {{- header(message['role']) }}{{ message['content'] | trim }}<|eot_id|>
{%- endfor %}
{% if tools is not none %}{{ tools | tojson(indent=4) }}{% endif %}
Today: {{ date_string }}
{%- if add_generation_prompt %}{{ header('assistant') }}{% endif %}"""

SMALL = {
    "trimmed": "  {% if true %}\n  a\n  {% endif %}\n b",
    "loop controls": "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
    "{% if m.role == 'tool' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "generation": "{% set a = 1 %}{% generation %}{% set a = 2 %}x{{ a }}{% endgeneration %}"
    "{{ a }}",
    "generation in a loop": "{% for m in messages %}{%- generation -%} {{ m.content }} "
    "{%- endgeneration -%}{% endfor %}",
    "tojson": "{{ {'b': 'é<&>', 'a': [1, none, 1.5]} | tojson }}"
    "{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}"
    "{{ 'é' | tojson(ensure_ascii=true) }}{{ messages | tojson(indent=2) }}",
    "dict": "{{ dict(a=1) }}{{ dict.fromkeys('ab', 1) }}{{ dict([('k', 'v')]) }}",
    "dict's inside": "{{ dict.__class__ }}",
    "namespace": "{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}"
    "{{ namespace(self=3).self }}",
    "private name": "{% set n = namespace(_a=1) %}",
    "private name, set": "{% set n = namespace() %}{% set n._a = 1 %}",
    "changes a list": "{{ messages.append(1) }}",
    "changes a message": "{{ messages[0].update({'a': 1}) }}",
    "reaches inside": "{{ ''.__class__.__mro__ }}",
    "format": "{{ '%s-%d' | format('a', 3) }}{{ '{0.__class__}'.format(1) }}",
    "too long a range": "{% for i in range(100001) %}{% endfor %}",
    "undefined": "{{ nothing }}{{ nothing.at_all }}",
    "an item that isn't there": "{{ messages[7].content + 'a' }}",
    "none": "{{ messages[0].none }}|{{ none }}|{{ tools }}|{{ documents }}",
    "no template": "{% if %}",
    "unknown tag": "{% frobnicate %}",
    "unknown filter": "{{ 1 | frobnicate }}",
    "its own words": "{{ raise_exception('no, thanks') }}",
    "not a text": "{{ raise_exception(3) }}",
    "special tokens": "{{ bos_token }}{{ eos_token }}{{ pad_token }}"
    "{{ additional_special_tokens }}",
    "values": "{{ messages[0].big + 1 }}{{ messages[0].half }}{{ mood }}{{ deep.a[0] }}",
    "reasoning": "{{ messages[1].reasoning_content }}|{{ messages[1].thinking }}|{{ messages[1] }}",
    "globals": "{{ range(3) | list }}{{ lipsum is defined }}{{ cycler is defined }}{{ joiner }}",
    "imports": "{% import 'a' as b %}",
    "includes": "{% include 'a' %}",
    "whole": "{{ messages }}{{ tools }}{{ add_generation_prompt }}",
}
TEMPLATES = {"ours": CHAT_TEMPLATE, "chatml": CHATML, "headers": HEADERS} | SMALL

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get", "arguments": {"city": "Zürich\n", "n": 3.0, "none": None}},
}
TOOL = {
    "type": "function",
    "function": {"name": "get", "description": "d", "parameters": {"type": "object"}},
}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": " hé\n", "name": None, "big": 10**30, "half": "\ud83d"}],
    "calls": [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "reasoning": "hm", "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "call_1"},
        {"role": "assistant", "content": "it is 3", "thinking": "so"},
    ],
    "none": [],
}
KWARGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "told": {
        "add_generation_prompt": False,
        "enable_thinking": False,
        "mood": float("nan"),
        "deep": {"a": [[], "\ud800"]},
        "eos_token": "</s>",
        "date_string": "today",
    },
}


def clean(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def outcome(render: Any) -> tuple[str, str]:
    try:
        return "text", clean(render())
    except Exception as error:
        # An object's address is in some words.
        return "error", re.sub(r"0x[0-9a-f]+", "0x", str(error))


@pytest.mark.parametrize("template", TEMPLATES, ids=list(TEMPLATES))
def test_a_template_makes_the_same_text_and_the_same_errors(
    renderer: Renderer, template: str
) -> None:
    tokenizer = make_tokenizer(TEMPLATES[template])
    ours = ChatTemplate(tokenizer, renderer, AMPLE_BYTES)
    for messages in CONVERSATIONS.values():
        for kwargs in KWARGS.values():
            for tools in ([], [TOOL]):
                shown = {"tools": tools} if tools else {}
                reported = {"add_generation_prompt": True, **shown, **kwargs}
                expected = outcome(
                    lambda reported=reported, messages=messages: tokenizer.apply_chat_template(
                        messages, tokenize=False, **reported
                    )
                )
                found = outcome(
                    lambda kwargs=kwargs, tools=tools, messages=messages: ours.apply(
                        messages, tools, kwargs
                    )
                )
                if messages:
                    assert found == expected
                else:
                    assert found[0] == expected[0] == "error"


def test_the_demo_models_template_is_the_same(renderer: Renderer, smollm2_dir: Path) -> None:
    config = json.loads((smollm2_dir / "tokenizer_config.json").read_text())
    file = smollm2_dir / "chat_template.jinja"
    tokenizer = make_tokenizer(file.read_text() if file.exists() else config["chat_template"])
    ours = ChatTemplate(tokenizer, renderer, AMPLE_BYTES)
    for messages in CONVERSATIONS.values():
        if messages:
            expected = outcome(
                lambda messages=messages: tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True
                )
            )
            assert outcome(lambda messages=messages: ours.apply(messages, [], {})) == expected


def test_a_model_with_several_templates(renderer: Renderer) -> None:
    tokenizer = make_tokenizer("x")
    tokenizer.chat_template = {"default": "plain", "tool_use": "{{ tools | length }} tools"}
    ours = ChatTemplate(tokenizer, renderer, AMPLE_BYTES)
    user = CONVERSATIONS["one"]
    for tools in ([], [TOOL]):
        shown = {"tools": tools} if tools else {}
        expected = tokenizer.apply_chat_template(user, tokenize=False, **shown)
        assert ours.apply(user, tools, {}) == expected
    tokenizer.chat_template = {"rag": "x"}
    with pytest.raises(TemplateRefusedError, match="rag"):
        ours.apply(user, [], {})


def test_templates_find_what_they_find_in_transformers() -> None:
    """A version of transformers that gives templates more, or guards them better, shows here."""
    theirs = chat_template_utils._compile_jinja_template("x").environment
    ours = environment._compiled("x").environment
    for table in ("globals", "filters", "tests"):
        assert getattr(ours, table).keys() == getattr(theirs, table).keys(), table
    assert type(ours) is type(theirs)
    assert {kind.tags for kind in map(_frozen, ours.extensions.values())} == {
        kind.tags for kind in map(_frozen, theirs.extensions.values())
    }
    for name in (
        *("block_start_string", "variable_start_string", "comment_start_string", "autoescape"),
        *("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "newline_sequence", "undefined"),
        *("line_statement_prefix", "line_comment_prefix", "finalize", "loader", "optimized"),
    ):
        assert getattr(ours, name) == getattr(theirs, name), name


class _frozen:
    def __init__(self, extension: Any) -> None:
        self.tags = frozenset(extension.tags)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("{{ messages }}", "{{ messages }}"), ("<python-chat-renderer>", None), (None, None)],
)
def test_what_is_no_template_of_a_processor_is_not_rendered(
    given: str | None, kept: str | None
) -> None:
    """Kimi K3's processor has the name of code in the template's place: each conversation would
    become that text."""
    criteria = SimpleNamespace(eos_token_ids=[1])
    own = SimpleNamespace(chat_template=None, stopping_criteria=criteria)
    tokenizer, _ = library._of_processor(SimpleNamespace(tokenizer=own, chat_template=given))
    assert tokenizer.chat_template == kept
