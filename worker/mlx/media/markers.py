"""What a chat template writes for a picture, a sound or a video. It is found out by trying."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mlx_vlm.prompt_utils import MODEL_CONFIG, MessageFormatter

from lmx.protocol.errors import LmxError
from lmx.protocol.states import MediaKind
from lmx.worker.templates.renderer import RenderingEndedError

Message = dict[str, Any]
Render = Callable[[Sequence[Message]], str]
"""Renders a conversation. Raises whatever the renderer raises."""

_BEFORE: Final = "lmx_probe_before"
_AFTER: Final = "lmx_probe_after"


class Marker(NamedTuple):
    """What stands for a picture, a sound or a video in the text of a prompt."""

    text: str
    """What the template writes for it."""
    type: str | None
    """The type of the part of a message for which the template writes it. None: the template takes
    no parts, and the text is put into the message."""


def find_marker(
    render: Render, kind: MediaKind, model_type: str, tokens: Callable[[str], Sequence[int]]
) -> Marker | None:
    """Return what a template writes for a kind of media; None: it has no place for it.

    ``tokens`` tokenizes. Raises what ``render`` raises where that says nothing of the template.
    """
    for part_type in (kind.value, f"{kind.value}_url"):
        part = {"type": part_type, part_type: ""}
        with_it = _rendered(render, [text_part(_BEFORE), part, text_part(_AFTER)])
        without = _rendered(render, [text_part(_BEFORE), text_part(_AFTER)])
        if with_it is None or without is None:
            continue
        if _BEFORE not in with_it or _AFTER not in with_it:
            continue
        candidates = _insertions(without, with_it)
        if candidates:
            # Where a text repeats a character, more than one part of it may be what was put in.
            # Special tokens that are whole are the fewest tokens.
            return Marker(min(candidates, key=lambda text: len(tokens(text))), part_type)
    text = _text_of_library(kind, model_type)
    if text is not None and text in (_rendered(render, f"{_BEFORE}{text}{_AFTER}") or ""):
        return Marker(text, None)
    return None


def takes_text(render: Render) -> bool:
    """Return whether a template shows a message whose content is a text, and no list of parts.
    Raises what ``render`` raises where that says nothing of the template."""
    return _BEFORE in (_rendered(render, _BEFORE) or "")


def text_part(text: str) -> Message:
    """Return a part of a message, under both names that templates read."""
    return {"type": "text", "text": text, "content": text}


def in_template_form(
    messages: Sequence[Message], markers: Mapping[MediaKind, Marker], *, parts_only: bool
) -> list[Message]:
    """Return the messages with their media as the template wants them. ``parts_only``: the template
    takes no plain texts."""
    return [
        message | {"content": _content(message.get("content"), markers, parts_only)}
        for message in messages
    ]


def _content(content: Any, markers: Mapping[MediaKind, Marker], parts_only: bool) -> Any:
    if not isinstance(content, list):
        return [text_part(content)] if parts_only and content else content
    shown: list[Message] = []
    for part in content:
        if part["type"] == "text":
            shown.append(text_part(part["text"]))
            continue
        marker = markers[MediaKind(part["type"])]
        if marker.type is None:
            shown.append(text_part(marker.text))
        else:
            shown.append({"type": marker.type, marker.type: ""})
    if all(part["type"] == "text" for part in shown) and not parts_only:
        return "".join(part["text"] for part in shown)
    return shown


def _rendered(render: Render, content: Any) -> str | None:
    try:
        return render([{"role": "user", "content": content}])
    except (LmxError, OSError, RenderingEndedError):
        # The machine may have been too busy: it may render the next time.
        raise
    except Exception:  # A template is code that may fail in any way for what it does not know.
        return None


def _insertions(without: str, with_it: str) -> list[str]:
    """Return each text that makes the one of the other when it is put in somewhere; none if there
    is no such text."""
    size = len(with_it) - len(without)
    if size <= 0:
        return []
    begin = 0
    while begin < len(without) and without[begin] == with_it[begin]:
        begin += 1
    if with_it[begin + size :] != without[begin:]:
        return []
    found = [with_it[begin : begin + size]]
    while begin > 0 and with_it[begin - 1] == with_it[begin + size - 1]:
        begin -= 1
        found.append(with_it[begin : begin + size])
    return found


def _text_of_library(kind: MediaKind, model_type: str) -> str | None:
    if kind is not MediaKind.IMAGE or model_type not in MODEL_CONFIG:
        return None
    parts = [{"type": "image"}, {"type": "text", "text": _AFTER}]
    shown = MessageFormatter(model_type).format_message(parts, num_images=1, num_audios=0)
    content = shown.get("content") if isinstance(shown, dict) else shown
    if not isinstance(content, str) or not content.endswith(_AFTER) or "1" in content:
        return None
    return content.removesuffix(_AFTER) or None
