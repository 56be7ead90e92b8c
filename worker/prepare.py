"""From a Generate to a job for the engine: runs on the prompt thread, where it may take long."""

from __future__ import annotations

import secrets

from lmx.protocol.data import Generate
from lmx.protocol.specs import WorkerSpec
from lmx.worker.engine import Engine, ModelFacts, RowRequest
from lmx.worker.row import Job
from lmx.worker.sampling_defaults import resolve_max_tokens, resolve_sampling


def prepare(
    engine: Engine,
    facts: ModelFacts,
    spec: WorkerSpec,
    request: Generate,
    row_id: int,
    arrived_s: float,
) -> Job:
    """Render, tokenize and check a request. Raises ``RequestError`` when it can't be met."""
    prompt = engine.encode(request.messages, request.template_kwargs or {})
    row = RowRequest(
        row_id=row_id,
        prompt=prompt,
        max_tokens=resolve_max_tokens(request.max_tokens, spec, len(prompt), facts.context_tokens),
        sampling=resolve_sampling(request.sampling, spec, facts, secrets.randbits(63)),
    )
    return Job(request.request_id, row, request.stop, arrived_s)
