"""How an answer of a job begins, and how those of a beam search are told. Engine thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lmx.protocol.data import TokenLogprob
from lmx.worker.engine import Engine, Hypothesis, RowStarted, TokenScores
from lmx.worker.jobs import Job, JobOutput
from lmx.worker.live_job import LiveJob
from lmx.worker.logprob_track import describe
from lmx.worker.row import Row

# Text that continues a prompt is decoded with so many of its last tokens: a tokenizer joins
# tokens differently at the start of a text.
_TAIL_TOKENS: Final = 8


def begin_answer(engine: Engine, job: Job, index: int) -> Row:
    """Return the row that makes text of an answer's tokens."""
    rules = job.rules
    continues = rules.make_parser is None
    tail = job.rows[0].prompt[-_TAIL_TOKENS:] if continues else ()
    detokenizer = engine.detokenizer(rules.make_parser is not None, tail)
    return Row(job, index, detokenizer, engine.token_bytes)


def echo_prompt(
    engine: Engine, job: Job, row: Row, started: RowStarted | None, out: list[JobOutput]
) -> None:
    """Begin an answer with its prompt, and with its logprobs where they are asked for.

    Special tokens in it are text, as they were to who wrote it, but for those that the tokenizer
    puts before a text: they have none.
    """
    prompt = job.rows[0].prompt
    added = _added(engine, prompt, job.rules.prompt)
    entries: list[TokenLogprob] = []
    if job.rules.logprobs and started is not None:
        scores: list[TokenScores | None] = [None, *started.prompt_scores]
        entries = [
            describe(token, score, engine.token_bytes)
            for token, score in zip(prompt, scores, strict=True)
        ]
    entries[:added] = [replace(entry, token=b"") for entry in entries[:added]]
    row.echo(entries, list(prompt), added, engine.detokenizer(False, special=True), out)


def _added(engine: Engine, prompt: Sequence[int], text: str | None) -> int:
    """Return how many special tokens are before the first of a text itself."""
    if text is None:
        return 0
    for place, token in enumerate(prompt):
        plain = engine.detokenizer(False)
        is_special = not plain.add(token) and not plain.flush()
        name = engine.token_bytes(token).decode(errors="replace")
        if not is_special or not name or text.startswith(name):
            return place
    return 0


def tell_found(
    engine: Engine, live: LiveJob, hypotheses: Sequence[Hypothesis], out: list[JobOutput]
) -> None:
    """Give out all answers of a beam search, from their beginning to their end."""
    job = live.job
    for index, hypothesis in enumerate(hypotheses[: job.answers]):
        row = begin_answer(engine, job, index)
        if job.rules.echo:
            echo_prompt(engine, job, row, live.started, out)
        unknown: Sequence[TokenScores | None] = [None] * len(hypothesis.tokens)
        scores = hypothesis.scores or unknown
        for token, score in zip(hypothesis.tokens, scores, strict=True):
            if row.advance(token, score, out):
                break
        else:
            row.finish(out)
        live.count(row)
    # A grammar may allow fewer answers than were asked for: the others are empty.
    for index in range(len(hypotheses), job.answers):
        begin_answer(engine, job, index).finish(out)
