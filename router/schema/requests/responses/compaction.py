"""What a request for a summary of a conversation may hold, and what its worker is asked.

A summary is requested by `/v1/responses/compact`, or by the item `compaction_trigger`. The model
reads its own conversation, to the token as it has read it before, and then what it is to do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from lmx.protocol.messages.data import Generate, Thinking
from lmx.protocol.states import ToolChoice
from lmx.router.schema.requests.conversation.turns import joined_turns
from lmx.router.schema.requests.generation import LabelFields, SharingFields
from lmx.router.schema.requests.responses.items import CompactionTrigger, Item
from lmx.router.schema.requests.responses.responses import ResponsePromptFields
from lmx.router.schema.validation import invalid

_TASK: Final = (
    "The conversation has become too long, and is cut off here. Write a summary of it, with which "
    "you will continue: it and the messages of the user are all that will be left of what was said "
    "until now. Do not continue the work, answer nothing and call no tools now.\n\n"
    "Say what the user wants, with all conditions and preferences; what was done and found out, "
    "and how; names of files, commands, values and short pieces of text or code that are needed "
    "again, exactly as they are; decisions and their reasons; what failed; what is under way, and "
    "what is left to do, in order. If the conversation begins with an earlier summary, keep what "
    "is still needed of it. Leave out what is only talk. Write the summary and nothing else."
)
_MOST_TOKENS: Final = 4096
_UNKNOWN_CONTEXT_TOKENS: Final = 8192
"""For a model whose context is known when it is loaded."""


class CompactRequest(ResponsePromptFields, SharingFields, LabelFields):
    """The body of POST /v1/responses/compact."""


def asks_for_summary(items: Sequence[Item]) -> bool:
    """Return whether the items of an input ask for a summary of the conversation. Raises
    :class:`RequestError` for a trigger that is not the last one."""
    for index, item in enumerate(items[:-1]):
        if isinstance(item, CompactionTrigger):
            raise invalid(
                f"input[{index}].type",
                "is 'compaction_trigger', which must be the last item: the response is a summary "
                "of what comes before.",
            )
    return bool(items) and isinstance(items[-1], CompactionTrigger)


def summarizing(
    generate: Generate, contexts_tokens: Iterable[int | None], *, thinks: bool
) -> Generate:
    """Return the request for a summary of the conversation of ``generate``.

    The summary has a quarter of the context at most, of the smallest of those of the models that
    may write it, and half of that are thoughts; with ``thinks`` false there are none, where the
    model can leave them. The beginning of a conversation that does not fit with it is cut off.
    """
    known = [context for context in contexts_tokens if context is not None]
    limits = [_MOST_TOKENS, min(known, default=_UNKNOWN_CONTEXT_TOKENS) // 4]
    if generate.max_tokens is not None:
        limits.append(generate.max_tokens)
    most = max(1, min(limits))
    use = generate.tool_use
    if use is not None:
        described = use.choice is not ToolChoice.NONE
        use = replace(use, choice=ToolChoice.NONE, function=None, described=described)
    messages, thinking = generate.messages or (), generate.thinking
    if not thinks:
        thinking = Thinking(enabled=False, param=thinking.param)
    return replace(
        generate,
        messages=tuple(joined_turns([*messages, {"role": "user", "content": _TASK}])),
        max_tokens=most,
        tool_use=use,
        thinking=replace(thinking, budget_tokens=max(1, most // 2)),
        structure=None,
        top_logprobs=None,
        truncate_prompt_tokens=-1,
    )
