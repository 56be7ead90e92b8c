"""An engine that does what its options and requests say: for tests of everything around it.

``engine="tests.support.fakes.scripted_engine:create"`` in a worker's spec, with the checkout on
PYTHONPATH. Standard library only. It is estimated to take what the MLX engine would for the same
model folder: what is hostile in a folder then meets the real reader. Deterministic: a step advances
every row by one token, and takes the longest ``step_s`` of the rows that it advances.

Options (``engine_options``), all optional:
    load_s            the load takes so long, with progress in ten parts
    load_error        the load raises this message
    load_crash        true: the load aborts the process
    load_hang         true: the load never ends
    load_cpu_s        the load computes for so long, by its processor time, and reports nothing
    load_exit         the process exits with this status in the load
    bad_loads         numbers, from 1, of this model's loads that fail; they are counted in a
                      file beside the model
    load_permanent    the load raises this message, as an error of the configuration
    load_memory       true: the load raises MemoryError
    memory_bytes      what the engine says that it holds
    grow_bytes_per_token  it says that it holds so much more for each token that it ever made;
                      shrinking takes half of that back
    context_length    tokens (bytes of the messages, see below); the spec's, else 4096
    step_s            of rows that name none; 0
    bad_release       true: giving the memory back raises at the end
    media             true: it takes images, sounds and videos, and hears videos
    children          true: the load starts two processes that ignore SIGTERM and never end, one
                      of them in a session of its own

The weights are read for as long as there is a file hold-MODEL next to the model.

The last message may be a JSON object, all of it optional:
    tokens            how many pieces the answer has; then it ends by itself; 10
    text              the piece; "word "
    stop_text         one more piece, the last
    until             the answer ends early, once there is this file
    step_s            a step with this row takes so long
    encode_s          tokenizing it takes so long
    encode_until      tokenizing it takes until there is this file
    prefill_s         prefill takes so long, in chunks of 0.05 s
    hang_at           the step that makes this token (0: the first) never ends
    crash_at          it kills the process with SIGKILL
    abort_at          it aborts the process
    memory_error_at   it finds no memory for this token
    grow_mib          so many MiB are taken in prefill and kept for good, 4 of them each 0.05 s
    raise_at          turning this token into text raises: that row alone fails
    step_raise_at     the step that makes this token raises: the engine is broken
    fail_at           in place of this token the engine says that the row has failed
    device_at         in place of this token the engine says that the row has failed, because
                      a command buffer of Metal did
    device_in_prefill true: it says so in place of reading the prompt
    form_at           in place of this token the engine says that its form can't be enforced
    pieces            the pieces themselves, in place of text and tokens
    again             the pieces when an answer to the same message was made before
Any other message is answered with a fixed sentence, word by word.

The answer of a row with an adapter begins with the adapter's name, in brackets.

A prompt has a token for each UTF-8 byte of its messages. Rows of one request answer alike; a
token's logprob is minus its place, over ten, and in a prompt its rank is its place. A beam search
finds the answer, and as many worse ones as requested. The model thinks between <think> and
</think>, and calls tools in the form json_tools. Nothing is held to a form; what a worker checks of
a schema when an answer is whole is checked.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmx.protocol.errors import ErrorCode, LmxError, OperationError, RequestError
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.messages.tasks import (
    Detokenize,
    Detokenized,
    Task,
    TaskReply,
    Tokenize,
    Tokenized,
)
from lmx.protocol.states import LoadPhase, MediaKind, StructureKind, ToolChoice
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import (
    ConstraintMaker,
    ConstraintSource,
    EncodedPrompt,
    GeneratedToken,
    Hypothesis,
    ModelFacts,
    PrefillFinished,
    PromptMedia,
    PromptSource,
    ReasoningMarkers,
    SequenceRequest,
    StepOutput,
    TokenScores,
)
from lmx.worker.media.values import Media, MediaNeeds
from lmx.worker.mlx.memory.estimate import estimate
from lmx.worker.schemas.form import schema_forms

__all__ = ["ScriptedEngine", "create", "estimate", "load"]

DEVICE_FAILURE = (
    "[METAL] Command buffer execution failed: Innocent Victim "
    "(00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)"
)
SENTENCE = "The quick brown fox jumps over the lazy dog."

_CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(9999)"
_MEDIA = MediaNeeds(frozenset(MediaKind), sample_rate_hz=16_000, audio_in_video=True)
_EOS = 0
_RAISES = 1
_CHUNK_S = 0.05
_HOPELESS = 1_000_000
"""A longer text is refused unread, as the real engine does: a list of so many tokens takes long
enough to look like a hang."""
_BYTE = 500_000
"""A prompt's token is this and a byte; smaller ones are pieces of answers."""


def create(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """The factory that a spec names."""
    reported = {} if spec.context_length is None else {"context_length": spec.context_length}
    options = {**reported, **spec.engine_options}
    loads = Path(spec.model_path) / f"loads-{spec.model_id}"
    load(options, advanced, loads, Path(spec.model_path) / f"hold-{spec.model_id}")
    adapters = {one.adapter_id: one.problem for one in spec.adapters}
    return ScriptedEngine(options, adapters).engine()


def load(
    options: Mapping[str, Any],
    advanced: LoadReporter,
    loads: Path = Path(os.devnull),
    hold: Path | None = None,
) -> None:
    """Do what the options say of the load; each is counted in the file ``loads``. Once the weights
    are there it waits for as long as there is the file ``hold``."""
    for part in range(1, 11):
        time.sleep(options.get("load_s", 0) / 10)
        advanced(LoadPhase.WEIGHTS, part / 10, "")
    while hold is not None and hold.exists():
        time.sleep(0.05)
        advanced(LoadPhase.WEIGHTS, 1.0, "")
    if options.get("children"):
        for own_session in (False, True):
            subprocess.Popen([sys.executable, "-c", _CHILD], start_new_session=own_session)
    if "load_error" in options:
        raise OperationError(ErrorCode.MODEL_LOAD_FAILED, options["load_error"])
    if options.get("bad_loads") and _count_load(loads) in options["bad_loads"]:
        raise OperationError(ErrorCode.MODEL_LOAD_FAILED, "this load fails, the next may not")
    if "load_permanent" in options:
        raise OperationError(ErrorCode.CONFIG_INVALID, options["load_permanent"])
    if options.get("load_memory"):
        raise MemoryError
    if options.get("load_crash"):
        os.abort()
    if "load_exit" in options:
        os._exit(options["load_exit"])
    if options.get("load_hang"):
        _hang()
    end_s = time.thread_time() + options.get("load_cpu_s", 0)
    while time.thread_time() < end_s:
        pass
    advanced(LoadPhase.WARMUP, None, "")


def _count_load(loads: Path) -> int:
    with loads.open("a+b") as file:
        file.write(b".")
        return file.tell()


@dataclass
class _Row:
    request: SequenceRequest
    tokens: list[int]
    max_tokens: int
    step_s: float
    prefill_s: float
    grow_mib: int
    prefill_tokens: int
    directive: Mapping[str, Any]
    made: int = 0


class _Free:
    """A constraint that allows everything."""

    def mask(self) -> None:
        return None

    def accept(self, token: int) -> None:
        pass

    def fork(self) -> _Free:
        return self


class ScriptedMedia:
    """The media of a prompt. They take what they took when they were decoded, and have no tokens of
    their own."""

    image_tokens = audio_tokens = video_tokens = 0

    def __init__(self, media: Sequence[Media]) -> None:
        self._size_bytes = sum(one.size_bytes for one in media)
        self.is_here = True

    @property
    def size_bytes(self) -> int:
        return self._size_bytes if self.is_here else 0

    def release(self) -> None:
        self.is_here = False

    def restore(self, again: PromptMedia) -> None:
        if again.size_bytes != self._size_bytes:
            raise ValueError("these are other media")
        self.is_here = True


class ScriptedEngine:
    """See the module's docstring. ``calls`` counts what was asked of it."""

    def __init__(
        self, options: Mapping[str, Any], adapters: Mapping[str, str | None] | None = None
    ) -> None:
        self._options = options
        self._adapters = adapters or {}
        self._context_tokens: int = options.get("context_length", 4096)
        self._rows: dict[int, _Row] = {}
        self._grown: list[bytes] = []
        self._answered: set[str] = set()
        self._texts = ["", ""]
        self._token_of: dict[str, int] = {}
        self._grown_bytes = 0
        self._peak_bytes = 0
        self.calls: dict[str, int] = {
            "step": 0,
            "rest": 0,
            "remove": 0,
            "flush": 0,
            "preempt": 0,
            "shrink": 0,
            "regrow": 0,
        }

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            self._context_tokens,
            frozenset({_EOS}),
            vocabulary_size=1_000_000,
            reasoning=ReasoningMarkers("<think>", "</think>"),
            tool_parser="json_tools",
            converses=True,
            adapters=self._adapters,
            media=_MEDIA if self._options.get("media") else None,
        )

    def engine(self) -> Engine:
        """Return it as a worker sees it."""
        return Engine(self.facts, self, self, self)

    def encode(self, source: PromptSource) -> EncodedPrompt:
        if source.tokens is not None:
            return EncodedPrompt(source.tokens)
        if source.text is not None:
            return EncodedPrompt(_bytes(source.text))
        contents = [str(message["content"]) for message in source.messages or ()]
        directive = _directive(contents[-1])
        time.sleep(directive.get("encode_s", 0))
        while "encode_until" in directive and not Path(directive["encode_until"]).exists():
            time.sleep(0.01)
        text = "\0".join(contents)
        if len(text) > _HOPELESS > self._context_tokens:
            raise RequestError(
                ErrorCode.CONTEXT_LENGTH_EXCEEDED,
                f"The messages have {len(text)} bytes, and the context {self._context_tokens}.",
                param="messages",
            )
        media = ScriptedMedia(source.media) if source.media else None
        return EncodedPrompt(_bytes(text), media=media)

    def constrain(self, source: ConstraintSource) -> ConstraintMaker | None:
        use = source.tool_use
        if use is not None and use.choice is ToolChoice.REQUIRED:
            forms = {
                tool["function"]["name"]: next(
                    schema_forms(tool["function"]["parameters"], lambda _: True)
                )
                for _, tool in use.callable()
            }
            checks = {name: form.check for name, form in forms.items() if form.check is not None}
            return ConstraintMaker(_Free, call_checks=checks) if checks else None
        if source.structure is None or source.structure.kind is not StructureKind.JSON_SCHEMA:
            return None
        form = next(schema_forms(json.loads(source.structure.text), lambda _: True))
        return ConstraintMaker(_Free, form.check, form.remarks)

    def detokenizer(
        self, markers: bool, after: Sequence[int] = (), *, special: bool = False
    ) -> _Texts:
        return _Texts(self._texts)

    def token_bytes(self, token: int) -> bytes:
        return self._texts[token].encode() if token < _BYTE else bytes([token - _BYTE])

    def can_admit(self) -> bool:
        return not any(row.prefill_tokens for row in self._active().values())

    def admit(self, row: SequenceRequest) -> None:
        assert not isinstance(row.media, ScriptedMedia) or row.media.is_here
        asked = row.prompt[: len(row.prompt) - row.generated_tokens]
        last = _text_of(asked).split("\0")[-1]
        directive = _directive(last)
        if last in self._answered and not row.generated_tokens and "again" in directive:
            directive = {**directive, "pieces": directive["again"]}
        self._answered.add(last)
        if row.adapter:
            directive = {**directive, "pieces": [f"[{row.adapter}] ", *directive["pieces"]]}
        self._rows[row.sequence_id] = _Row(
            request=row,
            tokens=self._script(directive),
            max_tokens=row.generated_tokens + row.max_tokens,
            step_s=directive.get("step_s", self._options.get("step_s", 0)),
            prefill_s=directive.get("prefill_s", 0),
            grow_mib=directive.get("grow_mib", 0),
            prefill_tokens=len(row.prompt),
            directive=directive,
            made=row.generated_tokens,
        )

    def step(self, interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        self.calls["step"] += 1
        decoding = {
            sequence_id: row
            for sequence_id, row in self._active().items()
            if row.prefill_tokens == 0
        }
        time.sleep(max((row.step_s for row in decoding.values()), default=0))
        tokens: list[GeneratedToken] = []
        found: list[tuple[int, Sequence[Hypothesis]]] = []
        failed: list[tuple[int, Exception]] = []
        for sequence_id, row in decoding.items():
            if row.made == row.directive.get("fail_at"):
                failed.append((sequence_id, RuntimeError("the script says so")))
                del self._rows[sequence_id]
            elif row.made == row.directive.get("device_at"):
                failed.append((sequence_id, RuntimeError(DEVICE_FAILURE)))
                del self._rows[sequence_id]
            elif row.made == row.directive.get("form_at"):
                code = ErrorCode.STRUCTURE_NOT_ENFORCEABLE
                failed.append((sequence_id, LmxError(code, "the script says so")))
                del self._rows[sequence_id]
            elif row.request.beam is not None:
                found.append((sequence_id, _hypotheses(row)))
                del self._rows[sequence_id]
            else:
                tokens.append(self._next(row))
        for sequence_id, row in decoding.items():
            if row.made >= row.max_tokens:
                self._rows.pop(sequence_id, None)
        spoiled = [one for one, row in self._rows.items() if row.directive.get("device_in_prefill")]
        failed += [(sequence_id, RuntimeError(DEVICE_FAILURE)) for sequence_id in spoiled]
        prefill_tokens, started = self._prefill()
        for read in started:
            if self._rows[read.sequence_id].max_tokens == 0:
                del self._rows[read.sequence_id]
        return StepOutput(tokens, prefill_tokens, started, failed, found)

    def remove(self, sequence_id: int) -> None:
        self.calls["remove"] += 1
        self._rows.pop(sequence_id, None)

    def flush(self) -> StepOutput:
        self.calls["flush"] += 1
        return StepOutput()

    def preempt(self, sequence_id: int) -> Sequence[int] | None:
        self.calls["preempt"] += 1
        row = self._rows.get(sequence_id)
        if row is None or row.request.beam is not None:
            return None
        del self._rows[sequence_id]
        return row.tokens[: row.made]

    def plan(self, task: Task, media: Sequence[Media] = ()) -> TaskReply:
        if isinstance(task, Tokenize):
            source = PromptSource(text=task.text, messages=task.messages, media=media)
            tokens = self.encode(source).tokens
            pieces = json.dumps([chr(token - _BYTE) for token in tokens]) if task.pieces else ""
            return Tokenized(task.stream_id, tuple(tokens), 4096, pieces.encode())
        if isinstance(task, Detokenize):
            return Detokenized(task.stream_id, _text_of(task.tokens))
        raise RequestError(ErrorCode.UNSUPPORTED_VALUE, "This model writes answers.", param="model")

    def rest(self) -> None:
        self.calls["rest"] += 1

    def shrink(self) -> None:
        self.calls["shrink"] += 1
        self._grown_bytes //= 2

    def regrow(self) -> None:
        self.calls["regrow"] += 1

    def close(self) -> None:
        self.calls["close"] = 1

    def release(self) -> None:
        self.calls["release"] = 1
        if self._options.get("bad_release"):
            raise RuntimeError(DEVICE_FAILURE)

    def memory_bytes(self) -> int:
        return int(self._options.get("memory_bytes", 0)) + self._grown_bytes

    def peak_memory_bytes(self) -> int:
        return self._peak_bytes

    def _script(self, directive: Mapping[str, Any]) -> list[int]:
        pieces = directive["pieces"]
        tokens = [self._token(piece) for piece in pieces]
        if (at := directive.get("raise_at")) is not None:
            tokens[at] = _RAISES
        return [*tokens, _EOS]

    def _token(self, text: str) -> int:
        token = self._token_of.get(text)
        if token is None:
            token = self._token_of[text] = len(self._texts)
            self._texts.append(text)
        return token

    def _active(self) -> dict[int, _Row]:
        """Return the rows that do not stand still."""
        held = any(not row.request.background for row in self._rows.values())
        return {
            one: row for one, row in self._rows.items() if not (held and row.request.background)
        }

    def _prefill(self) -> tuple[int, list[PrefillFinished]]:
        active = self._active()
        found = next(((i, row) for i, row in active.items() if row.prefill_tokens), None)
        if found is None:
            return 0, []
        sequence_id, row = found
        if row.grow_mib > 0:
            time.sleep(_CHUNK_S)
            self._grown.append(b"x" * min(row.grow_mib, 4) * 1024**2)
            row.grow_mib -= 4
            return 1, []
        if row.prefill_s > 0:
            time.sleep(min(row.prefill_s, _CHUNK_S))
            row.prefill_s -= _CHUNK_S
            return 1, []
        done, row.prefill_tokens = row.prefill_tokens, 0
        top = row.request.prompt_logprobs
        scores = [] if top is None else [_prompt_scores(place, top) for place in range(1, done)]
        return done, [PrefillFinished(sequence_id, 0, scores)]

    def _next(self, row: _Row) -> GeneratedToken:
        at = row.made
        if "until" in row.directive and Path(row.directive["until"]).exists():
            del row.tokens[at:-1]
        if at == row.directive.get("hang_at"):
            _hang()
        if at == row.directive.get("crash_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        if at == row.directive.get("abort_at"):
            os.abort()
        if at == row.directive.get("memory_error_at"):
            raise MemoryError("the script says so")
        if at == row.directive.get("step_raise_at"):
            raise RuntimeError("the script says so")
        row.made += 1
        self._grown_bytes += int(self._options.get("grow_bytes_per_token", 0))
        self._peak_bytes = max(self._peak_bytes, self.memory_bytes())
        return GeneratedToken(
            row.request.sequence_id, row.tokens[at], _scores(at, row.request.top_logprobs)
        )


class _Texts:
    """A detokenizer whose tokens are whole pieces of text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def add(self, token: int) -> str:
        if token == _RAISES:
            raise ValueError("the script says so")
        return self._texts[token] if token < _BYTE else chr(token - _BYTE)

    def flush(self) -> str:
        return ""


def _bytes(text: str) -> list[int]:
    return [_BYTE + byte for byte in text.encode()]


def _text_of(tokens: Sequence[int]) -> str:
    # Any number is taken: a request may send tokens of its own.
    return bytes((token - _BYTE) % 256 for token in tokens).decode(errors="replace")


def _scores(place: int, top: int | None) -> TokenScores:
    return TokenScores(-place / 10, [(place, -place / 10)] * (top or 0))


def _prompt_scores(place: int, top: int) -> TokenScores:
    # The alternative is a byte that no text has.
    return TokenScores(-place / 10, [(_BYTE + 255, 0.0)] * top, place)


def _hypotheses(row: _Row) -> list[Hypothesis]:
    """The answer, and worse ones that are ever shorter."""
    width = row.request.beam.width if row.request.beam else 1
    return [
        Hypothesis(row.tokens[: max(1, len(row.tokens) - place)], -float(place))
        for place in range(width)
    ]


def _directive(content: str) -> dict[str, Any]:
    try:
        asked = json.loads(content)
    except ValueError:
        asked = None
    if not isinstance(asked, dict):
        words = SENTENCE.split(" ")
        return {"pieces": [words[0], *(f" {word}" for word in words[1:])]}
    pieces = list(asked.get("pieces", [asked.get("text", "word ")] * asked.get("tokens", 10)))
    if "stop_text" in asked:
        pieces.append(asked["stop_text"])
    return {**asked, "pieces": pieces}


def _hang() -> None:
    while True:  # The GIL is released, as in a kernel that never returns.
        time.sleep(0.05)
