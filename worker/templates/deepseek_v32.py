"""The chat template of DeepSeek V3.2 in Jinja. DeepSeek publishes a program in its place, which
mlx-lm has as ``mlx_lm.chat_templates.deepseek_v32``; conversions name it as ``chat_template_type``.

What the program refuses, because it can't follow one of its own prompts, is rendered in the same
way here: tools without a system message, and answers without a thought.
"""

import json
from typing import Final

_SOURCE: Final = """
{%- set thinks = thinking_mode == 'thinking' if thinking_mode is defined
    else enable_thinking is not defined or enable_thinking %}
{%- set ns = namespace(last_user=-1, shown=false) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}
{%- endfor %}
{%- macro begin_answer(thought) %}
    {{- '<think>' if thought and thinks else '</think>' }}
{%- endmacro %}
{%- macro describe_tools() %}
    {{- '\\n\\n' + TOOLS_BEFORE }}
    {%- for tool in tools %}
        {{- '\\n' if not loop.first }}{{ tool.function | tojson }}
    {%- endfor %}
    {{- TOOLS_AFTER }}
{%- endmacro %}
{{- BOS }}
{%- if tools and (not messages or messages[0].role != 'system') %}{{ describe_tools() }}{% endif %}
{%- for message in messages %}
    {%- set last = loop.last and not add_generation_prompt %}
    {%- if message.role == 'system' %}
        {{- message.content or '' }}
        {%- if tools and loop.first %}{{ describe_tools() }}{% endif %}
    {%- elif message.role == 'user' %}
        {{- '<｜User｜>' + message.content }}
        {%- if not last %}
            {{- '<｜Assistant｜>' + begin_answer(loop.index0 == ns.last_user) }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem is not defined or loop.previtem.role != 'tool' %}
            {{- '\\n\\n<function_results>' }}
        {%- endif %}
        {{- '\\n<result>' + message.content + '</result>' }}
        {%- if loop.nextitem is not defined or loop.nextitem.role != 'tool' %}
            {{- '\\n</function_results>' }}
            {%- if not last %}
                {{- '\\n\\n' + begin_answer(loop.index0 > ns.last_user) }}
            {%- endif %}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {%- if thinks and loop.index0 > ns.last_user %}
            {{- (message.reasoning_content or '') + '</think>' }}
        {%- endif %}
        {{- message.content or '' }}
        {%- if message.tool_calls %}
            {{- '\\n\\n<｜DSML｜function_calls>' }}
            {%- for call in message.tool_calls %}
                {{- '\\n<｜DSML｜invoke name="' + call.function.name + '">\\n' }}
                {%- for key, value in call.function.arguments.items() %}
                    {{- '\\n' if not loop.first }}
                    {{- '<｜DSML｜parameter name="' + key + '" string="' }}
                    {{- 'true">' + value if value is string else 'false">' + value | tojson }}
                    {{- '</｜DSML｜parameter>' }}
                {%- endfor %}
                {{- '\\n</｜DSML｜invoke>' }}
            {%- endfor %}
            {{- '\\n</｜DSML｜function_calls>' }}
        {%- endif %}
        {{- EOS }}
    {%- else %}
        {{- raise_exception('Unknown role: ' + message.role) }}
    {%- endif %}
{%- endfor %}
"""


def template_of_deepseek_v32(bos: str, eos: str, tools: tuple[str, str]) -> str:
    """Return the template's source. ``tools`` are the texts before and behind the tools."""
    values = {"BOS": bos, "EOS": eos, "TOOLS_BEFORE": tools[0], "TOOLS_AFTER": tools[1]}
    named = (f"{{%- set {name} = {json.dumps(value)} %}}" for name, value in values.items())
    return "\n".join(named) + _SOURCE
