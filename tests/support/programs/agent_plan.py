"""What a model of :mod:`agent_model` is to write, as a word in a message of the user.

Programs put that message into quotes, into tags and behind pages of their own: the word has
nothing that they would change.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_SUMMARY: Final = re.compile(r"^(?!.*plan:).*\bsummar(?:y|ize)\b", re.I | re.S)
_WORD: Final = re.compile(r"plan:([A-Za-z0-9_-]+)")


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return a step that calls a tool."""
    return {"tool": tool, "arguments": arguments}


def say(text: str, *, think: str = "", pace_s: float = 0.0) -> dict[str, Any]:
    """Return a step that says ``text``, in which ``{pictures}`` stands for the sizes of those in
    the prompt; ``pace_s`` seconds go by with each few tokens."""
    return {"say": text, "think": think, "pace_s": pace_s}


def plan(*steps: Mapping[str, Any]) -> str:
    """Return the word for what is done, one step in each turn of the assistant."""
    return "plan:" + base64.urlsafe_b64encode(json.dumps(steps).encode()).decode().rstrip("=")


def next_step(messages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the step that is due after these messages: of the last plan, and the last one again
    when all are done. None: there is no plan, or a summary is asked for instead."""
    last = messages[-1]
    if last["role"] == "user" and _SUMMARY.search(json.dumps(last["content"])):
        return None
    for place in range(len(messages) - 1, -1, -1):
        if messages[place]["role"] != "user":
            continue
        words = _WORD.findall(json.dumps(messages[place]["content"]))
        if words:
            steps = json.loads(base64.urlsafe_b64decode(words[-1] + "=" * (-len(words[-1]) % 4)))
            done = sum(message["role"] == "assistant" for message in messages[place:])
            step: Mapping[str, Any] = steps[min(done, len(steps) - 1)]
            return step
    return None
