"""gpt-oss ("harmony"): whole answers are messages in channels, each with a header."""

import re
from collections.abc import Callable, Sequence
from typing import Final

from lmx.protocol.states import DeltaKind
from lmx.worker.formats.family import AnswerForm, CallGrammar, Family, Rules, SpecialTokens, Tool
from lmx.worker.formats.forms.json import json_arguments, read_arguments
from lmx.worker.schemas.grammar import quoted
from lmx.worker.text.feed import PartSink, Steps, TextFeed

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
END: Final = "<|end|>"
CALL: Final = "<|call|>"
RETURN: Final = "<|return|>"
CONSTRAIN: Final = "<|constrain|>"
TOKENS: Final = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)
THINKING: Final = f"{CHANNEL}analysis{MESSAGE}"

_ENDS: Final = (END, CALL, RETURN, START)
_TOKEN: Final = re.compile("|".join(map(re.escape, TOKENS)))
_HEADER_WORDS: Final = ("assistant", "analysis", "commentary", "final", "json", "code", "to=")
_RECIPIENT: Final = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")
_NAME: Final = re.compile(r"[\w.-]+")
_CHANNEL_NAME: Final = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")


def read_harmony(
    feed: TextFeed, sink: PartSink, thinking_open: bool, in_answer: bool
) -> Steps[None]:
    """Read a whole answer. It begins in the header of its first message, in the thinking, or in the
    text of the answer.

    The channel ``analysis`` is reasoning, ``commentary`` to a tool is a call, and everything else
    is content. A message to an unknown tool is content as it is, with its header.
    """
    sink.kind = DeltaKind.REASONING if thinking_open else DeltaKind.CONTENT
    if thinking_open and not (yield from feed.until(_ENDS, sink.reasoning)):
        return
    sink.kind = DeltaKind.CONTENT
    if in_answer:
        yield from _read_text(feed, sink.content)
    while (yield from feed.char()):
        yield from _read_message(feed, sink)
        sink.kind = DeltaKind.CONTENT


def _read_message(feed: TextFeed, sink: PartSink) -> Steps[None]:
    feed.mark()
    header: list[str] = []
    if (end := (yield from feed.until((MESSAGE, END, RETURN), header.append))) != MESSAGE:
        # There is no message: an answer that doesn't keep to the form becomes content and is not
        # lost. A header without a word is nothing, nor is one that the end of the text cuts off.
        written = feed.marked()
        text = _TOKEN.sub("", written)
        if end is None and text != written and _is_header(_TOKEN.sub(" ", written)):
            return
        _, channel, name = "".join(header).rpartition(CHANNEL)
        if not channel or re.search(r"\w", name):
            sink.content(text)
        return
    recipient = _RECIPIENT.search("".join(header))
    channels = _CHANNEL_NAME.findall("".join(header))
    if recipient:
        yield from _read_call(feed, sink, recipient.group(1))
        return
    feed.unmark()
    is_thought = channels[-1:] == ["analysis"]
    sink.kind = DeltaKind.REASONING if is_thought else DeltaKind.CONTENT
    yield from _read_text(feed, sink.reasoning if is_thought else sink.content)


def _read_text(feed: TextFeed, emit: Callable[[str], None]) -> Steps[None]:
    """Read to the end of a message. A second header in a message begins another one."""
    if (yield from feed.until((*_ENDS, CHANNEL), emit)) == CHANNEL:
        feed.unread(len(CHANNEL))


def _is_header(text: str) -> bool:
    """Return whether a text has only words of headers, the last of which may be cut off."""
    *words, last = text.split() or [""]
    return all(word.startswith(_HEADER_WORDS) for word in words) and (
        last.startswith(_HEADER_WORDS) or any(word.startswith(last) for word in _HEADER_WORDS)
    )


def _read_call(feed: TextFeed, sink: PartSink, name: str) -> Steps[None]:
    sink.kind = DeltaKind.TOOL_CALL
    if name not in sink.names and (begins := _NAME.match(name)):
        # The channel may follow without a space.
        name = begins.group()
    yield from feed.skip()
    if name in sink.names and (yield from feed.starts((CALL, END))):
        feed.unmark()
        sink.begin_call(name)
        sink.arguments("{}")
    elif (yield from read_arguments(feed, sink, name, CALL)):
        yield from feed.skip()
        yield from feed.starts(_ENDS)
    elif name not in sink.names or (yield from feed.char()):
        # Else the end of the text has cut the call off.
        sink.content(feed.marked())
        yield from feed.until(_ENDS, sink.content)


def _answer_grammar(special: SpecialTokens, answer: str) -> str:
    """Return Lark for the message that has the answer; ``answer`` is the name of its grammar."""
    return f"%llguidance {{}}\nstart: {_header(special, 'final')} @{answer}"


def _call(rules: Rules, tool: Tool, special: SpecialTokens) -> str:
    header = f"commentary to=functions.{tool.name} {CONSTRAIN}json"
    return f"{_header(special, header)} {json_arguments(tool)}"


def _free(rules: Rules, tools: Sequence[Tool], special: SpecialTokens) -> str:
    """Return Lark for messages of any text. One to a recipient (``to=``), wherever that stands in
    its header, must be a call, and it is the last."""
    text = rules.terminal("/(?s:.*)/")
    name = rules.terminal("/(?s:.*)/ & ~/(?s:.*)to=(?s:.*)/")
    to = rules.rule(rules.terminal('/(?s:.*)/ "to="'), "[lazy]")
    begun = f"({name} ({' | '.join(map(special.atom, (START, CHANNEL, CONSTRAIN)))}))*"
    # A token that ends answers is no part of their grammar.
    between = [one for one in (END, START) if special.ids[one] not in special.ends]
    message = f"{begun} {name} {special.atom(MESSAGE)} {text}"
    in_json = f'(/ ?/ {special.atom(CONSTRAIN)} "json" | " json" | " ")?'
    calls = " | ".join(
        f'{quoted(f"functions.{tool.name}")} ({special.atom(CHANNEL)} "commentary")? '
        f"{in_json} {special.atom(MESSAGE)} {json_arguments(tool)}"
        for tool in tools
    )
    others = " | ".join(map(special.atom, between))
    return f"({message} ({others}))* ({message} | {begun} {name} | {begun} {to} ({calls}))"


def _header(special: SpecialTokens, header: str) -> str:
    """Return the header of a message, which begins where the prompt or the thinking ended."""
    start = special.lark(f"{START}assistant")
    return f"({start})? {special.lark(f'{CHANNEL}{header}{MESSAGE}')}"


HARMONY: Final = Family(
    name="harmony",
    # The first call ends the answer.
    grammar=CallGrammar(_call, several=False),
    answer=AnswerForm(read_harmony, _answer_grammar, _free, TOKENS),
    # The template puts any other word into the prompt unchanged.
    efforts=("low", "medium", "high"),
)
