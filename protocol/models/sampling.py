"""The parameters of sampling that a request, the configuration and a model's own files can set.

Each is defined here and nowhere else: its name and type, its range, its default, and its meaning.
The schemas of requests and of the configuration take these from :data:`PARAMETERS`, and a worker
resolves all parameters in the same way.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Final, TypedDict

MAX_TOP_K: Final = 2**31 - 1
"""Far beyond any vocabulary, and within what every layer can hold."""

MAX_ASSISTANT_TOKENS: Final = 32
"""At most this many tokens are guessed at a time."""

MAX_NGRAM: Final = 32
"""The longest run of tokens that may be named for prompt lookup."""


class Bounds(TypedDict, total=False):
    """The range of a parameter, in the words of the schemas' fields."""

    ge: float
    """The smallest value that may be given."""
    gt: float
    """Only values above this may be given."""
    le: float
    """The largest value that may be given."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """The definition of one parameter."""

    meaning: str
    """Sentences for people, without the range and the default."""
    least: float
    """The smallest value that may be given."""
    most: float
    """The largest value that may be given."""
    default: float
    """The value where neither the request nor the configuration nor the model names one."""
    above_least: bool = False
    """Whether ``least`` itself may not be given."""

    @property
    def bounds(self) -> Bounds:
        """Its range in the words of the schemas' fields."""
        if self.above_least:
            return Bounds(gt=self.least, le=self.most)
        return Bounds(ge=self.least, le=self.most)


def _parameter(
    meaning: str, least: float, most: float, *, default: float, above_least: bool = False
) -> Any:
    parameter = Parameter(meaning, least, most, default, above_least)
    return field(default=None, metadata={"parameter": parameter})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParameters:
    """How tokens are drawn, as somebody asks for it. A parameter that is None was not set."""

    temperature: float | None = _parameter(
        "How freely tokens are drawn. 0 is greedy: the likeliest token is taken.", 0, 2, default=0.7
    )
    top_p: float | None = _parameter(
        "Tokens are drawn from the likeliest ones that make up this share of the probability. "
        "0 takes the likeliest token alone, as a `temperature` of 0 does.",
        0,
        1,
        default=1.0,
    )
    top_k: int | None = _parameter(
        "From how many of the likeliest tokens one is drawn. 0 and -1 mean all of them.",
        -1,
        MAX_TOP_K,
        default=0,
    )
    min_p: float | None = _parameter(
        "A token is drawn only if it has at least this share of the likeliest token's probability.",
        0,
        1,
        default=0.0,
    )
    typical_p: float | None = _parameter(
        "Tokens are drawn from those of the most typical information that make up this share of "
        "the probability.",
        0,
        1,
        default=1.0,
        above_least=True,
    )
    repetition_penalty: float | None = _parameter(
        "It makes tokens that the prompt or the answer has less likely: their logits are divided "
        "by it where they are positive, and multiplied where they are negative.",
        0.01,
        10,
        default=1.0,
    )
    presence_penalty: float | None = _parameter(
        "It is subtracted from the logit of each token that the answer has already.",
        -2,
        2,
        default=0.0,
    )
    frequency_penalty: float | None = _parameter(
        "It is subtracted from a token's logit for each time that the answer has the token.",
        -2,
        2,
        default=0.0,
    )


PARAMETERS: Final[dict[str, Parameter]] = {
    one.name: one.metadata["parameter"] for one in fields(SamplingParameters)
}
"""Every parameter by its name."""
