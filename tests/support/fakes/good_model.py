"""An engine that writes what a good model would: the calls and the JSON that a request asks for.

Specs name it by :mod:`good_engine`. All but the
model is real: tokenizer (a token for each byte), grammars, output parser. Each token that
it writes must be one that the request's grammar allows, EOS too, else its row fails.

It knows what to write by words: a tool is called when the last thing said has a word of the
tool's name, arguments are numbers, quoted texts and places out of what was said. After a tool's
result it repeats that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from lmx.protocol.messages.data import Structure, ToolUse
from lmx.protocol.messages.specs import WorkerSpec
from lmx.protocol.states import StructureKind, ToolChoice
from lmx.worker.constraints.compiler import ConstraintCompiler
from lmx.worker.engine.interfaces import Engine, LoadReporter
from lmx.worker.engine.values import (
    Constraint,
    ConstraintMaker,
    ConstraintSource,
    EncodedPrompt,
    GeneratedToken,
    ModelFacts,
    PrefillFinished,
    PromptSource,
    SequenceRequest,
    StepOutput,
)
from lmx.worker.templates.hermes import with_tools_as_text
from lmx.worker.text.detokenize import IncrementalDetokenizer
from tests.support.fakes.call_writers import json_tools
from tests.support.fakes.scripted_engine import ScriptedEngine
from tests.support.models.tiny_models import CHAT_TEMPLATE, make_tokenizer

GREETING: Final = "Hello, how are you today?"

_EOS: Final = 256
_TOKENS_A_STEP: Final = 8
_CONTEXT_TOKENS: Final = 32_768


def create(spec: WorkerSpec, advanced: LoadReporter) -> Engine:
    """The factory that a spec names."""
    return GoodModel({}).engine()


@dataclass
class Script(Constraint):
    """What a row writes, and the grammar that has to allow it."""

    tokens: Sequence[int]
    rules: Constraint | None

    def mask(self) -> Any:
        return self.rules.mask() if self.rules else None

    def accept(self, token: int) -> None:
        mask = self.mask()
        if mask is not None:
            allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")
            if not allowed[token]:
                raise RuntimeError(f"token {token} ({chr(token)!r}) is not allowed")
        if self.rules:
            self.rules.accept(token)

    def fork(self) -> Script:
        raise NotImplementedError


@dataclass
class _Row:
    request: SequenceRequest
    script: Script
    made: int = 0

    @property
    def most(self) -> int:
        """How many tokens it makes in all."""
        return min(len(self.script.tokens), self.request.max_tokens)

    def advance(self) -> list[GeneratedToken]:
        """Return the next tokens."""
        end = min(self.made + _TOKENS_A_STEP, self.most)
        tokens = self.script.tokens[self.made : end]
        for token in tokens:
            self.script.accept(token)
        self.made = end
        return [GeneratedToken(self.request.sequence_id, token) for token in tokens]


class GoodModel(ScriptedEngine):
    """See the module's docstring. Where it says nothing else it is a scripted engine."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self._tokenizer = make_tokenizer(CHAT_TEMPLATE)
        facts = self.facts
        self._compiler = ConstraintCompiler(
            self._tokenizer, 300, facts.eos_token_ids, None, facts.tool_parser
        )
        self._asked = PromptSource(text="")
        self._good: dict[int, _Row] = {}

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            _CONTEXT_TOKENS,
            frozenset({_EOS}),
            vocabulary_size=300,
            tool_parser="json_tools",
            converses=True,
            grammars=True,
        )

    def encode(self, source: PromptSource) -> EncodedPrompt:
        self._asked = source
        if source.messages is None:
            return EncodedPrompt(source.tokens or self._tokenizer.encode(source.text))
        tools = source.tool_use.known if source.tool_use else ()
        conversation = with_tools_as_text([dict(one) for one in source.messages], tools)
        return EncodedPrompt(
            self._tokenizer.encode(
                self._tokenizer.apply_chat_template(
                    conversation, tokenize=False, add_generation_prompt=True
                )
            )
        )

    def constrain(self, source: ConstraintSource) -> Any:
        maker = self._compiler.compile(source)
        text = answer(self._asked.messages or (), self._asked.tool_use, source.structure)
        tokens = [*self._tokenizer.encode(text, add_special_tokens=False), _EOS]
        return ConstraintMaker(lambda: Script(tokens, maker() if maker else None))

    def detokenizer(
        self, markers: bool, after: Sequence[int] = (), *, special: bool = False
    ) -> Any:
        return IncrementalDetokenizer(self._tokenizer.decode, frozenset({_EOS}), after)

    def can_admit(self) -> bool:
        return True

    def admit(self, row: SequenceRequest) -> None:
        assert isinstance(row.constraint, Script)
        self._good[row.sequence_id] = _Row(row, row.constraint)

    def remove(self, sequence_id: int) -> None:
        self._good.pop(sequence_id, None)

    def step(self, interrupted: Callable[[], bool] = lambda: False) -> StepOutput:
        tokens: list[GeneratedToken] = []
        failed: list[tuple[int, Exception]] = []
        fresh = [row.request for row in self._good.values() if not row.made]
        for sequence_id, row in list(self._good.items()):
            try:
                tokens += row.advance()
            except RuntimeError as error:
                failed.append((sequence_id, error))
                self.remove(sequence_id)
            if row.made == row.most:
                self.remove(sequence_id)
        started = [PrefillFinished(request.sequence_id, 0) for request in fresh]
        return StepOutput(tokens, sum(len(one.prompt) for one in fresh), started, failed)


def answer(
    messages: Sequence[Mapping[str, Any]], use: ToolUse | None, structure: Structure | None
) -> str:
    """Return what a good model says next."""
    said = _said(messages)
    last = messages[-1] if messages else {"role": "user"}
    if use is not None and use.known and (calls := _calls(said, last["role"], use)):
        return json_tools(calls)
    if structure is not None and structure.kind is StructureKind.JSON_OBJECT:
        return _json(dict.fromkeys(re.findall(r"'(\w+)'", said), "cats") or {"said": said})
    if structure is not None and structure.kind is StructureKind.JSON_SCHEMA:
        schema = json.loads(structure.text)
        return _json(_Writer(said, schema).write(schema))
    if last["role"] == "tool":
        return f"It is this: {last['content']}"
    return GREETING


def _calls(said: str, role: str, use: ToolUse) -> list[tuple[str, dict[str, Any]]]:
    tools = [tool["function"] for _, tool in use.callable()]
    words = set(re.findall(r"[a-z0-9]+", said.lower()))
    fitting = [one for one in tools if words & (set(_words(one["name"])) - {"get", "my"})]
    if use.choice is ToolChoice.REQUIRED:
        # Of several that fit, the one whose whole name was said.
        fitting = sorted(fitting or tools, key=lambda one: one["name"] not in said)[:1]
    elif role != "user":
        return []
    calls = [
        (function["name"], _Writer(said, schema, place).write(schema))
        for function in fitting
        for schema in [function.get("parameters") or {"type": "object", "properties": {}}]
        for place in _places(said) or [""]
    ]
    return calls[:1] if use.one_call else calls


class _Writer:
    """Fills a schema with what was said."""

    def __init__(self, said: str, root: Mapping[str, Any], place: str = "") -> None:
        self._root = root
        self._said = said
        self._numbers: Iterator[int] = map(int, re.findall(r"-?\d+", said))
        self._texts = iter([*re.findall(r"'([^']+)'", said), *([place] if place else [])])

    def write(self, schema: Mapping[str, Any]) -> Any:
        """Return a value of the schema."""
        if "$ref" in schema:
            target: Any = self._root
            for key in schema["$ref"].split("/")[1:]:
                target = target[key]
            return self.write(target)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            named = (one for one in schema["enum"] if str(one) in self._said.lower())
            return next(named, schema["enum"][0])
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                return self.write(schema[key][0])
        match schema.get("type"):
            case "integer" | "number":
                return next(self._numbers, schema.get("minimum", 1))
            case "boolean":
                return True
            case "null":
                return None
            case "array":
                return [self.write(schema["items"])]
            case "object":
                properties: Mapping[str, Any] = schema.get("properties", {})
                return {name: self.write(one) for name, one in properties.items()}
        return next(self._texts, self._said)


def _said(messages: Sequence[Mapping[str, Any]]) -> str:
    reported = (message["content"] for message in reversed(messages) if message["role"] == "user")
    return "".join(str(content) for content in islice(reported, 1))


def _places(said: str) -> list[str]:
    return re.findall(r"\b(?:in|and) ([A-Z]\w*(?: [A-Z]\w*)*)", said)


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"([A-Z])", r" \1", name).lower())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
