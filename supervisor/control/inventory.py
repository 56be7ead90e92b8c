"""What routers and the CLI may ask about which models there are: to add one, to remove one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lmx.protocol.errors import ErrorCode, LmxError
from lmx.protocol.messages import control, inventory
from lmx.supervisor.control.deferred_replies import LaterAnswers
from lmx.supervisor.control.models import answer_or_deny
from lmx.supervisor.core.slot import Asker
from lmx.supervisor.inventory.added import AddedModels

QUESTIONS: Final = (inventory.AddModel, inventory.RemoveModel)


class InventoryCommands:
    """Answers with the added models; ``later`` where files are to be read before. Downloads and
    files on disk are others'."""

    def __init__(
        self, added: AddedModels, reply: Callable[[Asker, Any], None], later: LaterAnswers
    ) -> None:
        self._added = added
        self._reply = reply
        self._later = later

    def answer(self, asker: Asker, question: Any, now_s: float) -> None:
        """Answer one question; what it raises of :class:`LmxError` becomes Denied."""
        answer_or_deny(self._reply, asker, lambda: self._answer(asker, question, now_s))

    def _answer(self, asker: Asker, question: Any, now_s: float) -> control.Done | None:
        match question:
            case inventory.AddModel():
                self._later.answer(asker, self._add(question))
                return None
            case inventory.RemoveModel(model_id):
                pid = self._added.remove(model_id, now_s)
                return control.Done(f"{model_id} is removed; its files stay", pid)
            case _:
                kind = type(question).__name__
                raise LmxError(ErrorCode.PROTOCOL_ERROR, f"{kind} is not a question")

    async def _add(self, question: inventory.AddModel) -> control.Done:
        await self._added.add(question)
        return control.Done(f"{question.model_id} is served: its first request loads it")
