"""What a request of llama.cpp's /infill may hold."""

from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import Field

from lmx.protocol.messages.data import Generate, Infill, InfillFile
from lmx.router.schema.requests.generation import (
    AnswerFields,
    SharingFields,
    Stops,
    generate_of,
    texts_of,
)
from lmx.router.schema.requests.sampling import ParameterFields, parameter
from lmx.router.schema.requests.unsupported import refuse_unsupported
from lmx.router.schema.validation import INT64_MAX, INT64_MIN, MAX_COUNT, Strict, validated

_MAX_FILES: Final = 1024

INFILL: Final[dict[str, tuple[Any, ...]]] = {
    "grammar": ("",),
    "json_schema": (),
    "logit_bias": ([], {}),
    "mirostat": (0,),
    "n_probs": (0,),
}
"""Fields that would change the answer, each with the values (besides null) that mean the same as
leaving it out."""


class InfillExtra(Strict):
    """Another file, or a part of one."""

    filename: str = "tmp"
    """Its name, which the model reads."""
    text: str
    """What is in it."""


class InfillRequest(ParameterFields, AnswerFields, SharingFields):
    """The body of POST /infill. Fields that are not here are named in `X-Lmx-Ignored`, and change
    nothing."""

    model: str | None = None
    """The id, an alias or the source of a model, or a name that routes (`auto` ...). llama.cpp has
    no such field. Default: the configured one."""
    input_prefix: str
    """What comes before the gap."""
    input_suffix: str
    """What comes after the gap."""
    input_extra: Annotated[list[InfillExtra], Field(max_length=_MAX_FILES)] | None = None
    """Other files that the model reads first. Default: none."""
    prompt: str | None = None
    """How the answer begins; it is not in it. Default: nothing."""
    n_predict: Annotated[int, Field(ge=-2, le=MAX_COUNT)] | None = None
    """How many tokens the answer has at most. -1 and -2: as many as fit into the context. 0
    computes nothing but the prompt, which is then in the prefix cache. Default: the model's, else
    up to the context."""
    stop: Stops = None
    """Texts that end the answer, and are not in it: one, or up to 64. Default: none."""
    seed: Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX)] | None = None
    """The same seed draws the same tokens. -1 is the same as none. Default: random."""
    repeat_penalty: float | None = parameter("repetition_penalty")

    @property
    def token_limit(self) -> int | None:
        limit = self.n_predict
        return limit if limit is None or limit >= 0 else MAX_COUNT

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return texts_of(self.stop)


def parse_infill(body: dict[str, Any]) -> tuple[InfillRequest, Generate]:
    """Return the checked request, and the request to a worker without ids and credit. Raises
    :class:`RequestError` (400) for the first fault."""
    request = validated(InfillRequest, body)
    refuse_unsupported(body, INFILL)
    files = tuple(InfillFile(one.filename, one.text) for one in request.input_extra or ())
    infill = Infill(request.input_suffix, request.prompt or "", files, "input_suffix")
    return request, replace(
        generate_of(request), prompt=request.input_prefix, infill=infill, parse=False
    )
