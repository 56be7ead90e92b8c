"""What the shapes of answers are made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """An object in an answer. A field without a default is there always; one with the default
    None may be left out. It has these fields and no other, which tests see to; clients are told
    that more may come."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")
