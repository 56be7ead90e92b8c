"""From what a request asks of an answer's form to constraints for its rows. Prompt thread."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llguidance import LLMatcher, LLParserLimits

from lmx.protocol.data import Structure, ToolUse
from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.states import StructureKind, ToolChoice
from lmx.worker import harmony
from lmx.worker.closed_objects import closed
from lmx.worker.constraints import Form, GrammarConstraint
from lmx.worker.engine import Constraint, ConstraintMaker, ConstraintSource, ReasoningMarkers
from lmx.worker.grammar_vocabulary import GrammarVocabulary, read_vocabulary
from lmx.worker.schema_cost import MOST_SCHEMA_CHARS, too_costly
from lmx.worker.schema_dialects import SchemaFault
from lmx.worker.schema_form import SchemaForm, schema_forms
from lmx.worker.structure_grammar import (
    ONE_LINE_SPACE,
    Grammar,
    invalid,
    read_schema,
    schema_grammar,
    space,
    structure_grammar,
    without_prose,
)
from lmx.worker.thinking_constraint import ThinkingConstraint, ThinkingRules
from lmx.worker.tool_grammar import HARMONY, Tool, harmony_answer, tools_grammar

_LIMITS: Final = LLParserLimits(max_grammar_size=50_000, verbose_errors=False)
# The engine thread pays it for each row: a slower one would stop everybody's streams.
_SLOWEST_FIRST_MASK_S: Final = 1.0
_LONGEST_REASON_CHARS: Final = 200
_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
# OpenAI's meaning of a function without parameters.
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class ConstraintCompiler:
    """Compiles structures, tools that must be called, and thinking budgets.

    ``vocabulary_size`` is the width of the logits, which may be more or less than the tokens.
    The first grammar makes the compiler read the vocabulary: 0.4 s and 40 MB for 49152 tokens.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocabulary_size: int,
        eos_token_ids: frozenset[int],
        reasoning: ReasoningMarkers | None,
        tool_parser: str | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._eos_token_ids = eos_token_ids
        self._reasoning = reasoning
        self._tool_parser = tool_parser
        self._made: GrammarVocabulary | None = None

    def compile(self, source: ConstraintSource) -> ConstraintMaker | None:
        """Return what makes a row's constraint, None when there is none.

        Raises ``RequestError`` for a form that is invalid, that can't be enforced, or that
        takes too long.
        """
        use = source.tool_use if source.tool_use and source.tool_use.tools else None
        required = use is not None and use.choice is ToolChoice.REQUIRED
        forms = []
        schema = None
        if source.structure and not required:
            matcher, schema = self._structure(source.structure)
            forms.append(Form(matcher))
        if use and (required or (forms and use.choice is ToolChoice.AUTO)):
            forms.append(Form(self._tools(use, required), open_end=not use.one_call))
        rules = self._rules(source)
        if not forms and (rules is None or rules.budget_tokens is None):
            return None
        masks = self._vocabulary.masks

        def make() -> Constraint:
            answer = None
            if forms:
                answer = GrammarConstraint([form.copy() for form in forms], masks)
            if rules is None and answer:
                return answer
            assert rules
            return ThinkingConstraint(answer, masks, rules, source.thinking_open)

        return (
            ConstraintMaker(make, schema.check, schema.remarks) if schema else ConstraintMaker(make)
        )

    def _structure(self, structure: Structure) -> tuple[LLMatcher, SchemaForm | None]:
        if structure.kind is StructureKind.JSON_SCHEMA:
            return self._schema(structure)
        return self._framed(structure_grammar(structure), structure.param), None

    def _schema(self, structure: Structure) -> tuple[LLMatcher, SchemaForm]:
        """Return what is enforced of a schema, as much as can be."""
        refused = None
        try:
            for form in schema_forms(read_schema(structure), self._takes):
                grammar = schema_grammar(form.schema, space(structure))
                try:
                    return self._framed(grammar, structure.param), form
                except RequestError as error:
                    refused = refused or error
        except SchemaFault as fault:
            raise invalid(structure.param, str(fault)) from fault
        except RecursionError as error:
            raise invalid(structure.param, "it is nested too deeply") from error
        assert refused is not None
        raise refused

    def _takes(self, schema: Mapping[str, Any]) -> bool:
        """Return whether llguidance takes a small schema."""
        grammar = json.dumps({"grammars": [schema_grammar(schema, ONE_LINE_SPACE)]})
        matcher = LLMatcher(self._vocabulary.tokenizer, grammar, log_level=0, limits=_LIMITS)
        return not matcher.is_error()

    def _framed(self, grammar: Grammar, param: str) -> LLMatcher:
        """Compile the grammar of an answer, in what this model writes around one."""
        if self._is_harmony:
            frame = harmony_answer(self._vocabulary.special, "answer")
            return self._matcher([{"lark_grammar": frame}, {"name": "answer", **grammar}], param)
        return self._matcher([grammar], param)

    def _tools(self, use: ToolUse, required: bool) -> LLMatcher:
        """Compile the tools that may be called. Arguments that can't be enforced are an error
        where a call is, or the function is strict, else any object will do."""
        tools = []
        for index, tool in use.callable():
            function = tool["function"]
            strict = required or bool(function.get("strict"))
            param = f"tools[{index}].function.parameters"
            parameters = self._parameters(function.get("parameters"), param, strict)
            tools.append(Tool(function["name"], parameters))
        if sum(len(json.dumps(tool.parameters)) for tool in tools) > MOST_SCHEMA_CHARS:
            reason = f"their schemas have more than {MOST_SCHEMA_CHARS} characters together"
            raise invalid("tools", reason)
        if not tools:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"There is no function {use.function!r} among the tools: name one of them.",
                param="tool_choice",
            )
        special = self._vocabulary.special
        grammar = tools_grammar(tools, self._tool_parser, not use.one_call, special)
        return self._matcher([grammar], "tools")

    def _parameters(
        self, parameters: Mapping[str, Any] | None, param: str, strict: bool
    ) -> Mapping[str, Any]:
        if parameters is None:
            return _NO_ARGUMENTS
        # Arguments are an object, whatever else the schema says.
        try:
            schema = {"type": "object", **without_prose(parameters)}
            if schema["type"] != "object":
                raise invalid(param, "arguments are an object")
            if reason := too_costly(schema):
                raise invalid(param, reason)
            schema = closed(schema)
            self._matcher([schema_grammar(schema, ONE_LINE_SPACE)], param)
        except RequestError:
            if strict:
                raise
            return _ANY_OBJECT
        except RecursionError as error:
            raise invalid(param, "it is nested too deeply") from error
        return schema

    def _matcher(self, grammars: Sequence[Grammar], param: str) -> LLMatcher:
        """Return a matcher that has begun. Raises ``RequestError``."""
        vocabulary = self._vocabulary
        matcher = LLMatcher(
            vocabulary.tokenizer,
            json.dumps({"grammars": list(grammars)}),
            log_level=0,
            limits=_LIMITS,
        )
        begun_s = time.monotonic()
        if not matcher.is_error():
            # The first mask is where a grammar with too many alternatives fails.
            mask = vocabulary.masks.new()
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            raise invalid(param, _reason(matcher.get_error()))
        if time.monotonic() - begun_s > _SLOWEST_FIRST_MASK_S:
            raise invalid(param, "it is too complex")
        return matcher

    def _rules(self, source: ConstraintSource) -> ThinkingRules | None:
        """Return how the model thinks before it answers, None when it doesn't."""
        marks = self._reasoning
        if marks is None or (source.thinking.enabled is False and not source.thinking_open):
            return None
        start = tuple(self._tokenizer.encode(marks.start, add_special_tokens=False))
        if start[:1] != (marks.start_id,):
            start = (marks.start_id,)
        budget = source.thinking.budget_tokens
        return ThinkingRules(start, marks.end_id, budget, line_breaks=not self._is_harmony)

    @property
    def _is_harmony(self) -> bool:
        thinks = self._reasoning is not None and self._reasoning.start == harmony.THINKING
        return thinks or self._tool_parser == HARMONY

    @property
    def _vocabulary(self) -> GrammarVocabulary:
        if self._made is None:
            self._made = read_vocabulary(
                self._tokenizer, self._vocabulary_size, self._eos_token_ids
            )
        return self._made


def _reason(error: str) -> str:
    """Return what llguidance says is wrong, without the grammar that it shows with it."""
    first, *others = error.replace("<non-verbose/>", "").strip().splitlines()
    # A regular expression's error is below a picture of where it is.
    cause = next((line for line in others if line.startswith("error:")), "")
    return f"{first[:_LONGEST_REASON_CHARS]} {cause}".strip()
