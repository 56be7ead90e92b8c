"""Mistral: ``[TOOL_CALLS]name[ARGS]{...}``; an array of calls with the tokenizers before v11."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from lmx.worker.formats.family import CallForm, CallGrammar, Family
from lmx.worker.formats.forms.json import json_call, read_arguments, read_json_calls
from lmx.worker.templates.history import HistoryForm
from lmx.worker.text.feed import PartSink, Steps, TextFeed, discard

_START: Final = "[TOOL_CALLS]"
_ARGS: Final = "[ARGS]"
_CALL_ID: Final = "[CALL_ID]"
_NINE: Final = re.compile(r"[A-Za-z0-9]{9}")


def _read(feed: TextFeed, sink: PartSink) -> Steps[bool]:
    """Read the text after ``[TOOL_CALLS]``: an array of calls as JSON (the older models), or one
    call as ``name[CALL_ID]id[ARGS]{...}``, in which the id or both markers may be missing."""
    yield from feed.skip()
    if (yield from feed.char()) in ("[", "{", "`"):
        return (yield from read_json_calls(feed, sink, ""))
    name: list[str] = []
    marker = yield from feed.until((_ARGS, _CALL_ID, "{", "\n"), name.append)
    if marker == _CALL_ID:
        marker = yield from feed.until((_ARGS, "{", "\n"), discard)
    if marker == "{":
        feed.untake(1)
    return (yield from read_arguments(feed, sink, "".join(name).strip(), ""))


def _nine_characters(call_id: str, name: str, number: int) -> str:
    """Return an id of nine letters and digits: Mistral's templates raise for any other."""
    if _NINE.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


MISTRAL: Final = Family(
    name="mistral",
    calls=(CallForm(_START, "", _read, (_ARGS, _CALL_ID)),),
    grammar=CallGrammar(json_call(f"{_START}$name{_ARGS}")),
    # The tokenizers before v11 have calls as one array.
    older=(
        _ARGS,
        CallGrammar(
            json_call('{"name": $json_name, "arguments": ', "}"),
            open=f"{_START} [",
            between=", ",
            close="]",
        ),
    ),
    history=HistoryForm(call_id=_nine_characters),
)
