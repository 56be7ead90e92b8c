"""Compiles the form that a request wants of its answers into constraints. Prompt thread."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

import structlog
from llguidance import LLMatcher

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Structure, ToolUse
from lmx.protocol.states import StructureKind, ToolChoice
from lmx.worker.constraints.error_texts import (
    LONE_SURROGATE,
    TOO_COMPLEX,
    UNSPELLABLE,
    explain_error,
    has_lone_surrogate,
    parts,
)
from lmx.worker.constraints.grammar import BanConstraint, Form, GrammarConstraint, ban_rules
from lmx.worker.constraints.probe import LIMITS, verdict
from lmx.worker.constraints.thinking import ThinkingConstraint, ThinkingRules
from lmx.worker.constraints.vocabulary import GrammarVocabulary, read_vocabulary, supports_grammars
from lmx.worker.engine.values import (
    AnswerCheck,
    Constraint,
    ConstraintMaker,
    ConstraintSource,
    ReasoningMarkers,
)
from lmx.worker.formats.closed_objects import closed
from lmx.worker.formats.families.table import family_of
from lmx.worker.formats.family import Tool
from lmx.worker.formats.grammar import free_text, never_enforced, tools_grammar
from lmx.worker.schemas.cost import MAX_SCHEMA_CHARS, too_costly
from lmx.worker.schemas.dialects import SchemaFault
from lmx.worker.schemas.form import SchemaForm, refused_place, schema_forms
from lmx.worker.schemas.grammar import (
    ONE_LINE_SPACE,
    Grammar,
    choices_of,
    invalid,
    read_schema,
    schema_grammar,
    space,
    structure_grammar,
    without_prose,
)

log = structlog.get_logger()

_T = TypeVar("_T")

_NO_GRAMMARS: Final = "this model's tokenizer is of a kind that can't be held to a form"
_UNKNOWN_FORM: Final = (
    "the model's chat template shows tools, but lmx does not know the form of its calls"
)
_IN_WORDS: Final = (
    "the model's chat template knows no tools, so that it is asked in words to mark its calls, and "
    "one that it makes without the marker is not enforced"
)
_MAX_VERDICTS: Final = 512
# For all forms of a request, in seconds of the processor: the prompts of others wait meanwhile.
# Verdicts that are known by then are kept.
_MAX_S: Final = 5.0
_MAX_PATTERNS: Final = 64
_OF_STRINGS: Final = ("pattern", "minLength", "maxLength", "format")
_ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
# This is what OpenAI means by a function without parameters.
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


class ConstraintCompiler:
    """Compiles structures, tools that must be called, and thinking budgets.

    ``vocabulary_size`` is the width of the logits, which may be more or less than the number of
    tokens. The first grammar makes the compiler read the vocabulary: 0.4 s and 40 MB for 49152
    tokens.
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
        self._family = family_of(tool_parser, reasoning)
        self._made: GrammarVocabulary | None = None
        # The verdict on each grammar, by its hash: most requests repeat an earlier one's.
        self._verdicts: dict[bytes, str | None] = {}
        self._until_s = 0.0
        self._thinking: ThinkingRules | None = None
        # Why strict calls were not enforced, as far as it is in the log.
        self._logged: set[str] = set()

    def compile(self, source: ConstraintSource) -> ConstraintMaker | None:
        """Return the maker of a row's constraint; None if there is no constraint.

        Raises ``RequestError`` for a form that is invalid, that can't be enforced, or that takes
        too long.
        """
        self._until_s = time.thread_time() + _MAX_S
        maker = self._form(source)
        if not source.allowed_token_ids and not source.bad_words:
            return maker
        rules = ban_rules(
            self._tokenizer, self._vocabulary_size, source.allowed_token_ids, source.bad_words
        )
        if maker is None:
            return ConstraintMaker(lambda: BanConstraint(rules, None))
        make = maker.make
        return replace(maker, make=lambda: BanConstraint(rules, make() if make else None))

    def _form(self, source: ConstraintSource) -> ConstraintMaker | None:
        use = source.tool_use if source.tool_use and source.tool_use.tools else None
        required = use is not None and use.choice is ToolChoice.REQUIRED
        forms = []
        remarks: list[str] = []
        call_checks: dict[str, AnswerCheck] = {}
        schema = None
        if source.structure and not required:
            frame = "" if source.only_form else self._frame()
            matcher, schema = self._structure(source.structure, frame)
            forms.append(Form(matcher))
            remarks += schema.remarks if schema else ()
        if use and (required or (forms and use.choice is ToolChoice.AUTO)):
            tools, notes = self._tools(use, required, call_checks)
            grammar = tools_grammar(tools, self._family, not use.one_call, self._vocabulary.special)
            matched = self._matcher([grammar], "tools")
            forms.append(Form(matched, open_end=not use.one_call))
            remarks += notes
        marked = False
        if use and not forms and _asks_strictly(use):
            matched, notes, marked = self._strict_calls(use, call_checks)
            if matched is not None:
                forms.append(Form(matched))
            remarks += notes
        limited = source.thinking.budget_tokens is not None
        has_rules = (required or not source.only_form) if forms else limited
        rules = self._rules(source) if has_rules else None
        if not forms and rules is None:
            return ConstraintMaker(None, remarks=tuple(remarks)) if remarks else None
        masks = self._vocabulary.masks

        def make() -> Constraint:
            answer = None
            if forms:
                answer = GrammarConstraint([form.copy() for form in forms], masks)
            if rules is None and answer:
                return answer
            assert rules
            return ThinkingConstraint(answer, masks, rules, source.thinking_open)

        check = schema.check if schema else None
        return ConstraintMaker(make, check, tuple(remarks), call_checks, marked)

    def _structure(self, structure: Structure, frame: str) -> tuple[LLMatcher, SchemaForm | None]:
        if structure.kind is StructureKind.JSON_SCHEMA:
            return self._schema(structure, frame)
        vocabulary = self._vocabulary
        if not structure.text.isascii() and has_lone_surrogate(structure.text):
            raise invalid(structure.param, LONE_SURROGATE)
        if structure.kind is StructureKind.CHOICE:
            for index, choice in enumerate(choices_of(structure)):
                if not vocabulary.spells(choice):
                    raise invalid(f"{structure.param}[{index}]", UNSPELLABLE)
        grammar = structure_grammar(structure)
        lark = structure.kind is StructureKind.GRAMMAR
        return self._matcher(_framed(frame, grammar), structure.param, lark=lark), None

    def _schema(self, structure: Structure, frame: str) -> tuple[LLMatcher, SchemaForm]:
        """Return the matcher of a schema, which enforces most of it, and the schema's form."""
        schema = read_schema(structure)

        def compiled(form: SchemaForm) -> LLMatcher:
            self._check_texts(form.schema, structure.param)
            grammar = schema_grammar(form.schema, space(structure))
            return self._matcher(_framed(frame, grammar), structure.param, schema)

        try:
            return self._first_accepted(schema, structure.param, compiled)
        except RecursionError as error:
            raise invalid(structure.param, "it is nested too deeply") from error

    def _first_accepted(
        self, schema: Mapping[str, Any], param: str, attempt: Callable[[SchemaForm], _T]
    ) -> tuple[_T, SchemaForm]:
        """Return what ``attempt`` makes of the first form of a schema that it does not refuse, and
        that form. If it refuses all of them, the first refusal is raised."""
        refused = None
        try:
            for form in schema_forms(schema, self._accepts):
                try:
                    return attempt(form), form
                except RequestError as error:
                    refused = refused or error
        except SchemaFault as fault:
            raise invalid(param, str(fault)) from fault
        assert refused is not None
        raise refused

    def _accepts(self, schema: Mapping[str, Any]) -> bool:
        """Return whether llguidance accepts a small schema: none after the request's time."""
        if time.thread_time() > self._until_s:
            return False
        grammar = json.dumps({"grammars": [schema_grammar(schema, ONE_LINE_SPACE)]})
        matcher = LLMatcher(self._vocabulary.tokenizer, grammar, log_level=0, limits=LIMITS)
        return not matcher.is_error()

    def _frame(self) -> str:
        """Return Lark for the text that this model writes around ``@answer``; "" if it writes
        none."""
        family = self._family
        if family.answer is not None:
            return family.answer.grammar(self._vocabulary.special, "answer")
        if family.messages is not None:
            header = family.messages.header(self._vocabulary.special, [family.messages.user])
            return f"%llguidance {{}}\nstart: {header} @answer"
        return ""

    def _strict_calls(
        self, use: ToolUse, checks: dict[str, AnswerCheck]
    ) -> tuple[LLMatcher | None, list[str], bool]:
        """Compile the form of an answer that may be any text or call tools, some of them strict.

        Returns None if the calls can't be enforced; the remarks for people; and whether text is a
        call only after a marker. Adds to ``checks``.
        """
        if not supports_grammars(self._tokenizer):
            return None, [self._lenient(_NO_GRAMMARS)], False
        if self._tool_parser is None and "tools" in str(self._tokenizer.chat_template):
            return None, [self._lenient(_UNKNOWN_FORM)], False
        special = self._vocabulary.special
        if fault := never_enforced(self._family, special):
            return None, [self._lenient(fault)], False
        tools, remarks = self._tools(use, False, checks)
        made = free_text(tools, self._family, not use.one_call, special)
        if made.remark:
            remarks.append(self._lenient(made.remark))
        if made.grammar is None:
            checks.clear()
            return None, remarks[-1:], False
        if self._tool_parser is None:
            remarks.append(self._lenient(_IN_WORDS))
        marked = made.marked and self._tool_parser is not None
        return self._matcher([made.grammar], "tools"), remarks, marked

    def _lenient(self, reason: str) -> str:
        """Return the remark that not all strict calls are enforced, and log it once."""
        if reason not in self._logged:
            self._logged.add(reason)
            log.warning("tool_calls.strict_not_enforced", reason=reason)
        return (
            "tools: where `tool_choice` is auto, not every call of a `strict` function is held to "
            f"its schema: {reason}."
        )

    def _tools(
        self, use: ToolUse, required: bool, checks: dict[str, AnswerCheck]
    ) -> tuple[list[Tool], list[str]]:
        """Return the tools that may be called, and the remarks for people. Arguments that can't be
        enforced are an error if a call is required or the function is strict; otherwise any object
        is allowed. Adds to ``checks``."""
        tools = []
        chars = 0
        remarks = [self._family.remark] if self._family.remark else []
        for index, tool in use.callable():
            function = tool["function"]
            strict = required or bool(function.get("strict"))
            param = f"tools[{index}].function.parameters"
            parameters, form = self._parameters(function.get("parameters"), param, strict)
            chars += len(json.dumps(parameters))
            if chars > MAX_SCHEMA_CHARS:
                reason = f"their schemas have more than {MAX_SCHEMA_CHARS} characters together"
                raise invalid("tools", reason)
            if time.thread_time() > self._until_s:
                raise invalid("tools", TOO_COMPLEX)
            tools.append(Tool(function["name"], parameters))
            if form is not None:
                remarks += [f"{param}: {one}" for one in form.remarks]
                if form.check is not None:
                    checks[function["name"]] = form.check
        if not tools:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"There is no function {use.function!r} among the tools: name one of them.",
                param="tool_choice",
            )
        return tools, remarks

    def _parameters(
        self, parameters: Mapping[str, Any] | None, param: str, strict: bool
    ) -> tuple[Mapping[str, Any], SchemaForm | None]:
        """Return the schema of a function's arguments, and its form if the schema was changed."""
        if parameters is None:
            return _NO_ARGUMENTS, None
        # Arguments are always an object, whatever else the schema states.
        try:
            schema = {"type": "object", **without_prose(parameters)}
            if schema["type"] != "object":
                raise invalid(param, "arguments are an object")
            if reason := too_costly(schema):
                raise invalid(param, reason)
            schema = closed(schema)
            try:
                self._check_arguments(schema, param)
            except RequestError:
                # llguidance can't express the schema as it is.
                _, form = self._first_accepted(
                    schema, param, lambda form: self._check_arguments(form.schema, param, schema)
                )
                return form.schema, form
        except RequestError:
            if strict:
                raise
            return _ANY_OBJECT, None
        except RecursionError as error:
            raise invalid(param, "it is nested too deeply") from error
        return schema, None

    def _check_arguments(
        self, schema: Mapping[str, Any], param: str, written: Mapping[str, Any] | None = None
    ) -> None:
        self._check_texts(schema, param)
        self._matcher([schema_grammar(schema, ONE_LINE_SPACE)], param, written)

    def _matcher(
        self,
        grammars: Sequence[Grammar],
        param: str,
        schema: Mapping[str, Any] | None = None,
        *,
        lark: bool = False,
    ) -> LLMatcher:
        """Return a matcher at its beginning. Raises ``RequestError``, with the place in ``schema``,
        which the client wrote. ``lark`` as for :func:`explain_error`."""
        vocabulary = self._vocabulary
        text = json.dumps({"grammars": list(grammars)})
        if reason := self._verdict(text, lark=lark):
            place = f", at {refused_place(schema, self._accepts)}" if schema is not None else ""
            raise invalid(param, reason + place)
        matcher = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=LIMITS)
        # This is done here, once, and not for each row on the engine thread.
        mask = vocabulary.masks.new()
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if matcher.is_error():
            raise invalid(param, explain_error(matcher.get_error(), lark=lark))
        return matcher

    def _verdict(self, grammars: str, *, lark: bool = False) -> str | None:
        """Return why answers can't be held to these grammars; None if they can."""
        key = hashlib.sha256(grammars.encode()).digest()
        if key not in self._verdicts:
            if time.thread_time() > self._until_s:
                return TOO_COMPLEX
            found = verdict(grammars, self._vocabulary, lark=lark)
            if not found.counted:
                return found.fault
            if len(self._verdicts) >= _MAX_VERDICTS:
                self._verdicts.clear()
            self._verdicts[key] = found.fault
        return self._verdicts[key]

    def _check_texts(self, schema: Mapping[str, Any], param: str) -> None:
        """Refuse a schema for one of its strings, wherever in an answer that string occurs.

        The model must be able to spell the names of properties and the values of ``enum`` and
        ``const``, and a ``pattern`` must not be too complex together with its lengths.
        """
        patterns = 0
        for path, part in parts(schema):
            for text in _texts(part):
                if not self._vocabulary.spells(json.dumps(text, ensure_ascii=False)[1:-1]):
                    raise invalid(param + path, UNSPELLABLE)
            if isinstance(part.get("pattern"), str) and patterns < _MAX_PATTERNS:
                patterns += 1
                string = {key: part[key] for key in _OF_STRINGS if key in part}
                grammar = schema_grammar({"type": "string", **string}, ONE_LINE_SPACE)
                if reason := self._verdict(json.dumps({"grammars": [grammar]})):
                    raise invalid(param + path, reason)

    def _rules(self, source: ConstraintSource) -> ThinkingRules | None:
        """Return how the model thinks before it answers; None if it doesn't."""
        markers = self._reasoning
        if markers is None or (source.thinking.enabled is False and not source.thinking_open):
            return None
        budget = source.thinking.budget_tokens
        if self._thinking is None:
            vocabulary = self._vocabulary
            start, end = vocabulary.markers(markers.start, markers.end)
            self._thinking = ThinkingRules(
                start,
                end,
                self._end_tokens(markers.end),
                vocabulary.token_bytes,
                None,
                # If whole answers have a form, the text between thinking and answer is a part of
                # it.
                line_breaks=self._family.answer is None and self._family.messages is None,
            )
        return replace(self._thinking, budget_tokens=budget)

    def _end_tokens(self, text: str) -> tuple[int, ...]:
        """Return the tokens with which the thinking is ended."""
        vocabulary = self._vocabulary
        tokens: list[int] = []
        for part in vocabulary.special.split(text):
            if part in vocabulary.special.ids:
                tokens.append(vocabulary.special.ids[part])
                continue
            written = self._tokenizer.encode(part, add_special_tokens=False)
            # Some tokenizers write a space before every text.
            exact = b"".join(map(vocabulary.token_bytes, written)) == part.encode()
            tokens += written if exact else vocabulary.tokenizer.greedy_tokenize(part)
        return tuple(tokens)

    @property
    def _vocabulary(self) -> GrammarVocabulary:
        if self._made is None:
            began_s = time.thread_time()
            self._made = read_vocabulary(
                self._tokenizer, self._vocabulary_size, self._eos_token_ids
            )
            # It is read once, and is no fault of the request.
            self._until_s += time.thread_time() - began_s
        return self._made


def _asks_strictly(use: ToolUse) -> bool:
    """Return whether a function is strict that the model may call, or not."""
    functions = [tool["function"] for _, tool in use.callable()]
    return use.choice is ToolChoice.AUTO and any(one.get("strict") for one in functions)


def _framed(frame: str, grammar: Grammar) -> list[Grammar]:
    """Return the grammars of an answer inside the text around it."""
    return [{"lark_grammar": frame}, {"name": "answer", **grammar}] if frame else [grammar]


def _texts(part: Mapping[str, Any]) -> list[str]:
    """Return the texts that an answer must contain word for word."""
    names, values = part.get("properties"), part.get("enum")
    texts = [*(names if isinstance(names, dict) else ()), part.get("const")]
    texts += values if isinstance(values, list) else []
    return [text for text in texts if isinstance(text, str)]
