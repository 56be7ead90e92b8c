"""Tool calls as the models of each family write them: what their chat templates make of a history.

The templates are those that the makers publish with the models, and for models that have none, the
parsers that servers have for them.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any
from xml.sax.saxutils import escape

Calls = list[tuple[str, dict[str, Any]]]
Writer = Callable[[Calls], str]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def objects(
    call: str, around: str = "{}", between: str = "", parameters: str = "arguments"
) -> Writer:
    """Calls with their arguments in JSON. ``call`` has the name and the arguments, or ``{object}``
    with both, or the index."""

    def write(calls: Calls) -> str:
        made = (
            call.format(
                name=name, arguments=dumps(arguments), index=index,
                object=dumps({"name": name, parameters: arguments}),
            )
            for index, (name, arguments) in enumerate(calls)
        )  # fmt: skip
        return around.format(between.join(made))

    return write


def tags(
    call: str,
    argument: str,
    around: str = "{}",
    between: str = "",
    text: Callable[[Any], str] = text_of,
) -> Writer:
    """Calls in tags. ``call`` has the name and all arguments, ``argument`` the key and value of one
    of them."""

    def one(name: str, arguments: dict[str, Any]) -> str:
        inner = (
            argument.format(key=key, value=text(value), is_text=dumps(isinstance(value, str)))
            for key, value in arguments.items()
        )
        return call.format(name=name, arguments="".join(inner))

    return lambda calls: around.format(between.join(one(*each) for each in calls))


def array(start: str, end: str) -> Writer:
    return lambda calls: (
        start + dumps([{"name": name, "arguments": args} for name, args in calls]) + end
    )


def prefixed(prefix: str) -> Writer:
    return tags(
        f"<{prefix}tool_call>{{name}}\n{{arguments}}</{prefix}tool_call>",
        f"<{prefix}arg_key>{{key}}</{prefix}arg_key>\n"
        f"<{prefix}arg_value>{{value}}</{prefix}arg_value>\n",
        between="\n",
    )


json_tools = objects("<tool_call>\n{object}\n</tool_call>", between="\n")
mistral = objects("[TOOL_CALLS]{name}[ARGS]{arguments}")
mistral_ids = objects("[TOOL_CALLS]{name}[CALL_ID]aB3[ARGS]{arguments}")
kimi = objects(
    "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}"
    "<|tool_call_end|>",
    "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>",
)
internlm = objects(
    "<|action_start|><|plugin|>\n{object}<|action_end|>", between="\n", parameters="parameters"
)
deepseek_v3 = objects(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
    "\n",
)
deepseek_v31 = objects(
    "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",
)
hunyuan = objects(
    "<tool_call>{name}\n```json\n{arguments}\n```\n</tool_call>\n", "<tool_calls>\n{}</tool_calls>"
)
glm4 = objects("{name}\n{arguments}")
llama3 = objects("{object}", parameters="parameters")

qwen3_coder = tags(
    "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
    "<parameter={key}>\n{value}\n</parameter>\n",
    between="\n",
)
minimax_m2 = tags(
    '<invoke name="{name}">\n{arguments}</invoke>\n',
    '<parameter name="{key}">{value}</parameter>\n',
    "<minimax:tool_call>\n{}</minimax:tool_call>",
)
minicpm5 = tags(
    '<function name="{name}">{arguments}</function>',
    '<param name="{key}">{value}</param>',
    between="\n",
    text=lambda value: escape(text_of(value)),
)
atem = tags(
    '<atem:invoke name="{name}">{arguments}</atem:invoke>',
    '<atem:parameter name="{key}">{value}</atem:parameter>',
    "<atem:function_calls>{}</atem:function_calls>",
)
deepseek_v32 = tags(
    '<｜DSML｜invoke name="{name}">\n{arguments}</｜DSML｜invoke>\n',
    '<｜DSML｜parameter name="{key}" string="{is_text}">{value}</｜DSML｜parameter>\n',
    "<｜DSML｜function_calls>\n{}</｜DSML｜function_calls>",
)
seed_oss = tags(
    "<seed:tool_call>\n<function={name}>\n{arguments}</function>\n</seed:tool_call>",
    "<parameter={key}>{value}</parameter>\n",
    between="\n",
)
step3 = tags(
    '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">{arguments}'
    "</steptml:invoke><｜tool_call_end｜>",
    '<steptml:parameter name="{key}">{value}</steptml:parameter>',
    "<｜tool_calls_begin｜>{}<｜tool_calls_end｜>",
)


def cohere(calls: Calls) -> str:
    listed = [
        {"tool_call_id": str(index), "tool_name": name, "parameters": arguments}
        for index, (name, arguments) in enumerate(calls)
    ]
    return f"<|START_ACTION|>{json.dumps(listed, indent=4)}<|END_ACTION|>"


def minimax_m3(calls: Calls) -> str:
    mark = "]<]minimax[>["

    def node(tag: str, value: Any) -> str:
        if isinstance(value, dict):
            inner = "".join(node(key, item) for key, item in value.items())
        elif isinstance(value, list):
            inner = "".join(node("item", item) for item in value)
        else:
            inner = text_of(value)
        return f"{mark}<{tag}>{inner}{mark}</{tag}>"

    inner = "".join(
        f'{mark}<invoke name="{name}">'
        + "".join(node(key, value) for key, value in arguments.items())
        + f"{mark}</invoke>"
        for name, arguments in calls
    )
    return f"{mark}<tool_call>{inner}{mark}</tool_call>"


def gemma4(calls: Calls) -> str:
    def value_text(value: Any) -> str:
        if isinstance(value, str):
            return f'<|"|>{value}<|"|>'
        if isinstance(value, list):
            return f"[{','.join(value_text(item) for item in value)}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{value_text(item)}' for key, item in value.items())}}}"
        return dumps(value)

    return "".join(f"<|tool_call>call:{name}{value_text(args)}<tool_call|>" for name, args in calls)


def functiongemma(calls: Calls) -> str:
    text = gemma4(calls).replace("<|tool_call>", "<start_function_call>")
    return text.replace("<tool_call|>", "<end_function_call>").replace('<|"|>', "<escape>")


def apertus(calls: Calls) -> str:
    return f"<|tools_prefix|>{dumps([{name: args} for name, args in calls])}<|tools_suffix|>"


def in_python(calls: Calls, text: Callable[[Any], str] = repr) -> Iterator[str]:
    for name, arguments in calls:
        yield f"{name}({', '.join(f'{key}={text(value)}' for key, value in arguments.items())})"


def python_list(calls: Calls) -> str:
    return f"[{', '.join(in_python(calls))}]"


def pythonic(calls: Calls) -> str:
    return f"<|tool_call_start|>{python_list(calls)}<|tool_call_end|>"


def llama4(calls: Calls) -> str:
    return f"<|python_start|>{python_list(calls)}<|python_end|>"


def olmo3(calls: Calls) -> str:
    return "<function_calls>\n" + "\n".join(in_python(calls, dumps)) + "\n</function_calls>"


def tool_code(calls: Calls) -> str:
    return "```tool_code\n" + "\n".join(in_python(calls)) + "\n```"


FORMS: dict[str, Writer] = {
    "json_tools": json_tools,
    "mistral": mistral,
    "mistral array": array("[TOOL_CALLS] ", ""),
    "mistral ids": mistral_ids,
    "kimi_k2": kimi,
    "cohere2_moe": cohere,
    "qwen3_coder": qwen3_coder,
    "qwen3_coder json": json_tools,
    "glm47": prefixed(""),
    "glm47 json": json_tools,
    "longcat": prefixed("longcat_"),
    "minimax_m2": minimax_m2,
    "minimax_m3": minimax_m3,
    "minicpm5": minicpm5,
    "gemma4": gemma4,
    "gemma4 json": json_tools,
    "pythonic": pythonic,
    "atem": atem,
    "apertus": apertus,
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "deepseek_v32": deepseek_v32,
    "functiongemma": functiongemma,
    "granite": array("<|tool_call|>", ""),
    "hunyuan": hunyuan,
    "hunyuan array": array("<tool_calls>", "</tool_calls>"),
    "internlm": internlm,
    "jamba": array("<tool_calls>", "</tool_calls>"),
    "llama4": llama4,
    "nemotron": array("<TOOLCALL>", "</TOOLCALL>"),
    "olmo3": olmo3,
    "phi4": array("<|tool_call|>", "<|/tool_call|>"),
    "seed_oss": seed_oss,
    "step3": step3,
}
"""By family, and which of its forms it is where it has several."""
WRITERS = [(name.split()[0], write) for name, write in FORMS.items()]

BARE_WRITERS: list[tuple[str | None, Writer]] = [
    (None, python_list),
    (None, tool_code),
    ("llama4", python_list),
    ("glm4", glm4),
    ("llama3_json", llama3),
]
"""Those whose calls have no mark, with which an answer begins."""
