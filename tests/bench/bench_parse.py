"""What the worker's own Python costs before and behind the engine: the reading of calls and
thoughts in a token, and the fitting of a conversation in a message. Processor time.

``make bench-parse`` measures this checkout; ``AGAINST=FOLDER``, another checkout, is measured in
turns with it, and the ratios to it are printed. A token's whole way through the worker costs some
90 us with 32 rows (``make bench-host``, ``make bench-relay``).
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

from tests.bench.rigs.checkouts import ROOT, asked, in_turns, measured_one, median_of, print_medians

TURNS = 7
ROUNDS = 15
TOKENS = 2000
CONVERSATION_TURNS = 40
_PROSE: Final = (
    "The shelf by the window holds ink, paper and three old maps; nobody has asked for them since "
    'spring (see "notes", 2.4).\n\n- first `look`, then ask: it isn\'t far, is it?\n'
)
_CODE: Final = (
    'def find(shelf, what):\n    """Return the place."""\n'
    '    if shelf.size < 3 and what != "ink":\n'
    '        return {\'row\': [0], "path": "C:\\\\new"}  # <b>\n    return None\n\n'
)
_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            },
        },
    }
    for name in ("write_file", "read_file", "run", "search", "fetch", "list_files")
]
_TEMPLATE: Final = """
{%- for m in messages -%}
  {%- if m.role == 'system' and not loop.first -%}{{ raise_exception('first') }}{%- endif -%}
  <|im_start|>{{ m.role }}
{{ m.content }}
  {%- for c in m.tool_calls or [] -%}
    <function={{ c.function.name }}>
    {%- for k, v in c.function.arguments.items() -%}<parameter={{ k }}>{{ v }}</parameter>
    {%- endfor -%}
  {%- endfor -%}<|im_end|>
{%- endfor -%}"""


def main() -> None:
    """Print medians of turns, and what they are of the other checkout's."""
    if measured_one(_measure):
        return
    found = in_turns(__file__, asked(), TURNS)
    print_medians(found, digits=3)
    own = found.pop(ROOT)
    for checkout, turns in found.items():
        for name in turns[0]:
            was, now = median_of(turns, name), median_of(own, name)
            print(f"{name:58} {now / was:5.2f} of {checkout.name}, {now - was:+.3f}")


def _measure() -> dict[str, float]:
    figures = {f"{name}, us a token": _parsed_us(*case) for name, case in _answers().items()}
    fitting, rendering = _prepared_us()
    return figures | {"fitting, us a message": fitting, "and rendering, us": rendering}


def _answers() -> dict[str, tuple[str, str, str, str, bool]]:
    """Return family, text before, text and text behind of each case, and whether it thinks."""
    value = json.dumps(_long(_CODE))[1:-1]
    xml = "<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n"
    return {
        "text": ("json_tools", "", _long(_PROSE), "", False),
        "text behind a thought": ("json_tools", "<think>\nhm\n</think>\n", _long(_PROSE), "", True),
        "a thought": ("json_tools", "<think>\n", _long(_PROSE), "\n</think>\n\nYes.", True),
        "a string in tags": (
            "qwen3_coder",
            f"{xml}<parameter=text>\n",
            _long(_CODE),
            "\n</parameter>\n</function>\n</tool_call>",
            True,
        ),
        "a string in JSON": (
            "json_tools",
            '<tool_call>\n{"name": "write_file", "arguments": {"text": "',
            value,
            '"}}\n</tool_call>',
            True,
        ),
        "a list in JSON": (
            "json_tools",
            '<tool_call>\n{"name": "write_file", "arguments": {"path": [',
            _long('{"row": 3, "of": [true, null, 1.5], "name": "a b"}, ').rpartition(", ")[0],
            "]}}\n</tool_call>",
            True,
        ),
    }


def _long(text: str) -> str:
    """Return a text of some ``TOKENS`` tokens."""
    return text * (TOKENS // len(_tokens(text)) + 1)


def _tokens(text: str) -> list[str]:
    """Return the text in pieces such as tokenizers make."""
    return re.findall(r" ?\w{1,7}|\s+| ?[^\w\s]{1,2}", text)


def _parsed_us(family: str, before: str, text: str, behind: str, thinks: bool) -> float:
    try:
        from lmx.worker.engine.values import ReasoningMarkers
    except ModuleNotFoundError:  # An earlier checkout.
        from lmx.worker.engine import ReasoningMarkers  # type: ignore[attr-defined,no-redef]
    from lmx.worker.formats.parser import OutputParser

    marks = ReasoningMarkers("<think>", "</think>") if thinks else None
    tokens = [*_tokens(before), *_tokens(text), *_tokens(behind)]

    def parse() -> None:
        parser = OutputParser(marks, False, family, _TOOLS)
        for token in tokens:
            parser.add(token)
        parser.finish()

    return _least_s(parse) * 1e6 / len(tokens)


def _prepared_us() -> tuple[float, float]:
    """Return what a message costs in an agent's conversation: until it is what the template takes,
    and until it is text."""
    from lmx.worker.templates.environment import render
    from lmx.worker.templates.history import PLAIN_HISTORY, for_template

    messages = _conversation()

    def as_text(conversation: Any, tools: Any = ()) -> str:
        return render(_TEMPLATE, {"messages": conversation, "tools": tools})

    try:
        from lmx.worker.templates.fitting import fit, probe
    except ImportError:  # An older checkout: it fitted nothing.

        def prepare() -> Any:
            return for_template(messages, PLAIN_HISTORY)

    else:

        def shown(conversation: Any, tools: Any) -> str | None:
            try:
                return as_text(conversation, tools)
            except Exception:
                return None

        fitting = probe(shown, mentions_tools=False)

        def prepare() -> Any:
            return fit(for_template(messages, PLAIN_HISTORY), _TOOLS, fitting)[0]

    own = _least_s(prepare)
    return (own * 1e6 / len(messages), _least_s(lambda: as_text(prepare())) * 1e6 / len(messages))


def _conversation() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": _PROSE * 10}]
    for turn in range(CONVERSATION_TURNS):
        messages += [
            {"role": "user", "content": _PROSE},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": f"call_{turn}",
                        "type": "function",
                        "function": {
                            "name": "write_file",
                            "arguments": json.dumps({"path": "a.py", "text": _CODE * 5}),
                        },
                    }
                ],
            },
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": _CODE},
            {"role": "assistant", "content": _PROSE},
        ]
    return messages


def _least_s(work: Callable[[], object]) -> float:
    def once_s() -> float:
        began_s = time.process_time()
        work()
        return time.process_time() - began_s

    return min(once_s() for _ in range(ROUNDS))


if __name__ == "__main__":
    main()
