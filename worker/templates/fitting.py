"""Fits a conversation to its chat template. Pure.

Clients send shapes of conversations that many templates refuse, or from which they silently drop a
text: a system message in the middle, two user messages in a row, several calls in one turn.
``SHAPES`` is the table of these shapes, each with a small conversation that shows whether a
template takes it, and with the remedies that may help. :func:`probe` tries them once for a
template; :func:`fit` applies what was learned.

No text is dropped, and texts keep their order. What is made of a message depends only on what comes
before it and on the message next to it, so that the prompt of a longer conversation begins as that
of the shorter one did, and the prefix cache holds. (``ends_with_result`` is the exception: it is
for templates that place the system text by where the conversation ends.)
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import jiter

from lmx.worker.templates.hermes import with_calls_as_text, with_tools_as_text
from lmx.worker.templates.history import Message, joined, with_calls, with_text_arguments

Remedy = Callable[[Sequence[Message]], list[Message]]
"""Makes a conversation that a template takes of one that it does not take."""

Tools = Sequence[Mapping[str, Any]]

Render = Callable[[Sequence[Message], Tools], str | None]
"""Returns the text that a template makes of a conversation; None if it refuses the conversation."""

SYSTEM_WORD: Final = "lmxsystemword"
USER_WORD: Final = "lmxuserword"
ANSWER_WORD: Final = "lmxanswerword"
CALL_WORD: Final = "lmxcallword"
RESULT_WORD: Final = "lmxresultword"
LATER_WORD: Final = "lmxlaterword"

_OPENING: Final = "Continue."
"""The user message in front of a conversation that does not begin with one."""

PROBE_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "lmx_probe",
        "description": "lmx_probe",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}


class Shape(NamedTuple):
    """A shape of conversations."""

    name: str
    matches: Callable[[Sequence[Message]], bool]
    sample: tuple[Message, ...]
    """A conversation of this shape, as plain as can be."""
    words: tuple[str, ...]
    """What a template that takes the shape shows of the sample."""
    remedies: tuple[Remedy, ...]
    """What may help where it does not; the first one that does is taken."""
    with_tools: bool = False
    """Whether the sample comes with a tool."""


class Fitting(NamedTuple):
    """What was learned of a template."""

    tools_as_text: bool
    """Whether it knows no tools: they, calls and results are described to the model in words."""
    remedies: Mapping[str, Remedy] = {}
    """By the names of the shapes that the template does not take as they are."""
    refused: frozenset[str] = frozenset()
    """The names of the shapes that it refuses, or drops a text of, whatever is done."""


def probe(render: Render, *, mentions_tools: bool) -> Fitting:
    """Return how conversations are fitted to a template.

    ``render`` is called for each sample, and for each remedy that is tried; what it raises ends the
    trial. Twice, because a remedy may make a shape that needs another one. ``mentions_tools`` is
    whether the template has the word at all: it counts where it refuses the simplest conversation.
    """
    fitting = Fitting(not _knows_tools(render, mentions_tools))
    refused: set[str] = set()
    for _ in range(2):
        refused.clear()
        for shape in SHAPES:
            if shape.name in fitting.remedies or _shows(render, shape, fitting):
                continue
            for remedy in shape.remedies:
                tried = fitting._replace(remedies={**fitting.remedies, shape.name: remedy})
                if _shows(render, shape, tried):
                    fitting = tried
                    break
            else:
                refused.add(shape.name)
    return fitting._replace(refused=frozenset(refused))


def fit(messages: Sequence[Message], tools: Tools, fitting: Fitting) -> tuple[list[Message], Tools]:
    """Return the conversation and the tools as the template takes them."""
    result = list(messages)
    if fitting.tools_as_text and (tools or any(m["role"] == "tool" or _calls(m) for m in result)):
        result, tools = with_tools_as_text(result, tools), ()
    for shape in SHAPES:
        remedy = fitting.remedies.get(shape.name)
        if remedy is not None and shape.matches(result):
            result = remedy(result)
    return result, tools


def _knows_tools(render: Render, mentions_tools: bool) -> bool:
    shown = render((_USER,), (PROBE_TOOL,))
    if shown is not None:
        return str(PROBE_TOOL["function"]["name"]) in shown
    return mentions_tools and render((_USER,), ()) is None


def _shows(render: Render, shape: Shape, fitting: Fitting) -> bool:
    text = render(*fit(shape.sample, (PROBE_TOOL,) if shape.with_tools else (), fitting))
    return text is not None and all(word in text for word in shape.words)


# What a conversation holds.


def _role(messages: Sequence[Message], index: int) -> str | None:
    return messages[index]["role"] if -len(messages) <= index < len(messages) else None


def _leading_systems(messages: Sequence[Message]) -> int:
    others = (i for i, message in enumerate(messages) if message["role"] != "system")
    return next(others, len(messages))


def _opening(messages: Sequence[Message]) -> Message | None:
    """Return the first message that is not a system message."""
    start = _leading_systems(messages)
    return messages[start] if start < len(messages) else None


def _calls(message: Message) -> Sequence[Mapping[str, Any]]:
    calls: Sequence[Mapping[str, Any]] = message.get("tool_calls", ())
    return calls


def _begins_with_answer(messages: Sequence[Message]) -> bool:
    opening = _opening(messages)
    return opening is not None and opening["role"] == "assistant" and not _calls(opening)


def _begins_with_call(messages: Sequence[Message]) -> bool:
    """Whether the conversation begins in the middle of a tool's use: a client has compacted it."""
    opening = _opening(messages)
    return opening is not None and (opening["role"] == "tool" or bool(_calls(opening)))


def _calls_several(message: Message) -> bool:
    return len(_calls(message)) > 1


def _calls_brokenly(message: Message) -> bool:
    return any(map(_is_broken, _calls(message)))


def _thinks_speaks_and_calls(message: Message) -> bool:
    return bool(_calls(message) and message["content"] and message.get("reasoning_content"))


def _is_broken(call: Mapping[str, Any]) -> bool:
    return not isinstance(call["function"].get("arguments", {}), Mapping)


def _are_neighbours(one: Message, other: Message) -> bool:
    """Whether both could be one turn. Turns with calls stay what they are."""
    if one["role"] == other["role"] == "assistant":
        return not _calls(one) and not _calls(other)
    return bool(one["role"] == other["role"] == "user")


# What is done about it.


def _developer_as_system(messages: Sequence[Message]) -> list[Message]:
    return [m | {"role": "system"} if m["role"] == "developer" else m for m in messages]


def _with_one_system(messages: Sequence[Message]) -> list[Message]:
    """The leading system texts are one."""
    count = _leading_systems(messages)
    return [_merged(messages[:count]), *messages[count:]] if count > 1 else list(messages)


def _later_system_as_user(messages: Sequence[Message]) -> list[Message]:
    """A later system text stands in its place: in front of the conversation it would change the
    prompt from its beginning with each turn."""
    start = _leading_systems(messages)
    return [*messages[:start], *(_reminder(m) for m in messages[start:])]


def _reminder(message: Message) -> Message:
    if message["role"] != "system":
        return message
    text = joined("<system-reminder>\n", message["content"], "\n</system-reminder>")
    return message | {"role": "user", "content": text}


def _system_in_user(messages: Sequence[Message]) -> list[Message]:
    """The system text stands in front of the first user text."""
    start = _leading_systems(messages)
    if not start or _role(messages, start) != "user":
        return list(messages)
    user = messages[start]
    return [user | {"content": _merged(messages[: start + 1])["content"]}, *messages[start + 1 :]]


def _begun_by_user(messages: Sequence[Message]) -> list[Message]:
    start = _leading_systems(messages)
    opening: Message = {"role": "user", "content": _OPENING}
    return [*messages[:start], opening, *messages[start:]]


def _with_neighbours_joined(messages: Sequence[Message]) -> list[Message]:
    groups = _grouped(messages, lambda group, message: _are_neighbours(group[-1], message))
    return [_merged(group) for group in groups]


def _with_text_in_result(messages: Sequence[Message]) -> list[Message]:
    """A user's text directly behind a result is a part of the result."""
    groups = _grouped(
        messages, lambda group, message: (group[0]["role"], message["role"]) == ("tool", "user")
    )
    return [group[0] | {"content": _merged(group)["content"]} for group in groups]


def _grouped(
    messages: Sequence[Message], belongs: Callable[[Sequence[Message], Message], bool]
) -> list[list[Message]]:
    """Return the messages in groups, each of which is to be one. They are joined once: text that
    grows message by message would be copied as often as there are messages."""
    groups: list[list[Message]] = []
    for message in messages:
        if groups and belongs(groups[-1], message):
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


def _with_text_before_call(messages: Sequence[Message]) -> list[Message]:
    """The text and the thoughts of a turn with calls are a turn of their own."""
    result: list[Message] = []
    for message in messages:
        if _calls(message) and message["content"]:
            result.append({key: value for key, value in message.items() if key != "tool_calls"})
            result.append({"role": "assistant", "content": "", "tool_calls": _calls(message)})
        else:
            result.append(message)
    return result


def _with_text_in_thought(messages: Sequence[Message]) -> list[Message]:
    """The text of a turn with thoughts and calls stands behind the thoughts."""
    result: list[Message] = []
    for message in messages:
        if _thinks_speaks_and_calls(message):
            thought = joined(message["reasoning_content"], "\n\n", message["content"])
            message = message | {"content": "", "reasoning_content": thought}
        result.append(message)
    return result


def _with_one_call_a_turn(messages: Sequence[Message]) -> list[Message]:
    """Each call of a turn is a turn of its own, with its results behind it."""
    result: list[Message] = []
    turns = _grouped(
        messages, lambda turn, message: _calls_several(turn[0]) and message["role"] == "tool"
    )
    for message, *results in turns:
        if not _calls_several(message):
            result.append(message)
            continue
        *calls, last = _calls(message)
        for call in calls:
            result.append({**message, "tool_calls": [call]})
            message = {"role": "assistant", "content": ""}
            own = [r for r in results if _answers(r, call, results)]
            result += own
            results = [r for r in results if all(r is not one for one in own)]
        result += [{**message, "tool_calls": [last]}, *results]
    return result


def _answers(result: Message, call: Mapping[str, Any], results: Sequence[Message]) -> bool:
    """Whether a result is that of a call: by its id, or the first one where it names none."""
    named = result.get("tool_call_id")
    return named == call.get("id") if named else result is results[0]


def _with_complete_arguments(messages: Sequence[Message]) -> list[Message]:
    """Arguments that are no object (a limit has cut them) become one."""
    return with_calls(messages, _completed)


def _completed(call: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _is_broken(call):
        return call
    function = call["function"]
    given = function["arguments"]
    try:
        value = jiter.from_json(str(given).encode(), partial_mode="trailing-strings")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        value = {"arguments": given}
    return {**call, "function": {**function, "arguments": value}}


def _as_text(applies: Callable[[Message], bool]) -> Remedy:
    """Return the remedy that writes the calls of some turns, and their results, as text. The others
    stay as they are, so that a turn does not change what came before it."""

    def remedy(messages: Sequence[Message]) -> list[Message]:
        result: list[Message] = []
        chosen: list[Message] = []
        for message in messages:
            if message["role"] != "tool":
                result += with_tools_as_text(chosen, ())
                chosen = []
            if chosen or (_calls(message) and applies(message)):
                chosen.append(message)
            else:
                result.append(message)
        return [*result, *with_tools_as_text(chosen, ())]

    return remedy


def _merged(messages: Sequence[Message]) -> Message:
    """Return several messages as one, with the first one's role and the texts of all."""
    first, *others = messages
    result = dict(first)
    for message in others:
        result |= {key: value for key, value in message.items() if not result.get(key)}
    for key in ("content", "reasoning_content", "thinking", "reasoning"):
        texts = [message[key] for message in messages if message.get(key)]
        if len(texts) > 1:
            result[key] = joined(texts[0], *(part for text in texts[1:] for part in ("\n\n", text)))
    return result


# The samples.

_SYSTEM: Final[Message] = {"role": "system", "content": SYSTEM_WORD}
_USER: Final[Message] = {"role": "user", "content": USER_WORD}
_ANSWER: Final[Message] = {"role": "assistant", "content": ANSWER_WORD}
_LATER: Final[Message] = {"role": "user", "content": LATER_WORD}


def _turn(*arguments: Any, content: str = "", **fields: Any) -> tuple[Message, ...]:
    """Return a turn with calls, and their results. The ids are such as Mistral's templates take.
    ``fields`` are further fields of the message with the calls."""
    ids = [f"lmxcall{number:02}" for number in range(len(arguments))]
    calls = [
        {"id": id_, "type": "function", "function": {"name": "lmx_probe", "arguments": given}}
        for id_, given in zip(ids, arguments, strict=True)
    ]
    return (
        {"role": "assistant", "content": content, "tool_calls": calls, **fields},
        *({"role": "tool", "tool_call_id": id_, "content": f"{RESULT_WORD}{id_}"} for id_ in ids),
    )


_CALL: Final = {"text": CALL_WORD}
_RESULT: Final = f"{RESULT_WORD}lmxcall00"

SHAPES: Final[tuple[Shape, ...]] = (
    Shape(
        "developer",
        lambda messages: any(message["role"] == "developer" for message in messages),
        ({"role": "developer", "content": SYSTEM_WORD}, _USER),
        (SYSTEM_WORD, USER_WORD),
        (_developer_as_system,),
    ),
    Shape(
        "calls",
        lambda messages: any(map(_calls, messages)),
        (_USER, *_turn(_CALL)),
        (USER_WORD, CALL_WORD, _RESULT),
        (with_text_arguments, with_calls_as_text, _as_text(lambda message: True)),
        with_tools=True,
    ),
    Shape(
        "broken_arguments",
        lambda messages: any(map(_calls_brokenly, messages)),
        (_USER, *_turn(f'{{"text": "{CALL_WORD}')),
        (USER_WORD, CALL_WORD, _RESULT),
        (_with_complete_arguments, _as_text(_calls_brokenly)),
        with_tools=True,
    ),
    Shape(
        "several_calls",
        lambda messages: any(map(_calls_several, messages)),
        (_USER, *_turn(_CALL, {"text": LATER_WORD})),
        (USER_WORD, CALL_WORD, LATER_WORD, _RESULT, f"{RESULT_WORD}lmxcall01"),
        (_with_one_call_a_turn, _as_text(_calls_several)),
        with_tools=True,
    ),
    Shape(
        "text_with_call",
        lambda messages: any(_calls(m) and m["content"] for m in messages),
        (_USER, *_turn(_CALL, content=ANSWER_WORD)),
        (USER_WORD, ANSWER_WORD, CALL_WORD, _RESULT),
        (_with_text_before_call,),
        with_tools=True,
    ),
    # gpt-oss's template takes a thought or a text in front of a call, and refuses both.
    Shape(
        "thought_and_text_with_call",
        lambda messages: any(map(_thinks_speaks_and_calls, messages)),
        (_USER, *_turn(_CALL, content=ANSWER_WORD, reasoning_content="-")),
        (USER_WORD, ANSWER_WORD, CALL_WORD, _RESULT),
        (_with_text_in_thought,),
        with_tools=True,
    ),
    Shape(
        "several_systems",
        lambda messages: _leading_systems(messages) > 1,
        (_SYSTEM, {"role": "system", "content": LATER_WORD}, _USER),
        (SYSTEM_WORD, LATER_WORD, USER_WORD),
        (_with_one_system,),
    ),
    Shape(
        "later_system",
        lambda messages: any(m["role"] == "system" for m in messages[_leading_systems(messages) :]),
        (_SYSTEM, _USER, _ANSWER, {"role": "system", "content": LATER_WORD}, _USER),
        (SYSTEM_WORD, USER_WORD, ANSWER_WORD, LATER_WORD),
        (_later_system_as_user,),
    ),
    Shape(
        "only_systems",
        lambda messages: bool(messages) and _opening(messages) is None,
        (_SYSTEM,),
        (SYSTEM_WORD,),
        (_begun_by_user,),
    ),
    Shape(
        "answer_first",
        _begins_with_answer,
        (_SYSTEM, _ANSWER, _USER),
        (SYSTEM_WORD, ANSWER_WORD, USER_WORD),
        (_begun_by_user,),
    ),
    Shape(
        "call_first",
        _begins_with_call,
        (_SYSTEM, *_turn(_CALL)),
        (SYSTEM_WORD, CALL_WORD, _RESULT),
        (_begun_by_user,),
        with_tools=True,
    ),
    Shape(
        "text_after_result",
        lambda messages: ("tool", "user") in itertools.pairwise(m["role"] for m in messages),
        (_USER, *_turn(_CALL), _LATER),
        (USER_WORD, CALL_WORD, _RESULT, LATER_WORD),
        (_with_text_in_result,),
        with_tools=True,
    ),
    Shape(
        "neighbours",
        lambda messages: any(map(_are_neighbours, messages, messages[1:])),
        (_USER, _LATER),
        (USER_WORD, LATER_WORD),
        (_with_neighbours_joined,),
    ),
    Shape(
        "system",
        lambda messages: _role(messages, 0) == "system",
        (_SYSTEM, _USER),
        (SYSTEM_WORD, USER_WORD),
        (_system_in_user,),
    ),
    Shape(
        "ends_with_result",
        lambda messages: _role(messages, -1) == "tool" and _role(messages, 0) == "system",
        (_SYSTEM, _USER, *_turn(_CALL)),
        (SYSTEM_WORD, USER_WORD, CALL_WORD, _RESULT),
        (_system_in_user,),
        with_tools=True,
    ),
)
"""In the order in which they are looked for: a remedy may make a shape that stands below it."""
