"""A response that is a summary of its conversation, and the answer of `/compact`. Pure.

The summary is in one item, as a token. It has no events of its own: the item comes when it is
whole.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from lmx.protocol.errors import ErrorCode, GenerationError
from lmx.protocol.messages.data import ChoiceEnded, Delta
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.router.http.responses import Answer
from lmx.router.rendering.accumulator import AccumulatedChoice
from lmx.router.rendering.answer_format import Beginning, Generated
from lmx.router.rendering.envelope import Identity
from lmx.router.rendering.responses.events import ResponseAnswer, ResponseWriter
from lmx.router.rendering.responses.items import ItemForm, OutputCompaction, compaction
from lmx.router.rendering.responses.state import ResponseUsage, ended


class CompactedResponse(Answer):
    """A conversation, made shorter."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    """Unix time."""
    output: list[dict[str, Any]]
    """The messages of the user as they were sent, then one item of the type `compaction`. It is the
    input of the next request, before what is new."""
    usage: ResponseUsage | None
    """How many tokens the summary took."""


class CompactionAnswer(ResponseAnswer):
    """A response whose output is a summary. ``key`` is that of its token. ``capped`` is whether
    lmx itself has limited the length: a summary that ends there is whole."""

    def __init__(self, asked: Mapping[str, Any], key: bytes, *, capped: bool) -> None:
        super().__init__(asked, ItemForm({}), logprobs=False)
        self._key = key
        self._capped = capped

    def writer(self, identity: Identity, beginning: Beginning) -> "CompactionWriter":
        return CompactionWriter(
            identity, self._head(identity), beginning, self._key, capped=self._capped
        )

    def complete_answer(self, made: Generated) -> dict[str, Any]:
        """Return the whole response. Raises ENGINE_ERROR if the model wrote no summary."""
        return super().complete_answer(_checked(made, capped=self._capped))

    def _output(
        self,
        response_id: str,
        made: AccumulatedChoice,
        end: ChoiceEnded | None,
        *,
        logprobs: bool = True,
    ) -> Iterator[OutputCompaction]:
        summary = _text(made)
        if end is not None and summary:
            yield compaction(response_id, summary, self._key)


class CompactionWriter(ResponseWriter):
    """Writes the events of a response whose output is a summary."""

    def __init__(
        self,
        identity: Identity,
        head: Mapping[str, Any],
        beginning: Beginning,
        key: bytes,
        *,
        capped: bool,
    ) -> None:
        super().__init__(identity, head, beginning, ItemForm({}))
        self._key = key
        self._capped = capped
        self._summary: list[str] = []

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        self._summary += [
            delta.text for delta in deltas if delta.kind is DeltaKind.CONTENT and delta.call is None
        ]
        return b""

    def ends(self, ended: Sequence[ChoiceEnded]) -> Iterator[bytes]:
        """Yield the item, which is whole when it begins."""
        self._end = _end(ended[0], capped=self._capped)
        if summary := "".join(self._summary).strip():
            yield self._whole_item(compaction(self._identity.completion_id, summary, self._key))


class CompactedAnswer:
    """The answer of `/v1/responses/compact`. See
    :class:`lmx.router.rendering.answer_format.AnswerFormat`. ``messages`` are those of the user, as
    JSON.
    """

    choices: Final = 1
    retained_logprobs: Final = None

    def __init__(self, messages: Sequence[Any], key: bytes) -> None:
        self._messages = messages
        self._key = key

    def writer(self, identity: Identity, beginning: Beginning) -> "CompactionWriter":
        """It is never sent as a stream."""
        raise NotImplementedError

    def complete_answer(self, made: Generated) -> Mapping[str, Any]:
        """Return the shorter conversation; of one that is not whole, nothing but its frame. Raises
        ENGINE_ERROR if the model wrote no summary."""
        identity, end = made.identity, _checked(made, capped=True).ends.get(0)
        shown: dict[str, Any] = {
            "id": identity.completion_id,
            "object": "response.compaction",
            "created_at": identity.created_s,
            "output": [],
            "usage": None,
        }
        if end is not None and made.ending is not None:
            summary = compaction(identity.completion_id, _text(made.choices[0]), self._key)
            shown["output"] = [*self._messages, summary]
            shown["usage"] = ended(identity, made.beginning, end, made.ending)["usage"]
        return shown


def _checked(made: Generated, *, capped: bool) -> Generated:
    if made.ending is not None and not _text(made.choices[0]):
        raise GenerationError(
            ErrorCode.ENGINE_ERROR,
            "The model wrote no summary of the conversation: send the request again, or have "
            "another model do it.",
        )
    return replace(made, ends={index: _end(end, capped=capped) for index, end in made.ends.items()})


def _end(end: ChoiceEnded, *, capped: bool) -> ChoiceEnded:
    is_whole = capped and end.reason is FinishReason.LENGTH
    return replace(end, reason=FinishReason.STOP) if is_whole else end


def _text(made: AccumulatedChoice) -> str:
    return "".join(made.content).strip()
