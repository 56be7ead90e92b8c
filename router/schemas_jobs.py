"""What the query of GET /v1/jobs may ask for."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

_NAME_LIMIT = 512
"""Characters of a model's name, far beyond any that there is."""


class JobsQuery(BaseModel):
    """Which jobs to list, the newest first. What a query holds is text: numbers are read from it,
    unlike in a body."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    state: (
        Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"] | None
    ) = Field(None, description="Jobs in this state alone.")
    model: str | None = Field(
        None,
        min_length=1,
        max_length=_NAME_LIMIT,
        description="Jobs of this model alone: its id, alias or source.",
    )
    kind: Literal["chat", "completion"] | None = Field(None, description="Jobs of this kind alone.")
    limit: int = Field(20, ge=1, le=100, description="How many jobs there are on a page.")
    after: str | None = Field(
        None,
        min_length=1,
        max_length=_NAME_LIMIT,
        description="The id of the last job of the page before.",
    )
