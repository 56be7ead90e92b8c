"""What a completion request may hold."""

import sys
from array import array
from dataclasses import replace
from typing import Annotated, Any, Final, cast

from pydantic import Discriminator, Field, Tag, ValidatorFunctionWrapHandler, WrapValidator

from lmx.protocol.errors import ErrorCode, RequestError
from lmx.protocol.messages.data import Generate, Infill, Search
from lmx.router.http.bodies.limits import MAX_NUMBERS
from lmx.router.schema.requests.generation import (
    GenerationFields,
    Limit,
    check_generation,
    generate_of,
)
from lmx.router.schema.requests.sampling import MAX_ANSWERS
from lmx.router.schema.requests.unsupported import COMPLETION, refuse_unsupported
from lmx.router.schema.validation import MAX_COUNT, TEXT, Count, invalid, unsupported, validated

MAX_PROMPTS: Final = 128
MAX_PROMPT_TOKENS: Final = MAX_NUMBERS
"""As long as the longest contexts."""

DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's."""

TEXTS: Final = "<texts>"
_ALL_AT_ONCE: Final = 256
"""The least number of tokens for which it is worth it."""

IDS: Final = "<ids>"
ID_LISTS: Final = "<id lists>"


def prompt_form(value: object) -> str | None:
    """Return the tag of a text, of texts, of tokens or of arrays of tokens."""
    if isinstance(value, str):
        return TEXT
    if not isinstance(value, list):
        return None
    # An empty array is given to the first form, whose error says that it must not be empty.
    first = value[0] if value else ""
    if isinstance(first, str):
        return TEXTS
    if isinstance(first, list):
        return ID_LISTS
    return IDS if isinstance(first, int) else None


PROMPT_FORM: Final = Discriminator(
    prompt_form,
    custom_error_type="prompt_type",
    custom_error_message="a string, or an array of strings or tokens",
)

_PROMPTS: Final = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)


def _at_once(value: object, check_each: ValidatorFunctionWrapHandler) -> Any:
    """Accept a long array of tokens as it is if one look shows that all of them are right. Checking
    each token by itself takes four times as long, but only that can say which one is wrong."""
    if type(value) is not list or not _ALL_AT_ONCE <= len(value) <= MAX_PROMPT_TOKENS:
        return check_each(value)
    if set(map(type, value)) != {int}:
        return check_each(value)
    try:
        packed = array("I", value).tobytes()
    except OverflowError:
        return check_each(value)
    # This looks at the highest byte of each token: none is beyond 31 bits.
    highest = packed[3::4] if sys.byteorder == "little" else packed[::4]
    return value if highest.isascii() else check_each(value)


TokenArray = Annotated[
    list[Count],
    Field(min_length=1, max_length=MAX_PROMPT_TOKENS, fail_fast=True),
    WrapValidator(_at_once),
]

Prompt = Annotated[
    Annotated[str, Tag(TEXT)]
    | Annotated[list[str], _PROMPTS, Tag(TEXTS)]
    | Annotated[TokenArray, Tag(IDS)]
    | Annotated[list[TokenArray], _PROMPTS, Tag(ID_LISTS)],
    PROMPT_FORM,
]


class CompletionRequest(GenerationFields):
    """The body of POST /v1/completions."""

    prompt: Prompt
    """What the model continues: a text, or an array of texts, of tokens, or of arrays of tokens.
    There may be up to 128 prompts, and 128 answers in all."""
    max_tokens: Limit | None = None
    """How many tokens the answer has at most. 0, which needs `echo` or `prompt_logprobs`, computes
    nothing but the prompt: with `logprobs`, that is how a text is scored. -1: as many as fit into
    the context. Default: 16."""
    max_completion_tokens: Limit | None = None
    """The same as `max_tokens`. Both, different, are a 400."""
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    """With how many alternatives each token of the answer is given, in lists: a number here, as it
    was before chat. Default: none."""
    suffix: str | None = None
    """What comes after the answer: the model fills the gap between the prompt, a text, and this.
    A model without tokens for that is a 400, and so are `echo` and `truncate_prompt_tokens` with
    it. Default: the answer continues the prompt."""
    echo: bool | None = None
    """The answer begins with the prompt, its special tokens by their names. What the tokenizer
    itself puts before a text is left out. With `logprobs` the answer's last token is in the lists
    also where it is an end token, with an empty text, and more than 262,144 logprobs of the prompt
    are a 400. Default: false."""

    @property
    def token_limit(self) -> int:
        # A request without a limit has the default by now, so that None means as many as fit.
        limit = super().token_limit
        return MAX_COUNT if limit is None else limit

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one or more, all texts or all tokens."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        # It is one prompt of tokens, or prompts of one kind: the first shows the kind of all.
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast("list[str | list[int]]", self.prompt)


def parse_completion(
    body: dict[str, Any], *, ovms: bool = False
) -> tuple[CompletionRequest, tuple[Generate, ...]]:
    """Return the checked request, and the request to a worker for each of its prompts.

    ``ovms`` selects the rules of /v3. This module does not set the ids and the credit. Raises
    :class:`RequestError` (400) for the first fault.
    """
    request = validated(CompletionRequest, body)
    if request.max_tokens is None and request.max_completion_tokens is None:
        request = request.model_copy(update={"max_tokens": DEFAULT_MAX_TOKENS})
    check_generation(request, ovms=ovms)
    refuse_unsupported(body, COMPLETION)
    whole = replace(
        generate_of(request, ovms=ovms),
        top_logprobs=request.logprobs,
        echo=bool(request.echo),
        parse=False,
    )
    if request.suffix:
        _check_suffix(request)
        whole = replace(whole, infill=Infill(request.suffix))
    search = whole.search
    _check_empty_answer(request, search)
    prompts = request.prompts
    if len(prompts) * search.best_of > MAX_ANSWERS:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"{len(prompts)} prompts with {search.best_of} answers each are more than "
            f"{MAX_ANSWERS} answers: send fewer prompts in one request.",
            param="n" if request.best_of is None else "best_of",
        )
    return request, tuple(
        replace(whole, prompt=prompt)
        if isinstance(prompt, str)
        else replace(whole, prompt_tokens=tuple(prompt))
        for prompt in prompts
    )


def _check_suffix(request: CompletionRequest) -> None:
    """Refuse what can't be combined with a text after the answer."""
    if request.echo:
        raise unsupported("echo", "can't be combined with `suffix`: leave one of them out.")
    if request.truncate_prompt_tokens is not None:
        raise unsupported(
            "truncate_prompt_tokens",
            "can't be combined with `suffix`: leave it out, and send shorter texts.",
        )
    if not all(isinstance(prompt, str) for prompt in request.prompts):
        raise unsupported("prompt", "must be a text, or texts, with `suffix`: it has tokens here.")


def _check_empty_answer(request: CompletionRequest, search: Search) -> None:
    """Refuse an answer without tokens where that is not what it can have been meant for."""
    if request.token_limit != 0:
        return
    param = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    if not request.echo and request.prompt_logprobs is None:
        raise invalid(
            param,
            "must be at least 1, got 0: 0 is for `echo: true` and for `prompt_logprobs` alone, "
            "which say something about the prompt.",
        )
    if search.beam or search.best_of > search.n:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"`{param}` is 0, and there is no best one among answers without tokens: leave "
            "`best_of` and `use_beam_search` out.",
            param="best_of" if request.best_of is not None else "use_beam_search",
        )
